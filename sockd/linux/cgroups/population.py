"""Population: the processes of a cgroup, to freeze, to kill, and to wait for until the last has gone.

Owns nothing but the fds kept in the `CgroupFiles` that it is given, and pidfds while it waits.

v2 has a file for each of these. v1 has the freezer and otherwise only a list of pids, so there one kills by signalling
each process and looking again, until a look finds none.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Protocol

from sockd.linux.cgroups.files import CgroupFiles

_PIDFDS_AT_ONCE = 64


class Watch:
    """An fd that becomes readable when `Population.populated` may have changed; close it."""

    def __init__(self, epoll: select.epoll, held: ExitStack) -> None:
        self._epoll = epoll
        self._held = held

    @classmethod
    def of(cls, fd: int, events: int, held: ExitStack | None = None) -> Watch:
        """Watch one fd, and close `held` with the watch."""
        with held or ExitStack() as stack:
            epoll = select.epoll(1)
            stack.callback(epoll.close)
            epoll.register(fd, events)
            return cls(epoll, stack.pop_all())

    def fileno(self) -> int:
        """For `loop.add_reader`, which knows nothing of POLLPRI: an epoll fd is readable when it has an event."""
        return self._epoll.fileno()

    def wait(self, timeout_s: float) -> None:
        """Block until there is something to look at, or the time is over."""
        self._epoll.poll(max(0.0, timeout_s), 1)

    def close(self) -> None:
        """Close everything."""
        self._held.close()


class Population(Protocol):
    """Who is in a cgroup."""

    events_fd: int
    """cgroup.events, or -1 where there is none."""

    def freeze(self) -> None:
        """Stop everyone soon; asynchronous."""

    def is_frozen(self) -> bool:
        """Whether all processes have stopped; False where that is unknown."""

    def thaw(self) -> None:
        """Let everyone go on."""

    def kill(self) -> None:
        """SIGKILL to everyone, frozen or not; returns before they are dead (cgroups(7))."""

    def populated(self) -> bool:
        """Whether a process is left that is not a zombie."""

    def watch(self) -> Watch | None:
        """Something to wait for before asking `populated` again; None: ask again at once."""


class PopulationV2:
    """The population of a v2 cgroup and everything below it."""

    def __init__(self, files: CgroupFiles) -> None:
        self._files = files
        # Held always: to kill must not fail because the daemon has run out of fds.
        self.events_fd = files.keep("cgroup.events", os.O_RDONLY)
        files.keep("cgroup.kill", os.O_WRONLY)
        files.keep("cgroup.freeze", os.O_WRONLY)

    def freeze(self) -> None:
        self._files.write("cgroup.freeze", "1")

    def is_frozen(self) -> bool:
        return self._files.read_field("cgroup.events", "frozen") != 0

    def thaw(self) -> None:
        self._files.write("cgroup.freeze", "0")

    def kill(self) -> None:
        self._files.write("cgroup.kill", "1")

    def populated(self) -> bool:
        return self._files.read_field("cgroup.events", "populated") != 0

    def watch(self) -> Watch | None:
        # A change is reported as POLLPRI once per read of the file, and at most once in 10 ms (cgroup_file_notify): one soon
        # after another is reported late, never lost. Reading before each wait keeps the delay out of the usual case.
        return Watch.of(self.events_fd, select.EPOLLPRI)


class PopulationV1:
    """The population of some v1 cgroups, which the freezer may be among."""

    events_fd = -1

    def __init__(self, directories: Sequence[CgroupFiles], freezers: Sequence[CgroupFiles] = ()) -> None:
        self._directories = directories
        self._freezers = freezers
        self._killed = False

    def freeze(self) -> None:
        self._set_freezer("FROZEN")

    def is_frozen(self) -> bool:
        return bool(self._freezers) and all(files.read("freezer.state").strip() == "FROZEN" for files in self._freezers)

    def thaw(self) -> None:
        self._set_freezer("THAWED")

    def kill(self) -> None:
        self._killed = True
        # A frozen process cannot fork away from the list that is being read; and the frozen die only once they are thawed.
        self.freeze()
        try:
            for pids in _batches(self._pids(), _PIDFDS_AT_ONCE):
                with self._pidfds(pids) as pidfds:
                    for pidfd in pidfds:
                        with suppress(ProcessLookupError):
                            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            self.thaw()

    def populated(self) -> bool:
        return bool(self._pids())

    def watch(self) -> Watch | None:
        if self._killed:  # Somebody may have been born between the list and the signal.
            self.kill()
        # One process is enough to wait for, as the caller asks again.
        with self._pidfds(sorted(self._pids())[:1]) as pidfds, ExitStack() as held:
            if not pidfds:
                return None
            pidfd = os.dup(pidfds[0])
            held.callback(os.close, pidfd)
            return Watch.of(pidfd, select.EPOLLIN, held.pop_all())

    def _pids(self) -> set[int]:
        return {pid for files in self._directories for pid in files.pids()}

    @contextmanager
    def _pidfds(self, pids: Iterable[int]) -> Iterator[list[int]]:
        """Pidfds of those of these processes that are still ours: a number may have become another's since it was read."""
        with ExitStack() as held:
            pidfds = {}
            for pid in pids:
                with suppress(ProcessLookupError):
                    pidfds[pid] = os.pidfd_open(pid)
                    held.callback(os.close, pidfds[pid])
            ours = self._pids()
            yield [pidfd for pid, pidfd in pidfds.items() if pid in ours]

    def _set_freezer(self, state: str) -> None:
        for freezer in self._freezers:
            freezer.write("freezer.state", state)


def _batches(pids: Iterable[int], size: int) -> Iterator[list[int]]:
    ordered = sorted(pids)
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]
