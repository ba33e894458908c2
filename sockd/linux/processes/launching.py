"""What a launcher does before it forks: a process that root exec'd to become the parent of one that runs less trusted code.

For processes of their own, single-threaded, exec'd for this; the daemon itself never comes here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from sockd.linux import syscalls
from sockd.linux.syscalls import MountFlag

NAMESPACES = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS


def die_with_parent() -> None:
    """SIGKILL for this process when its parent's thread ends (prctl(2)); a change of ids clears it again.

    Had the parent ended before, its wire says so."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)


def enter(tree: str, *, scratch_fd: int, procs_fds: Iterable[int], more_namespaces: int = 0) -> None:
    """Into the cgroups, into namespaces of our own, and onto a tree; the host's is let go of (pivot_root(2), NOTES).

    Args:
        tree: a mount; scratch_fd: a detached tmpfs for its /tmp; procs_fds: cgroup.procs files, open for writing.
    Raises: OSError naming the call."""
    for fd in procs_fds:
        os.write(fd, b"0")
    syscalls.unshare(NAMESPACES | more_namespaces)
    syscalls.mount("none", "/", None, MountFlag.REC | MountFlag.PRIVATE)
    os.chdir(tree)  # noqa: TID251  a process of its own
    syscalls.pivot_root(".", ".")
    syscalls.umount(".")
    os.chdir("/")  # noqa: TID251
    syscalls.move_mount(scratch_fd, syscalls.AT_FDCWD, "/tmp")
