"""User namespaces without a process, for id maps of mounts (mount_setattr(2), MOUNT_ATTR_IDMAP).

A namespace comes into being with a process only. Here that is a child which shares the daemon's memory and runs nothing but
_exit(2), on a stack of its own, as after vfork(2): no memory is copied, no Python runs in it, and the calling thread goes on at
its end. Its maps are written, and its namespace is opened, before it is reaped. Owns nothing; the caller owns the descriptor.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from sockd.kernel import signals, syscalls

Extent = tuple[int, int, int]
"""First id inside, first id outside, how many: a line of uid_map (user_namespaces(7))."""

_libc = ctypes.CDLL(None, use_errno=True)
_EXIT = ctypes.cast(_libc._exit, ctypes.c_void_p)
_STACK_BYTES = 64 * 1024
_CLONE_VM, _CLONE_VFORK = 0x00000100, 0x00004000
_WALL = 0x40000000
"""waitid(2): children that send no signal when they end, too; so no handler of SIGCHLD learns of ours."""


def new(uids: Iterable[Extent], gids: Iterable[Extent]) -> int:
    """A namespace with these extents as its uid map and its gid map; an fd, close-on-exec. Raises: OSError naming the call."""
    pid = _ended_child(syscalls.CLONE_NEWUSER)
    try:
        for name, extents in (("uid_map", uids), ("gid_map", gids)):
            lines = "".join(f"{inside} {outside} {count}\n" for inside, outside, count in extents).encode()
            fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, lines)
            finally:
                os.close(fd)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.waitid(os.P_PID, pid, os.WEXITED | _WALL)


def _ended_child(flags: int) -> int:
    """The number of a child that has ended and waits to be reaped."""
    stack = ctypes.create_string_buffer(_STACK_BYTES)
    top = (ctypes.addressof(stack) + _STACK_BYTES) & ~15
    flags |= _CLONE_VM | _CLONE_VFORK
    with signals.blocked():  # one to the process group would run Python's handler in the child, in our memory
        pid = int(_libc.clone(_EXIT, ctypes.c_void_p(top), ctypes.c_int(flags), None))
        error = ctypes.get_errno()
    if pid < 0:
        raise OSError(error, f"clone(CLONE_NEWUSER): {os.strerror(error)}")
    return pid
