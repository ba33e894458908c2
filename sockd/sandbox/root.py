"""The root of one sandbox: a detached copy of the base with a /tmp of its own, then the function's code, then its /proc.

Owns the tree's fd. The tree is in no mount table; the kernel frees it with its last user, so a SIGKILL of the daemon
leaves none (measured: 7.5 µs to make, against 14.5 ms for a mount namespace on a host with 10 000 mounts).
"""

from __future__ import annotations

import os

from sockd.kernel import mounts, pidfds, syscalls
from sockd.sandbox import base


class Root:
    """A detached root; `fd` is what a Zygote's child gets to chroot into."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def create(cls, template: base.Base, *, tmp_bytes: int, tmp_inodes: int) -> Root:
        """Clone the base and give it a private /tmp. Raises: OSError naming the call."""
        root = cls(syscalls.open_tree(syscalls.AT_FDCWD, str(template.path), recursive=True))
        try:
            mounts.attach_tmpfs(root.fd, base.TMP, size_bytes=tmp_bytes, inodes=tmp_inodes)
        except BaseException:
            root.close()
            raise
        return root

    def replace_tmp(self, *, tmp_bytes: int, tmp_inodes: int) -> None:
        """A new /tmp of another size over the old, which nobody has used yet (a spare becomes a function)."""
        mounts.attach_tmpfs(self.fd, base.TMP, size_bytes=tmp_bytes, inodes=tmp_inodes)

    def mount_code(self, code_fd: int) -> None:
        """Put the function's code, a sealed detached mount, at /var/task; processes inside see it at once."""
        mounts.attach_copy(code_fd, self.fd, base.CODE)

    def mount_proc(self, pidfd: int) -> None:
        """Give the sandbox the procfs of its own pid namespace. Raises: OSError(ESRCH) when the process is gone."""
        namespace = pidfds.pid_namespace(pidfd)
        with mounts.owned(namespace):
            mounts.attach_procfs(self.fd, base.PROC, namespace)

    def close(self) -> None:
        """Let go of the tree; safe to call twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
