"""The root of one sandbox: a detached copy of the base with a /tmp of its own, the function's code, and a /proc.

Owns the tree's fd. The tree is in no mount table; the kernel frees it with its last user, so a SIGKILL of the daemon
leaves none (measured: 7.5 µs to make, against 14.5 ms for a mount namespace on a host with 10 000 mounts). A late root
gets its code and its /proc when the process is there already; an early one has all it will ever have (`assembly`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Protocol

from sockd.images import base
from sockd.images.program import Limits, Program
from sockd.kernel import mounts, pidfds, syscalls


class Template(Protocol):
    """The tree that late roots are copies of: the host's software, or an image."""

    at: tuple[int, str]
    """Where its mount is: a directory's descriptor and a path from it, or a detached mount's and nothing."""

    @property
    def resolv_conf_fd(self) -> int:
        """The mount that sandboxes with a private network have at RESOLV_CONF. Raises: OSError."""


class Root(ABC):
    """A detached root; `fd` is what a Zygote's child gets to chroot into. Afterwards, in this order: `mount_proc` when the
    process is there, `mount_resolv_conf` and `replace_tmp` perhaps, `mount_code` when it is to become a function; processes
    inside see it at once."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.spent: list[int] = []
        """Mounts that it was made from and that it needs no more. Closing one is an unmount, which waits for an RCU grace period
        (up to 6 ms where processors are few): whoever takes one from here has the launcher close it."""

    @abstractmethod
    def mount_proc(self, pidfd: int) -> None:
        """See that the process has a /proc. Raises: OSError(ESRCH) when it is gone."""

    @abstractmethod
    def mount_resolv_conf(self) -> None:
        """See that names are asked of a private network's own nameserver. Raises: OSError."""

    @abstractmethod
    def replace_tmp(self, limits: Limits) -> None:
        """A new /tmp of another size over the old, which nobody has used yet (a spare becomes a function)."""

    @abstractmethod
    def mount_code(self, program: Program) -> None:
        """See that the function's code is at /var/task, if it has any of its own."""

    def give_up(self) -> int:
        """The tree's fd, the caller's from now on."""
        fd, self.fd = self.fd, -1
        return fd

    def close(self) -> None:
        """Let go of the tree; safe to call twice."""
        fd = self.give_up()
        if fd >= 0:
            os.close(fd)
        while self.spent:
            os.close(self.spent.pop())


class LateRoot(Root):
    """One that is mounted into while it is detached and in use (Linux 6.15; its procfs: 6.18)."""

    def __init__(self, fd: int, template: Template) -> None:
        super().__init__(fd)
        self._template = template

    @classmethod
    def create(cls, template: Template, limits: Limits) -> LateRoot:
        """Clone a template and give it a private /tmp. Raises: OSError naming the call."""
        root = cls(syscalls.open_tree(*template.at, recursive=True), template)
        try:
            root.replace_tmp(limits)
        except BaseException:
            root.close()
            raise
        return root

    def mount_proc(self, pidfd: int) -> None:
        """The procfs of the sandbox's own pid namespace."""
        namespace = pidfds.pid_namespace(pidfd)
        with mounts.owned(namespace):
            mounts.attach_procfs(self.fd, base.PROC, namespace)

    def mount_resolv_conf(self) -> None:
        mounts.attach_copy(self._template.resolv_conf_fd, self.fd, base.RESOLV_CONF)

    def replace_tmp(self, limits: Limits) -> None:
        mounts.attach_tmpfs(self.fd, base.TMP, size_bytes=limits.tmp_bytes, inodes=limits.tmp_inodes)

    def mount_code(self, program: Program) -> None:
        if program.code is not None:  # an image has its own
            mounts.attach_copy(program.code_fd, self.fd, base.CODE)


class EarlyRoot(Root):
    """One that was complete before the process was forked: nothing is mounted any more, on any kernel."""

    def __init__(self, fd: int, program: Program | None) -> None:
        super().__init__(fd)
        self._program = program

    def mount_proc(self, pidfd: int) -> None:
        return

    def mount_resolv_conf(self) -> None:
        return

    def replace_tmp(self, limits: Limits) -> None:
        raise NotImplementedError("an early root is made for one function: it has no spares")

    def mount_code(self, program: Program) -> None:
        if program is not self._program:
            raise NotImplementedError("an early root is made for one function")
