"""The ledger: what the kernel holds for the test run, counted before and after each test.

Owns nothing; it reads /proc and the cgroup file systems. What counts as ours:

    fds            of this process
    processes      descendants of this process, and whoever carries the run's group id; what a process that was there
                   before has started meanwhile is that one's business (a daemon that several tests share)
    cgroups        directories named sockd-* whose group is the run's
    mounts         in this process's mount namespace, which is private when the run has root
    shared memory  names in /dev/shm whose group is the run's
    directories    entries of the directories that a test gave to `watch`

The run's group id is the trick that keeps other programs out of the count: as root the run takes a gid that nobody else
has (`claim_group`), children inherit it, and the kernel makes cgroups and files with the gid of their maker, so a daemon
that left its parent is still ours and another sockd on the machine is not. Without root the user takes the group's place.

Only growth is an imbalance: a longer-lived fixture may go away under a test, but not appear behind its back.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 5.0
"""How long released things may take to go: the kernel frees namespaces, mounts and cgroups after their last process."""
_TICK_MS = 10
# Passed to mkdir and to files by every process of the run: above all ids that distributions and sockd's uid blocks use.
_GROUP_BASE = 0x50000000


class Imbalance(AssertionError):
    """Something was acquired and not given back; the message names each piece."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that exists: its kind, and what tells it from others of its kind. As a str it says all there is to know."""

    kind: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind} {self.key}{_DETAILS.get(self.kind, _no_details)(self.key)}"


class Ledger:
    """Counts when made; `check` counts again."""

    def __init__(self) -> None:
        self._watched: list[Path] = []
        self._before: set[Entry] = set()
        self._before = set(self._entries())

    def watch(self, directory: Path) -> None:
        """Count the entries of this directory too, from now on."""
        self._watched.append(directory)
        self._before.update(_directory(directory))

    @contextlib.contextmanager
    def replacing(self) -> Iterator[None]:
        """What the block starts takes the place of something that was there before, and lives as long."""
        before = set(self._entries())
        yield
        self._before |= set(self._entries()) - before

    def check(self, *, grace_s: float = GRACE_S) -> None:
        """Raise Imbalance, naming what is there now and was not at the beginning.

        The asynchronous part of a release (a process being reaped, a cgroup emptied) has `grace_s` to come about. This is
        the one place in the tests that looks again after a while: no event covers a mount or a name in /dev/shm."""
        deadline = time.monotonic() + grace_s
        while survivors := self.survivors():
            gc.collect()  # an fd in a reference cycle, such as a closed transport and its protocol
            if time.monotonic() > deadline:
                raise Imbalance("not given back:\n" + "\n".join(f"  {entry}" for entry in survivors))
            _wait_for_one(survivors)

    def survivors(self) -> list[Entry]:
        """What is there now, was not at the beginning, and does not belong to the run."""
        return [entry for entry in self._entries() if entry not in self._before and entry not in _of_the_run]

    def _entries(self) -> Iterator[Entry]:
        yield from _fds()
        known = self._before - _of_the_run
        yield from _processes({int(entry.key) for entry in known if entry.kind == "process"})
        yield from _cgroups()
        yield from _mounts()
        yield from _shared_memory()
        for directory in self._watched:
            yield from _directory(directory)


_of_the_run: set[Entry] = set()


def belongs_to_the_run(kind: str, key: str) -> None:
    """Whenever a test first needs it: it stays until the run ends, and is in no test's count."""
    _of_the_run.add(Entry(kind, key))


def claim_group() -> None:
    """Give this process, and so all that it starts and makes, a group id of its own. Needs root."""
    group = _GROUP_BASE + os.getpid()
    # All three: a real gid unlike the effective one would put children into the loader's secure mode (AT_SECURE).
    os.setgroups([0])
    os.setresgid(group, group, group)


def _is_ours(status: os.stat_result) -> bool:
    """Whether the run made this file; without root there is no group to tell, but then a user of its own."""
    return status.st_gid == os.getegid() if os.geteuid() == 0 else status.st_uid == os.geteuid()


def _fds() -> Iterator[Entry]:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that listdir itself had open
            yield Entry("fd", f"{name} -> " + os.readlink(f"/proc/self/fd/{name}"))


