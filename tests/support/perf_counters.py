"""What processes, and all that they start, ask of the kernel, as it counts itself (perf_event_open(2)): system calls but for
those that wait for events, and page faults.

Owns the descriptors of the counters."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

PERF_EVENT_OPEN = 298
SOFTWARE, TRACEPOINT = 1, 2
PAGE_FAULTS = 2
ATTR_BYTES = 112
INHERIT = 1 << 1
CLOEXEC = 8
SET_FILTER = 0x40082406
"""PERF_EVENT_IOC_SET_FILTER of linux/perf_event.h."""
EPOLL_WAIT, EPOLL_PWAIT = 232, 281
NOT_WAITING = f"id != {EPOLL_WAIT} && id != {EPOLL_PWAIT}\0".encode()
"""How many events one wait finds depends on what else runs on the machine."""
COUNTS = ("system calls", "page faults")

_libc = ctypes.CDLL(None, use_errno=True)


class NotCounted(Exception):
    """This kernel, or whoever confines us, has no such counters; the message says why."""


def system_call_event() -> int:
    """The number of the tracepoint of each system call. Raises: NotCounted."""
    script = "mount -t tracefs trace /mnt && cat /mnt/events/raw_syscalls/sys_enter/id"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotCounted(f"no tracepoints: {done.stderr.strip()}")
    return int(done.stdout)


class Counters:
    """System calls and page faults of some processes, of all of their threads, and of what these start from now on."""

    def __init__(self, pids: Iterable[int]) -> None:
        """Raises: NotCounted."""
        events = ((TRACEPOINT, system_call_event()), (SOFTWARE, PAGE_FAULTS))
        self._fds: list[list[int]] = [[], []]
        for pid in pids:
            for thread in threads_of(pid):
                for fds, (kind, config) in zip(self._fds, events, strict=True):
                    with contextlib.suppress(ProcessLookupError):
                        fds.append(opened(kind, config, thread))

    def read(self) -> dict[str, int]:
        """All so far."""
        return {
            name: sum(int.from_bytes(os.read(fd, 8), "little") for fd in fds)
            for name, fds in zip(COUNTS, self._fds, strict=True)
        }

    def close(self) -> None:
        """Safe to call once."""
        for fds in self._fds:
            for fd in fds:
                os.close(fd)


def threads_of(pid: int) -> Iterator[int]:
    """None, if it has ended."""
    with contextlib.suppress(FileNotFoundError):
        yield from (int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())


def opened(kind: int, config: int, thread: int) -> int:
    """A counter's descriptor. Raises: NotCounted, ProcessLookupError."""
    attributes = struct.pack("IIQQQQQ", kind, ATTR_BYTES, config, 0, 0, 0, INHERIT).ljust(ATTR_BYTES, b"\0")
    # SAFETY: the kernel reads ATTR_BYTES of the buffer, which lives during the call.
    fd = int(_libc.syscall(PERF_EVENT_OPEN, attributes, thread, -1, -1, CLOEXEC))
    if fd < 0:
        error = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if isinstance(error, ProcessLookupError):
            raise error
        raise NotCounted(f"perf_event_open: {error}")
    if kind == TRACEPOINT:
        fcntl.ioctl(fd, SET_FILTER, NOT_WAITING)
    return fd
