"""What processes, and all that they start, ask of the kernel, as it counts itself (perf_event_open(2)): system calls but for
those that wait for events, page faults, and sleeps (context switches of a thread that waits for something).

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
GETPID, EPOLL_WAIT, EPOLL_PWAIT = 39, 232, 281
PREEMPTED = 256
"""`prev_state` of a thread that could have gone on: TASK_REPORT_MAX of linux/sched.h."""
TRACEPOINTS = {
    # How many events one wait finds depends on what else runs on the machine; libuv asks for its pid before each.
    "system calls": (
        "raw_syscalls/sys_enter",
        f"id != {EPOLL_WAIT} && id != {EPOLL_PWAIT} && id != {GETPID}",
    ),
    "sleeps": ("sched/sched_switch", f"prev_state != 0 && prev_state != {PREEMPTED}"),
}
"""The tracepoint of each count, and which of its events are counted."""

_libc = ctypes.CDLL(None, use_errno=True)


class NotCounted(Exception):
    """Raised if this kernel, or what confines this process, has no such counters; the message says why."""


def tracepoint(name: str) -> int:
    """Its number. Raises: NotCounted."""
    script = f"mount -t tracefs trace /mnt && cat /mnt/events/{name}/id"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotCounted(f"no tracepoints: {done.stderr.strip()}")
    return int(done.stdout)


class Counters:
    """System calls, page faults and sleeps of some processes, of all of their threads, and of what these start from now on."""

    def __init__(self, pids: Iterable[int]) -> None:
        """Raises: NotCounted."""
        events = {name: (TRACEPOINT, tracepoint(event), which) for name, (event, which) in TRACEPOINTS.items()}
        events["page faults"] = (SOFTWARE, PAGE_FAULTS, "")
        self._fds: dict[str, list[int]] = {name: [] for name in events}
        for pid in pids:
            for thread in threads_of(pid):
                for name, event in events.items():
                    with contextlib.suppress(ProcessLookupError):
                        self._fds[name].append(opened(*event, thread))

    def read(self) -> dict[str, int]:
        """All so far."""
        return {name: sum(int.from_bytes(os.read(fd, 8), "little") for fd in fds) for name, fds in self._fds.items()}

    def close(self) -> None:
        """Safe to call once."""
        for fds in self._fds.values():
            for fd in fds:
                os.close(fd)


def threads_of(pid: int) -> Iterator[int]:
    """None, if it has ended."""
    with contextlib.suppress(FileNotFoundError):
        yield from (int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())


def opened(kind: int, config: int, which: str, thread: int) -> int:
    """A counter's descriptor. Args: which: a filter of its events. Raises: NotCounted, ProcessLookupError."""
    attributes = struct.pack("IIQQQQQ", kind, ATTR_BYTES, config, 0, 0, 0, INHERIT).ljust(ATTR_BYTES, b"\0")
    # SAFETY: the kernel reads ATTR_BYTES of the buffer, which lives during the call.
    fd = int(_libc.syscall(PERF_EVENT_OPEN, attributes, thread, -1, -1, CLOEXEC))
    if fd < 0:
        error = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if isinstance(error, ProcessLookupError):
            raise error
        raise NotCounted(f"perf_event_open: {error}")
    if which:
        fcntl.ioctl(fd, SET_FILTER, which.encode() + b"\0")
    return fd