def _processes(known: set[int]) -> Iterator[Entry]:
    parents: dict[int, int] = {}
    ours: set[int] = {os.getpid()}
    group = os.getegid() if os.geteuid() == 0 else -1
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            # The name in parentheses may hold anything, parentheses too; the fields after it are state and parent.
            state, parent, _ = _read(f"/proc/{name}/stat").rpartition(b")")[2].split(maxsplit=2)
            if state != b"Z":
                parents[int(name)] = int(parent)
                if os.stat(f"/proc/{name}").st_gid == group:
                    ours.add(int(name))
        except (FileNotFoundError, ProcessLookupError):  # gone by now
            continue
    for pid in parents.keys() - {os.getpid()}:
        line = list(_ancestry(pid, parents))
        if not ours.isdisjoint(line) and known.isdisjoint(line[1:]):
            yield Entry("process", str(pid))


def _ancestry(pid: int, parents: dict[int, int]) -> Iterator[int]:
    """The process, its parent, and so on, as far as this process or the end."""
    while pid in parents:
        yield pid
        if pid == os.getpid():
            return
        pid = parents[pid]


def _read(path: str) -> bytes:
    """The beginning of a small file; thrice as fast as open() is, and this is done for every process of the machine."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def _cgroups() -> Iterator[Entry]:
    for root in _cgroup_roots():
        with contextlib.suppress(FileNotFoundError), os.scandir(root) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # this one only: another run's may go while we look
                    if entry.name.startswith("sockd-") and _is_ours(entry.stat()):
                        yield Entry("cgroup", entry.path)


@functools.cache
def _cgroup_roots() -> list[str]:
    """The roots of all hierarchies, and in version 2 our own cgroup: a daemon under systemd builds in what it was given."""
    with open("/proc/self/mountinfo") as file:
        rows = [line.split() for line in file]
    roots = {row[4] for row in rows if row[row.index("-") + 1] in ("cgroup", "cgroup2")}
    own = Path("/proc/self/cgroup").read_text().partition("0::/")[2].splitlines()
    return sorted(roots | {f"{root}/{own[0]}" for root in roots if own and own[0]})


def _mounts() -> Iterator[Entry]:
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields = line.split()
            kind = fields[fields.index("-") + 1]
            yield Entry("mount", f"{fields[0]}: {kind} on {fields[4]}")


def _shared_memory() -> Iterator[Entry]:
    with contextlib.suppress(FileNotFoundError), os.scandir("/dev/shm") as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if _is_ours(entry.stat(follow_symlinks=False)):
                    yield Entry("shared memory", entry.path)


def _directory(directory: Path) -> Iterator[Entry]:
    with contextlib.suppress(FileNotFoundError):
        for path in directory.iterdir():
            yield Entry("directory entry", str(path))


def _wait_for_one(survivors: list[Entry]) -> None:
    """Return when a surviving process has ended, a surviving cgroup has become empty, or a tick has passed."""
    with contextlib.ExitStack() as stack:
        poll = select.poll()
        for entry in survivors:
            with contextlib.suppress(OSError):
                if entry.kind == "process":
                    pidfd = os.pidfd_open(int(entry.key))
                    stack.callback(os.close, pidfd)
                    poll.register(pidfd, select.POLLIN)
                elif entry.kind == "cgroup":
                    events = stack.enter_context(open(f"{entry.key}/cgroup.events"))
                    events.read()  # arms POLLPRI
                    poll.register(events, select.POLLPRI)
        poll.poll(_TICK_MS)


def _command(pid: str) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        cgroups = Path(f"/proc/{pid}/cgroup").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return " (gone by now)"
    homes = {line.rpartition(":")[2] for line in cgroups if "/sockd-" in line}
    return " ".join(["", words[:200] or "(no command line)", *(f"in {home}" for home in sorted(homes))])


def _inhabitants(path: str) -> str:
    try:
        pids = Path(path, "cgroup.procs").read_text().split()
    except OSError:  # gone by now, or a threaded cgroup, which does not tell
        return ""
    return f" with processes {' '.join(pids)}" if pids else " (empty)"


def _no_details(_key: str) -> str:
    return ""


_DETAILS: dict[str, Callable[[str], str]] = {"process": _command, "cgroup": _inhabitants}
