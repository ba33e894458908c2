"""System calls that Python has no name for, each as a function that raises OSError naming the call and its object.

Owns nothing. Flags are spelled out here, as they are the same on all architectures; the numbers are in `syscall_table`. ctypes
costs under a microsecond a call more than C (measured), and needs no compiler.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import os
import struct
from collections.abc import Mapping

from sockd.linux.syscall_table import NUMBERS

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000

_SCHED_ATTR = struct.Struct("=IIQiIQQQ")
"""size, policy, flags, nice, priority, runtime, deadline, period: struct sched_attr as it was first."""
_SCHED_FLAG_RESET_ON_FORK = 1
_CLOSE_RANGE_CLOEXEC = 4
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MOVE_MOUNT_T_EMPTY_PATH = 0x40
_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_FLAG, _FSCONFIG_SET_STRING, _FSCONFIG_SET_FD, _FSCONFIG_CMD_CREATE = 0, 1, 5, 6
FileSystemOptions = Mapping[str, str | int | None]
"""A string is set as a string, an integer as a file descriptor, None as a flag (fsconfig(2))."""

CLONE_FS = 0x00000200
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

PR_SET_PDEATHSIG = 1
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 47, 2
_CAPABILITY_VERSION_3 = 0x20080522


class MountFlag(enum.IntFlag):
    """Flags of mount(2)."""

    RDONLY = 1
    NOSUID = 2
    NODEV = 4
    NOEXEC = 8
    REMOUNT = 32
    BIND = 4096
    REC = 16384
    PRIVATE = 1 << 18
    NONE = 0


class MountAttr(enum.IntFlag):
    """Attributes of mount_setattr(2) and fsmount(2)."""

    RDONLY = 0x1
    NOSUID = 0x2
    NODEV = 0x4
    NOEXEC = 0x8
    IDMAP = 0x00100000
    NONE = 0


def _check(result: int, call: str, subject: object = "") -> int:
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{call}: {os.strerror(errno)}", str(subject))
    return result


def _call(call: str, subject: object, *args: object) -> int:
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in args]
    return _check(_syscall(ctypes.c_long(NUMBERS[call]), *values), call, subject)


SHORTEST_SLICE_NS = 100_000
"""The least that the kernel takes for a time slice."""


def set_time_slice(slice_ns: int, *, inherited: bool = False) -> None:
    """Have the calling thread run for so long at a time where others want the processor; its children are as ever,
    unless they are to inherit that.

    Since Linux 6.12 a thread that wakes up may run before one that has a longer slice; on older kernels this changes nothing."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    flags = 0 if inherited else _SCHED_FLAG_RESET_ON_FORK
    attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, os.SCHED_OTHER, flags, nice, 0, slice_ns, 0, 0)
    _call("sched_setattr", "", 0, attributes, 0)


def time_slice_ns() -> int:
    """The calling thread's; 0 where the kernel does not tell."""
    attributes = ctypes.create_string_buffer(_SCHED_ATTR.size)
    _call("sched_getattr", "", 0, attributes, _SCHED_ATTR.size, 0)
    return int(_SCHED_ATTR.unpack(attributes.raw)[5])


def mount(source: str, target: str, fstype: str | None, flags: MountFlag, data: str | None = None) -> None:
    """mount(2)."""
    result = _libc.mount(
        source.encode(),
        target.encode(),
        fstype.encode() if fstype else None,
        ctypes.c_ulong(flags),
        data.encode() if data else None,
    )
    _check(result, f"mount({flags!r})", target)


def umount(target: str, *, detach: bool = True) -> None:
    """umount2(2); detached, it leaves the name at once and the mount with its last user."""
    _check(_libc.umount2(target.encode(), 2 if detach else 0), "umount2", target)


def pivot_root(new_root: str, put_old: str) -> None:
    """pivot_root(2)."""
    _call("pivot_root", new_root, new_root.encode(), put_old.encode())


