"""The ledger: what the kernel holds for the test run, counted before and after each test.

Owns nothing; it reads /proc and the cgroup file systems. What counts as ours:

    fds            of this process
    processes      descendants of this process, and all with the run's group id; what a process that was there
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
from pathlib import Path
from typing import NamedTuple

GRACE_S = 5.0
"""How long released things may take to go: the kernel frees namespaces, mounts and cgroups after their last process."""
_TICK_MS = 10
_LINKS_OF_A_LEAF = 2
"""Links of a cgroup's directory without cgroups in it: its own and its name. Each cgroup in it adds one."""
# Passed to mkdir and to files by every process of the run: above all ids that distributions and sockd's uid blocks use.
GROUP_BASE = 0x50000000


class Imbalance(AssertionError):
    """Something was acquired and not given back; the message names each piece."""


class Entry(NamedTuple):
    """One thing that exists: its kind, and what tells it from others of its kind. As a str it says all there is to know."""

    kind: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind} {self.key}{_DETAILS.get(self.kind, _no_details)(self.key)}"


class Ledger:
    """Counts when made; `check` counts again."""

    def __init__(self) -> None:
        self._watched: list[Path] = []
        self._before = set(self._entries())
        self._pids = _pids()

    def watch(self, directory: Path) -> None:
        """Count the entries of this directory too, from now on."""
        self._watched.append(directory)
        self._before.update(_directory(directory))

    @contextlib.contextmanager
    def replacing(self) -> Iterator[None]:
        """What the block starts takes the place of something that was there before, and lives as long."""
        before, pids = set(self._entries()), _pids()
        yield
        self._before |= set(self._entries()) - before
        self._pids |= _pids() - pids

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
        found = [entry for entry in self._entries() if entry not in self._before]
        found += _new_processes(self._pids - {int(entry.key) for entry in _of_the_run if entry.kind == "process"})
        return [entry for entry in found if entry not in _of_the_run]

    def _entries(self) -> list[Entry]:
        """All but processes."""
        watched = (entry for directory in self._watched for entry in _directory(directory))
        return [*_fds(), *_cgroups(), *_mounts(), *_shared_memory(), *watched]


_of_the_run: set[Entry] = set()


def belongs_to_the_run(kind: str, key: str) -> None:
    """Whenever a test first needs it: it stays until the run ends, and is in no test's count."""
    _of_the_run.add(Entry(kind, key))


def claim_group() -> None:
    """Give this process, and so all that it starts and makes, a group id of its own. Needs root."""
    group = GROUP_BASE + os.getpid()
    # All three: a real gid unlike the effective one would put children into the loader's secure mode (AT_SECURE).
    os.setgroups([0])
    os.setresgid(group, group, group)


def _is_ours(status: os.stat_result) -> bool:
    """Whether the run made this file; without root there is no group to tell, but then a user of its own."""
    return status.st_gid == os.getegid() if os.geteuid() == 0 else status.st_uid == os.geteuid()


def _fds() -> Iterator[Entry]:
    directory = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(directory):
            with contextlib.suppress(FileNotFoundError):  # the one that listdir itself had open
                if int(name) != directory:
                    yield Entry("fd", f"{name} -> {os.readlink(name, dir_fd=directory)}")
    finally:
        os.close(directory)


def _pids() -> frozenset[int]:
    """Return the pids of all processes of the machine, and perhaps of some that have ended.

    A listing holds until the kernel has given a process or thread its number: its last one is in /proc/loadavg. Listings of
    `/proc` are half of what a ledger costs."""
    return _listed_pids(_read("/proc/loadavg").split()[-1])


@functools.lru_cache(maxsize=1)
def _listed_pids(_last: bytes) -> frozenset[int]:
    return frozenset(int(name) for name in os.listdir("/proc") if name.isdigit())


def _new_processes(before: frozenset[int]) -> Iterator[Entry]:
    """Ours that were not there before, but for those that a process of ours that was there has started."""
    for pid in _pids() - before:
        line = list(_ancestry(pid))
        ours = [number for number, process in enumerate(line) if process.is_ours]
        if not ours or line[0].is_zombie:
            continue
        # What descends from a process of ours is ours, too.
        if not any(process.pid in before for process in line[1 : ours[-1] + 1] if process.pid != os.getpid()):
            yield Entry("process", str(pid))


class _Process(NamedTuple):
    """One process in a line of ancestors."""

    pid: int
    is_zombie: bool
    is_ours: bool
    """By itself: it is this process, or has the run's group."""


def _ancestry(pid: int) -> Iterator[_Process]:
    """The process, its parent, and so on, as far as this process or the end."""
    group = os.getegid() if os.geteuid() == 0 else -1
    while pid > 0:
        try:
            # The name in parentheses may hold anything, parentheses too; the fields after it are state and parent.
            state, parent, _ = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split(maxsplit=2)
            is_ours = pid == os.getpid() or os.stat(f"/proc/{pid}").st_gid == group
        except (FileNotFoundError, ProcessLookupError):  # gone by now
            return
        yield _Process(pid, state == b"Z", is_ours)
        if pid == os.getpid():
            return
        pid = int(parent)


def _read(path: str) -> bytes:
    """The beginning of a small file; thrice as fast as open() is, and this is done for every process of the machine."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def _cgroups() -> Iterator[Entry]:
    for root in _cgroup_roots():
        with contextlib.suppress(FileNotFoundError):
            if os.stat(root).st_nlink == _LINKS_OF_A_LEAF:
                continue
            for name in filter(is_cgroup, os.listdir(root)):
                with contextlib.suppress(FileNotFoundError):  # this one only: another run's may go while we look
                    path = f"{root}/{name}"
                    if _is_ours(os.stat(path)):
                        yield Entry("cgroup", path)


def is_cgroup(name: str) -> bool:
    """Whether a directory of a cgroup file system is a worker's, or a test's, by its name."""
    return name.startswith("sockd-")


@functools.cache
def _cgroup_roots() -> list[str]:
    """The roots of all hierarchies, and in version 2 our own cgroup: a daemon under systemd builds in what it was given."""
    with open("/proc/self/mountinfo") as file:
        rows = [line.split() for line in file]
    roots = {row[4] for row in rows if row[row.index("-") + 1] in ("cgroup", "cgroup2")}
    own = Path("/proc/self/cgroup").read_text().partition("0::/")[2].splitlines()
    return sorted(roots | {f"{root}/{own[0]}" for root in roots if own and own[0]})


def _mounts() -> tuple[Entry, ...]:
    return _mounts_in(Path("/proc/self/mountinfo").read_text())


@functools.lru_cache(maxsize=1)
def _mounts_in(mountinfo: str) -> tuple[Entry, ...]:
    rows = (line.split() for line in mountinfo.splitlines())
    return tuple(Entry("mount", f"{row[0]}: {row[row.index('-') + 1]} on {row[4]}") for row in rows)


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
