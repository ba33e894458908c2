"""The system calls that a Zygote and its children make and that Python has no name for.

Owns nothing. Every function raises OSError with the name of the call. ctypes rather than a C extension: the difference
is under a microsecond a call, and there is nothing to compile on the user's machine.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct

CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
_CLONE_PIDFD = 0x00001000
_CLONE_CHILD_CLEARTID = 0x00200000
_CLONE_CHILD_SETTID = 0x01000000

_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_PR_SET_NO_NEW_PRIVS = 38
_PR_GET_TID_ADDRESS = 40
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_SECCOMP_MODE_FILTER = 2
_SYS_CLONE = 56
_SYS_CAPSET = 126
_SYS_PRCTL = 157
_SYS_CLOSE_RANGE = 436
_CAPABILITY_VERSION_3 = 0x20080522

CAP_SETGID = 6
CAP_SETUID = 7
_CAP_LAST = 40

# SECBIT_NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE, each with its lock bit: uid 0 means nothing, for good.
_SECUREBITS_LOCKED = 0x01 | 0x02 | 0x04 | 0x08 | 0x40 | 0x80

# SAFETY: PyDLL keeps the GIL, so no other Python thread runs between clone() and PyOS_AfterFork_Child().
_libc = ctypes.PyDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def _check(result: int, call: str) -> int:
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{call}: {os.strerror(errno)}")
    return result


def _tid_address() -> ctypes.c_void_p:
    """Where glibc keeps this thread's id: clone must write the child's there, or pthread calls in the child lie."""
    address = ctypes.c_void_p()
    _check(_prctl(_PR_GET_TID_ADDRESS, ctypes.addressof(address), 0, 0, 0), "prctl(PR_GET_TID_ADDRESS)")
    return address


class NotJoined(Exception):
    """A child could not join its cgroups. Not an OSError, so that nobody takes it for the parent's failure to clone."""


def clone(namespaces: int, procs_fds: list[int]) -> tuple[int, int]:
    """Fork this process into new namespaces; like os.fork(), it returns twice. The child's first act is to join its
    cgroups, so that what it touches from then on is charged to it: "0" is the writer itself (cgroups(7)).

    os.fork() would need unshare(CLONE_NEWPID) and a setns() back, which a Zygote without capabilities over the farm's pid
    namespace may not do (pid_namespaces(7)). A raw clone skips glibc's pthread_atfork handlers; a Zygote is therefore
    single-threaded or judged by its canary (DESIGN 4, Forking). clone(2), not clone3: seccomp can read its flags.

    Args:
        namespaces: CLONE_NEW* flags; procs_fds: open cgroup.procs files.
    Returns: (pid, pidfd) in the parent, (0, -1) in the child.
    Raises: OSError, in the parent only; NotJoined, in the child only: it must end."""
    pidfd = ctypes.c_int(-1)
    flags = namespaces | _CLONE_PIDFD | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | signal.SIGCHLD
    api = ctypes.pythonapi
    api.PyOS_BeforeFork()
    pid = _syscall(
        ctypes.c_long(_SYS_CLONE),
        ctypes.c_ulong(flags),
        ctypes.c_void_p(0),
        ctypes.byref(pidfd),
        _TID,
        ctypes.c_long(0),
    )
    if pid == 0:
        try:
            for fd in procs_fds:
                os.write(fd, b"0")
        except OSError as error:
            raise NotJoined(f"joining its cgroups: {error}") from None
        finally:
            api.PyOS_AfterFork_Child()
        return 0, -1
    errno = ctypes.get_errno()
    api.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(errno, f"clone: {os.strerror(errno)}")
    return pid, pidfd.value


_TID = _tid_address()


def write_id_maps(pid: int, *, inside: int, outside: int, count: int) -> None:
    """Map `count` uids and gids of a child's new user namespace (user_namespaces(7)); `outside` is as seen from here."""
    line = b"%d %d %d" % (inside, outside, count)
    for name in ("uid_map", "gid_map"):
        fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


_DROPS = [
    tuple(ctypes.c_long(value) for value in (_SYS_PRCTL, _PR_CAPBSET_DROP, capability, 0, 0, 0))
    for capability in range(_CAP_LAST + 1)
]
"""The arguments of each call, made before the fork: 41 calls are 50 us quicker than through a conversion each."""


def drop_bounding_set(keep: tuple[int, ...] = ()) -> None:
    """Empty the capability bounding set, but for `keep`. A new user namespace starts with a full one (capabilities(7))."""
    for capability, arguments in enumerate(_DROPS):
        if capability not in keep:
            _syscall(*arguments)  # EINVAL for one that this kernel does not know, or lacks


class Capabilities:
    """The sets that `apply` reduces a process to: effective and permitted as given, inheritable and ambient empty.

    Built before the fork: every object that a child makes for itself is a page it must copy."""

    def __init__(self, keep: tuple[int, ...] = ()) -> None:
        bits = sum(1 << capability for capability in keep)
        self._data = (_CapData * 2)(_CapData(bits, bits, 0), _CapData(0, 0, 0))
        self._header = _CapHeader(_CAPABILITY_VERSION_3, 0)
        self._arguments = ctypes.c_long(_SYS_CAPSET), ctypes.byref(self._header), ctypes.byref(self._data)

    def apply(self) -> None:
        _check(_prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl(PR_CAP_AMBIENT)")
        _check(_syscall(*self._arguments), "capset")


NO_CAPABILITIES = Capabilities()


def lock_securebits() -> None:
    """Make uid 0 an ordinary uid for this process and its descendants. Needs CAP_SETPCAP."""
    _check(_prctl(_PR_SET_SECUREBITS, _SECUREBITS_LOCKED, 0, 0, 0), "prctl(PR_SET_SECUREBITS)")


def set_no_new_privs() -> None:
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def set_dumpable() -> None:
    """Give this process its own /proc files back: a changed uid turns them root's (prctl(2), PR_SET_DUMPABLE)."""
    _check(_prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


class _SockFprog(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


class SeccompFilter:
    """A compiled filter, kept where the kernel can copy it from: building one in the child would cost it 4x (measured)."""

    def __init__(self, program: bytes) -> None:
        self._program = ctypes.create_string_buffer(program, len(program))
        self._fprog = _SockFprog(len(program) // 8, ctypes.addressof(self._program))

    def install(self) -> None:
        """Apply the filter to this process for good. Needs no_new_privs."""
        address = ctypes.addressof(self._fprog)
        _check(_prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, address, 0, 0), "prctl(PR_SET_SECCOMP)")


def close_fds_from(first: int) -> None:
    """Close every file descriptor from `first` on (close_range(2)); os.closerange would try each number."""
    last = ctypes.c_uint(0xFFFFFFFF)
    _check(_syscall(ctypes.c_long(_SYS_CLOSE_RANGE), ctypes.c_uint(first), last, ctypes.c_uint(0)), "close_range")


def chroot_to(root_fd: int) -> None:
    """Make the detached mount tree behind root_fd this process's root. It has no parent mount, so `..` ends there."""
    os.fchdir(root_fd)
    os.chroot(".")


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
    """One datagram with file descriptors beside it."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
    control.sendmsg([data], rights)
