"""Probes: whether this kernel lets us do what a sandbox is made of, found out by doing it once.

    python -m sockd.cli.probes NAME

Owns nothing: each runs in a process of its own, in a private mount namespace, because namespaces are entered for good.
Exit status 0 is yes; otherwise the last line of stderr has the kernel's words.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from sockd.kernel import mounts, syscalls
from sockd.kernel.syscalls import MountAttr

_CLONE_NEWUSER = 0x10000000  # os.CLONE_NEWUSER since Python 3.12.
_SANDBOX_NAMESPACES = _CLONE_NEWUSER | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS


def detached_tree() -> None:
    """Mount into a tree that is attached nowhere (Linux 6.15)."""
    tree = syscalls.new_filesystem("tmpfs", {}, MountAttr.NONE)
    with mounts.owned(tree):
        os.mkdir("tmp", dir_fd=tree)
        mounts.attach_tmpfs(tree, "tmp", size_bytes=1 << 20, inodes=16)


def foreign_procfs() -> None:
    """Make the procfs of a pid namespace from outside of it (Linux 6.18)."""
    namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    with mounts.owned(namespace):
        os.close(syscalls.new_filesystem("proc", {"pidns": namespace}, MountAttr.NONE))


def sandbox_namespaces() -> None:
    """Enter a sandbox's namespaces, and from there, no longer root of the host, a user namespace within.

    The second step is a Zygote's: AppArmor lets it succeed and takes the capabilities away, so one is used."""
    _enter_as_root(_SANDBOX_NAMESPACES)
    _enter_as_root(_CLONE_NEWUSER | syscalls.CLONE_NEWUTS)
    socket.sethostname("sandbox")


def _enter_as_root(namespaces: int) -> None:
    """Be root in a new user namespace, mapped from whoever we are (user_namespaces(7))."""
    ids = {"uid_map": os.geteuid(), "gid_map": os.getegid()}
    syscalls.unshare(namespaces)
    Path("/proc/self/setgroups").write_text("deny")
    for name, outside in ids.items():
        Path("/proc/self", name).write_text(f"0 {outside} 1")


PROBES: dict[str, Callable[[], None]] = {
    "detached_tree": detached_tree,
    "foreign_procfs": foreign_procfs,
    "sandbox_namespaces": sandbox_namespaces,
}


def main(name: str) -> None:
    """Run one probe. Raises OSError: no."""
    mounts.enter_private_namespace()
    PROBES[name]()


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except OSError as error:
        sys.exit(str(error))
