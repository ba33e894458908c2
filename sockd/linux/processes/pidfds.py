"""Processes by pidfd: a name that cannot be reused, that becomes readable on exit, and that tells the exit status.

Owns nothing; the caller owns the fd.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import os
import select
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sockd.linux.processes import ended_child
from sockd.linux.readiness import readable

_PIDFD_GET_PID_NAMESPACE = 0xFF06
"""_IO(0xFF, 6) of linux/pidfd.h: an fd of the process's active pid namespace (since Linux 6.11)."""
_INFO = struct.Struct("<QQ11Ii")
_PIDFD_INFO_PID = 1 << 0
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
"""_IOWR(0xFF, 11, struct pidfd_info) (since Linux 6.13; exit status since 6.15)."""
_SIGNALLED = 128
"""With the number of a signal, how pid 1 of a namespace ends by one that itself has sent: none of its own kills it
(zygote/native/fork.c). And how a handler server ends whose program was killed by one."""


def pid_namespace(pidfd: int) -> int:
    """An fd of the pid namespace that the process lives in. Raises OSError(ESRCH) when it is gone."""
    return fcntl.ioctl(pidfd, _PIDFD_GET_PID_NAMESPACE, 0)


def exit_status(pidfd: int) -> int | None:
    """The wait status (see os.waitstatus_to_exitcode) of a process that has been reaped, by whomever; None while it lives
    or where the kernel does not tell (before 6.15)."""
    try:
        mask, *_, status = _info(pidfd, _PIDFD_INFO_EXIT)
    except OSError:
        return None
    return status if mask & _PIDFD_INFO_EXIT else None


@functools.cache
def tells_exit_status() -> bool:
    """Whether the kernel tells by a pidfd how a process ended that somebody else has reaped (Linux 6.15). Tried once."""
    number = ended_child.make()
    try:
        pidfd = os.pidfd_open(number)
    finally:
        ended_child.reap(number)
    try:
        return exit_status(pidfd) is not None
    finally:
        os.close(pidfd)


def _info(pidfd: int, mask: int) -> tuple[int, ...]:
    """struct pidfd_info, of which the kernel has filled in what its mask then says. Raises OSError."""
    buffer = bytearray(_INFO.size)
    struct.pack_into("<Q", buffer, 0, mask)
    fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer)
    return _INFO.unpack(buffer)


def describe_status(status: int | None) -> str:
    """A wait status in AWS's words: how the runtime exited."""
    if status is None:
        return "Runtime exited without providing a reason"
    if number := signal_of(status):
        return f"Runtime exited with error: signal: {signal_name(number)}"
    code = os.waitstatus_to_exitcode(status)
    return f"Runtime exited with error: exit status {code}" if code else "Runtime exited without providing a reason"


def signal_of(status: int) -> int:
    """The signal that ended a process, or its program; 0 if none did."""
    code = os.waitstatus_to_exitcode(status)
    number = -code if code < 0 else code - _SIGNALLED
    return number if 0 < number < signal.NSIG else 0


def has_exited(status: int) -> bool:
    """Whether a process ended by itself."""
    return 0 <= os.waitstatus_to_exitcode(status) < _SIGNALLED


def signal_name(number: int) -> str:
    """What the kernel's documents call a signal: 9 -> "killed", 11 -> "segmentation fault"."""
    return (signal.strsignal(number) or str(number)).lower()


def pid(pidfd: int) -> int:
    """The process's number in our own pid namespace; 0 when it cannot be seen from here, -1 when it is gone."""
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        for line in file:
            if line.startswith("Pid:"):
                return int(line.split()[1])
    return -1


def pid_and_parent(pidfd: int) -> tuple[int, int]:
    """The process's number and its parent's, as `pid` tells them; (-1, -1) when it is gone, or no process at all."""
    if pidfd < 0:  # its owner has closed it
        return -1, -1
    try:
        mask, _, number, _, parent, *_ = _info(pidfd, _PIDFD_INFO_PID)
        return (number, parent) if mask & _PIDFD_INFO_PID else (-1, -1)
    except ProcessLookupError:
        return -1, -1
    except OSError:  # no pidfd, or a kernel that does not tell
        number = pid(pidfd)
    try:
        stat = Path(f"/proc/{number}/stat").read_bytes() if number > 0 else b""
    except (FileNotFoundError, ProcessLookupError):
        return -1, -1
    # The name in parentheses may hold anything; after it come state and parent.
    fields = stat.rpartition(b")")[2].split()
    return (number, int(fields[1])) if len(fields) > 1 else (-1, -1)


class ProcessMemory(NamedTuple):
    """What a process has mapped that is in memory."""

    private_bytes: int
    """Its alone: what the host gets back when it ends."""
    shared_bytes: int
    """Others have these pages, too."""


def memory(pidfd: int) -> ProcessMemory:
    """The memory of a process (proc(5), smaps_rollup). Takes some ms for a large one. Raises: OSError when it is gone."""
    return memory_of(pid(pidfd))


def memory_of(number: int) -> ProcessMemory:
    """As `memory`, of a process by its number in our own pid namespace."""
    with open(f"/proc/{number}/smaps_rollup") as file:
        kilobytes = {line.split()[0]: int(line.split()[1]) for line in file.readlines()[1:]}
    private, shared = (kilobytes[f"{kind}_Clean:"] + kilobytes[f"{kind}_Dirty:"] for kind in ("Private", "Shared"))
    return ProcessMemory(private * 1024, shared * 1024)


async def wait_exited(pidfd: int, deadline_s: float) -> None:
    """Wait until a process has exited, or the deadline: a pidfd is readable from then on (pidfd_open(2)).

    The owner of the pidfd may close it meanwhile. Returns at once when there is no descriptor for a duplicate of it."""
    with duplicate(pidfd) as own, contextlib.suppress(TimeoutError):
        if own >= 0:
            async with asyncio.timeout(deadline_s):
                await readable(own)


async def wait_status(pidfd: int, deadline_s: float) -> None:
    """As `wait_exited`, until `exit_status` tells how it ended.

    That is after somebody has reaped it, which a pidfd shows as POLLHUP. Where the kernel does not tell the status, its exit
    is enough."""
    if not tells_exit_status():
        await wait_exited(pidfd, deadline_s)
        return
    with duplicate(pidfd) as own, contextlib.suppress(OSError, TimeoutError), select.epoll(1) as reaped:
        reaped.register(own, 0)  # no event but POLLHUP, which is always reported
        async with asyncio.timeout(deadline_s):
            await readable(reaped.fileno())


@contextlib.contextmanager
def duplicate(pidfd: int) -> Iterator[int]:
    """A descriptor of one's own, whatever the owner does; -1 if there is none."""
    try:
        own = os.dup(pidfd)
    except OSError:
        own = -1
    try:
        yield own
    finally:
        if own >= 0:
            os.close(own)
