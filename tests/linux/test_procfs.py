"""The procfs of another pid namespace: the same on both ways, and nothing of their making stays behind."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

from sockd.linux import _procfs, mounts, procfs, syscalls
from sockd.linux.event_loop import EventLoop
from sockd.linux.mounts import owned
from sockd.linux.processes import pidfds
from sockd.linux.procfs import ByChild, ByNamespace, Procfs
from sockd.linux.readiness import is_readable
from tests.support.ledger import Ledger

pytestmark = pytest.mark.root

T = TypeVar("T")

DEADLINE_S = 20
NODEV = 4
"""ST_NODEV, which the os module does not name."""
INNER = """
import ctypes, os
ctypes.CDLL(None).unshare(0x20000000)
child = os.fork()
if child == 0:
    os.write(1, b'.'); os.read(0, 1)
    os._exit(0)
os.waitpid(child, 0)
"""


@contextmanager
def inner_process() -> Iterator[int]:
    """The pidfd of the first process of a pid namespace."""
    with ExitStack() as stack:
        child = stack.enter_context(subprocess.Popen([sys.executable, "-I", "-S", "-c", INNER], stdin=-1, stdout=-1))
        assert child.stdout is not None and child.stdin is not None
        stack.callback(child.stdin.close)
        assert child.stdout.read(1) == b"."
        (inner,) = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        yield stack.enter_context(owned(os.pidfd_open(int(inner))))


@contextmanager
def full_table() -> Iterator[int]:
    """No descriptor below a number is free."""
    with ExitStack() as stack:
        for _ in range(max(map(int, os.listdir("/proc/self/fd")))):
            last = stack.enter_context(owned(os.open("/", os.O_PATH | os.O_CLOEXEC)))
        yield last + 1


class Maker:
    """One way to make it, on an event loop of its own."""

    def __init__(self, kind: type[ByNamespace | ByChild]) -> None:
        self._runner = asyncio.Runner(loop_factory=EventLoop)
        self.way: Procfs = self._runner.get_loop().run_until_complete(self._make(kind))

    def new(self, pidfd: int, *, only_own: bool = False) -> int:
        """As the way's."""
        return self.run(self.way.new(pidfd, only_own=only_own))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the loop until this is done."""
        return self._runner.run(asyncio.wait_for(work, DEADLINE_S))

    def close(self) -> None:
        """Close the way and the event loop."""
        self.way.close()
        self._runner.close()

    async def _make(self, kind: type[ByNamespace | ByChild]) -> Procfs:
        return kind()


@contextmanager
def maker_of(kind: type[ByNamespace | ByChild]) -> Iterator[Maker]:
    made = Maker(kind)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(params=[ByNamespace, ByChild])
def way(request: pytest.FixtureRequest) -> Iterator[Maker]:
    if request.param is ByNamespace and (reason := procfs.why_not_by_namespace()):
        pytest.skip(f"this kernel cannot: {reason}")
    with maker_of(request.param) as made:
        yield made


def test_it_shows_the_processes_of_the_namespace_alone(way: Maker) -> None:
    with inner_process() as pidfd, owned(way.new(pidfd)) as mount:
        numbers = [name for name in os.listdir(f"/proc/self/fd/{mount}") if name.isdigit()]
        assert numbers == ["1"]
        flags = os.fstatvfs(mount).f_flag
        assert flags & os.ST_NOSUID and flags & NODEV and flags & os.ST_NOEXEC


def test_it_can_hide_the_processes_of_others(way: Maker) -> None:
    probe = "import os, sys; os.setgroups([]); os.setresgid(*[9999] * 3); os.setresuid(*[9999] * 3)\n"
    probe += "print([name for name in os.listdir(sys.argv[1]) if name.isdigit()])"
    with inner_process() as pidfd:
        for only_own, seen in ((False, "['1']"), (True, "[]")):
            with owned(way.new(pidfd, only_own=only_own)) as mount:
                command = [sys.executable, "-I", "-c", probe, f"/proc/self/fd/{mount}"]
                reported = subprocess.run(command, pass_fds=[mount], capture_output=True, text=True, check=True)
                assert reported.stdout.strip() == seen


def test_nothing_of_its_making_stays_behind(way: Maker) -> None:
    ledger = Ledger()
    children = Path("/proc/thread-self/children")
    before = children.read_text(), os.readlink("/proc/self/ns/pid_for_children")
    with inner_process() as pidfd:
        for _ in range(20):
            os.close(way.new(pidfd))
    assert (children.read_text(), os.readlink("/proc/self/ns/pid_for_children")) == before
    ledger.check()


def test_a_process_that_is_gone_has_none(way: Maker) -> None:
    ledger = Ledger()
    with inner_process() as pidfd:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for _ in range(50):  # while its namespace ends, and after that
            try:
                os.close(way.new(pidfd))
            except ProcessLookupError:
                continue
        assert is_readable(pidfd, DEADLINE_S)  # it has ended: on a busy host 50 calls are too few to wait for that
        with pytest.raises(ProcessLookupError):
            way.new(pidfd)
    ledger.check()


@pytest.mark.parametrize(("module", "name"), [(syscalls, "_call"), (_procfs, "ask")])
def test_a_call_that_fails_leaves_nothing(
    way: Maker, nth_call: Callable[..., Iterator[int]], module: ModuleType, name: str
) -> None:
    ledger = Ledger()
    with inner_process() as pidfd:
        for _ in nth_call(module, name):
            try:
                os.close(way.new(pidfd))
            except OSError:
                continue
    ledger.check()


def test_a_table_without_room_for_another_descriptor_is_reported(ledger: Ledger) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def outcome(way: Procfs, pidfd: int, room: int) -> int:
        with full_table() as taken:  # by a loop that runs: one that begins to run needs descriptors itself
            resource.setrlimit(resource.RLIMIT_NOFILE, (taken + room, limits[1]))
            try:
                os.close(await way.new(pidfd))
            except OSError as error:
                return error.errno or 0
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        return 0

    with maker_of(ByChild) as way, inner_process() as pidfd:
        # None for the copy of the pidfd; none for what the child has opened; none for the mount; enough.
        assert [way.run(outcome(way.way, pidfd, room)) for room in range(4)] == [*[errno.EMFILE] * 3, 0]
        os.close(way.new(pidfd))
    ledger.check()


def test_a_process_made_meanwhile_is_in_our_own_namespace() -> None:
    with maker_of(ByChild) as way, inner_process() as pidfd:
        asked = [way.way.new(pidfd) for _ in range(20)]

        async def made_meanwhile() -> list[int]:
            making = [asyncio.create_task(each) for each in asked]
            await asyncio.sleep(0)
            with subprocess.Popen(["true"]) as child, owned(os.pidfd_open(child.pid)) as ours:
                assert pidfds.pid(ours) == child.pid
            return await asyncio.gather(*making)

        mounts.close_all(way.run(made_meanwhile()))


def test_many_that_are_asked_for_at_once_are_of_their_own_namespaces() -> None:
    with maker_of(ByChild) as way, inner_process() as first, inner_process() as second:
        wanted = [first, second] * 10

        async def made() -> list[int]:
            return await asyncio.gather(*(way.way.new(each) for each in wanted))

        for pidfd, mount in zip(wanted, way.run(made()), strict=True):
            with owned(mount):
                shown = os.stat("1/ns/pid", dir_fd=mount)
            assert os.path.samestat(shown, os.stat(f"/proc/{pidfds.pid(pidfd)}/ns/pid"))


def test_one_that_is_not_waited_for_any_more_is_closed(ledger: Ledger) -> None:
    with maker_of(ByChild) as way, inner_process() as pidfd:

        async def give_up() -> None:
            asked = [asyncio.create_task(way.way.new(pidfd)) for _ in range(5)]
            await asyncio.sleep(0)
            for each in asked:
                each.cancel()
            await asyncio.wait(asked)
            os.close(await way.way.new(pidfd))  # they are made in order

        way.run(give_up())
        ledger_of_maker = Ledger()
        way.run(give_up())
        ledger_of_maker.check()
    ledger.check()


def test_one_that_is_cancelled_in_the_turn_of_the_loop_in_which_it_is_made_is_closed(ledger: Ledger) -> None:
    with maker_of(ByChild) as maker, inner_process() as pidfd:
        way: Any = maker.way
        ledger_of_maker = Ledger()

        async def cancel() -> None:
            asked = asyncio.create_task(way.new(pidfd))
            await asyncio.sleep(0)
            assert is_readable(way._made, DEADLINE_S)
            way._take()
            asked.cancel()
            await asyncio.wait([asked])
            assert asked.cancelled()

        maker.run(cancel())
        ledger_of_maker.check()
    ledger.check()


def test_closing_cancels_those_that_are_waited_for(ledger: Ledger) -> None:
    with maker_of(ByChild) as way, inner_process() as pidfd:

        async def close_meanwhile() -> None:
            asked = [asyncio.create_task(way.way.new(pidfd)) for _ in range(5)]
            await asyncio.sleep(0)
            way.way.close()
            await asyncio.wait(asked)
            assert all(each.cancelled() for each in asked)

        way.run(close_meanwhile())
        way.way.close()
    ledger.check()
