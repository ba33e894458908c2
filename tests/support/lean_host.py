"""A program on a host that lacks something: python -m tests.support.lean_host LACKS... -- COMMAND

    fuse        no /dev/fuse
    loop        no /dev/loop-control, and no loop device
    nf_tables   no netlink family of netfilter, as of a kernel without it

Owns nothing: devices are hidden in a mount namespace of the program's own, the netlink family by a seccomp filter.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
import sys
from collections.abc import Callable, Sequence

from sockd.linux import mounts, syscalls
from sockd.linux.network.netlink import NETFILTER
from sockd.linux.seccomp.compiler import RET_ALLOW, SOCK_FILTER, Switch, compile_filter, refused
from sockd.linux.syscall_table import NUMBERS

SEPARATOR = "--"
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def command_without(lacking: Sequence[str], command: Sequence[str]) -> tuple[str, ...]:
    """The command that runs another one on a host that lacks something."""
    return (sys.executable, "-m", "tests.support.lean_host", *lacking, SEPARATOR, *command)


def hide_devices(prefix: str) -> None:
    """Have a /dev without the devices whose names begin so."""
    with mounts.owned(os.open("/dev", os.O_PATH | os.O_DIRECTORY)) as host:
        mounts.mount_tmpfs("/dev", size_bytes=1 << 20, flags=syscalls.MountFlag.NOSUID)
        for entry in os.scandir(f"/proc/self/fd/{host}"):
            status = entry.stat(follow_symlinks=False)
            target = f"/dev/{entry.name}"
            if entry.name.startswith(prefix):
                continue
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), target)
            elif entry.is_dir():
                os.mkdir(target)
                mounts.bind_tree(entry.path, target)
            elif stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                os.mknod(target, status.st_mode, status.st_rdev)
                os.chmod(target, stat.S_IMODE(status.st_mode))


def hide_netfilter() -> None:
    """Have socket(2) refuse netlink's family of netfilter, in this process and its children."""
    of_family = Switch(2, ((NETFILTER, refused(errno.EPROTONOSUPPORT)),), RET_ALLOW)
    of_socket = Switch(0, ((socket.AF_NETLINK, of_family),), RET_ALLOW)
    code = compile_filter(list(NUMBERS), checks={"socket": of_socket}, otherwise=errno.ENOSYS)
    program = _Program(len(code) // SOCK_FILTER.size, code)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")


HIDE: dict[str, Callable[[], None]] = {
    "fuse": lambda: hide_devices("fuse"),
    "loop": lambda: hide_devices("loop"),
    "nf_tables": hide_netfilter,
}

if __name__ == "__main__":
    at = sys.argv.index(SEPARATOR)
    mounts.enter_private_namespace()
    for what in sys.argv[1:at]:
        HIDE[what]()
    os.execv(sys.argv[at + 1], sys.argv[at + 1 :])
