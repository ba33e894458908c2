"""A child that has ended before it ran anything, and waits to be reaped.

It shares the daemon's memory and runs nothing but _exit(2), on a stack of its own, as after vfork(2): no memory is copied, no
Python runs in it, and the calling thread goes on at its end. Owns nothing; the caller reaps it.
"""

from __future__ import annotations

import ctypes
import os

from sockd.linux import signals

_libc = ctypes.CDLL(None, use_errno=True)
_EXIT = ctypes.cast(_libc._exit, ctypes.c_void_p)
_STACK_BYTES = 64 * 1024
_CLONE_VM, _CLONE_VFORK = 0x00000100, 0x00004000
_WALL = 0x40000000
"""waitid(2): children that send no signal when they end, too; so no handler of SIGCHLD learns of ours."""


def make(namespaces: int = 0) -> int:
    """The number of a child that has ended. Args: namespaces: those that it has of its own. Raises: OSError."""
    stack = ctypes.create_string_buffer(_STACK_BYTES)
    top = (ctypes.addressof(stack) + _STACK_BYTES) & ~15
    flags = namespaces | _CLONE_VM | _CLONE_VFORK
    with signals.blocked():  # one to the process group would run Python's handler in the child, in our memory
        pid = int(_libc.clone(_EXIT, ctypes.c_void_p(top), ctypes.c_int(flags), None))
        error = ctypes.get_errno()
    if pid < 0:
        raise OSError(error, f"clone({namespaces:#x}): {os.strerror(error)}")
    return pid


def reap(pid: int) -> None:
    """Reap one; its number is free again."""
    os.waitid(os.P_PID, pid, os.WEXITED | _WALL)