def unshare(flags: int) -> None:
    """unshare(2), for the calling thread."""
    _check(_libc.unshare(ctypes.c_int(flags)), f"unshare({flags:#x})")


def setns(fd: int, kind: int) -> None:
    """setns(2): move the calling thread into the namespace that `fd` stands for. Args: kind: a CLONE_NEW* flag."""
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(kind)), "setns", fd)


def prctl(option: int, argument: int, second: int = 0) -> None:
    """prctl(2) with one argument or two."""
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(argument), ctypes.c_ulong(second), zero, zero), "prctl")


def keep_across_exec(capabilities: int) -> None:
    """Have these capabilities, and after an exec by whatever uid, too: permitted, inheritable and ambient (capabilities(7)).

    Args: capabilities: bits; those that this kernel does not know are none. Raises: OSError."""
    low, high = capabilities & 0xFFFFFFFF, capabilities >> 32
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _call("capset", "", header, struct.pack("=6I", low, low, low, high, high, high))
    for capability in range(64):
        if capabilities >> capability & 1:
            try:
                prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)
            except OSError as error:
                if error.errno != errno.EINVAL:  # the first that this kernel does not know
                    raise
                return


def close_on_exec_from(first_fd: int) -> None:
    """Mark every open descriptor from `first_fd` on close-on-exec (close_range(2), CLOSE_RANGE_CLOEXEC)."""
    _call("close_range", first_fd, first_fd, 0x7FFFFFFF, _CLOSE_RANGE_CLOEXEC)


def open_tree(directory_fd: int, path: str, *, recursive: bool) -> int:
    """A detached copy of the mount at `path` (open_tree(2), OPEN_TREE_CLONE); an fd, close-on-exec.

    The copy is in no mount table and has no parent; it lives as long as the fd, or as a process has its root in it."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC
    flags |= (AT_RECURSIVE if recursive else 0) | (0 if path else AT_EMPTY_PATH)
    return _call("open_tree", path or directory_fd, directory_fd, path.encode(), flags)


def move_mount(mount_fd: int, directory_fd: int, path: str) -> None:
    """Attach a detached mount at `path` under directory_fd (move_mount(2)); into a detached tree it needs Linux 6.15."""
    flags = _MOVE_MOUNT_F_EMPTY_PATH | (0 if path else _MOVE_MOUNT_T_EMPTY_PATH)
    _call("move_mount", path, mount_fd, b"", directory_fd, path.encode(), flags)


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def mount_setattr(mount_fd: int, attributes: MountAttr, *, recursive: bool, user_namespace: int = 0) -> None:
    """Add attributes to a mount, or to a tree of them (mount_setattr(2)). Args: user_namespace: an fd, with IDMAP."""
    attr = _MountAttr(attributes, 0, 0, user_namespace)
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    size = ctypes.sizeof(attr)
    _call("mount_setattr", mount_fd, mount_fd, b"", flags, ctypes.byref(attr), size)


def new_filesystem(fstype: str, options: FileSystemOptions, attributes: MountAttr) -> int:
    """A new file system as a detached mount (fsopen(2), fsconfig(2), fsmount(2)); an fd, close-on-exec."""
    context = _call("fsopen", fstype, fstype.encode(), _FSOPEN_CLOEXEC)
    try:
        for key, value in options.items():
            if value is None:
                _call("fsconfig", key, context, _FSCONFIG_SET_FLAG, key.encode(), 0, 0)
            elif isinstance(value, int):
                _call("fsconfig", key, context, _FSCONFIG_SET_FD, key.encode(), 0, value)
            else:
                _call("fsconfig", key, context, _FSCONFIG_SET_STRING, key.encode(), value.encode(), 0)
        _call("fsconfig", fstype, context, _FSCONFIG_CMD_CREATE, 0, 0, 0)
        return _call("fsmount", fstype, context, _FSMOUNT_CLOEXEC, int(attributes))
    finally:
        os.close(context)
