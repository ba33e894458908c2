"""The system calls that a Zygote makes and that Python has no name for, and control messages with descriptors.

Owns nothing. Every function raises OSError with the name of the call.
"""

from __future__ import annotations

import os
import socket
import struct

try:
    from sockd_zygote import _native
except ImportError as error:
    raise ImportError("sockd's C extension is not built for this interpreter: run `make setup`") from error

CAP_SETGID = 6
CAP_SETUID = 7


def drop_bounding_set(keep: tuple[int, ...] = ()) -> None:
    """Empty the capability bounding set, but for `keep`. A new user namespace starts with a full one (capabilities(7))."""
    _native.drop_bounding_set(bits(keep))


def keep_capabilities(keep: tuple[int, ...] = ()) -> None:
    """Reduce the effective and permitted sets to `keep`; inheritable and ambient become empty."""
    _native.set_capabilities(bits(keep))


def bits(capabilities: tuple[int, ...]) -> int:
    return sum(1 << capability for capability in capabilities)


def lock_securebits() -> None:
    """Make uid 0 an ordinary uid for this process and its descendants. Needs CAP_SETPCAP."""
    _native.lock_securebits()


def set_no_new_privs() -> None:
    _native.set_no_new_privs()


def install_filter(program: bytes) -> None:
    """Apply a seccomp filter to this process for good. Needs no_new_privs."""
    _native.install_filter(program)


def set_dumpable() -> None:
    """Give this process its own /proc files back: a changed uid turns them root's (prctl(2), PR_SET_DUMPABLE)."""
    _native.set_dumpable()


def close_fds_between(first: int, last: int) -> None:
    """As `close_fds_from`, up to `last`; none if that is before the first."""
    if first <= last:
        _native.close_fds_from(first, last)


def close_fds_from(first: int) -> None:
    """Close every file descriptor from `first` on (close_range(2)); os.closerange would try each number."""
    _native.close_fds_from(first)


def receive(control: socket.socket, buffer: bytearray, max_fds: int) -> tuple[bytes, list[int]]:
    """One datagram and the file descriptors in it, close-on-exec (socket.recv_fds drops the flag on 3.11-3.13).

    Args: buffer: as long as the longest message, and used again for each: a new one would be mapped and unmapped each time.
    Raises: OSError(EMSGSIZE) for a message or a set of descriptors that was cut; those that came are closed."""
    flags = socket.MSG_CMSG_CLOEXEC
    count, ancillary, result_flags, _ = control.recvmsg_into([buffer], socket.CMSG_SPACE(4 * max_fds), flags)
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds += memoryview(payload[: len(payload) // 4 * 4]).cast("i").tolist()
    if result_flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for fd in fds:
            os.close(fd)
        raise OSError(90, "recvmsg: message was cut")
    return bytes(memoryview(buffer)[:count]), fds


def send(control: socket.socket, data: bytes, fds: tuple[int, ...] = ()) -> None:
    """One datagram with the file descriptors attached to it."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
    control.sendmsg([data], rights)
