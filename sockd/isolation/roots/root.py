"""The root of one sandbox: a copy of the base with a /tmp of its own, the function's code, and a /proc.

Owns the descriptors of the tree. The host's mount table has none of it; the kernel frees it with its last user, so a SIGKILL of
the daemon leaves none (measured: 40 µs to make detached with its /tmp, 60 in a mount namespace that is copied from one with the
base alone, 14.5 ms in one that is copied from a host's with 10 000 mounts). It gets its code and its /proc when the process is
there already.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Protocol

from sockd.isolation.roots import base
from sockd.isolation.roots.program import Limits, Program
from sockd.linux import mounts, syscalls
from sockd.linux.mount_namespaces import MountNamespaces
from sockd.linux.procfs import Procfs


class Template(Protocol):
    """The tree that detached roots are copies of: the host's software, or an image."""

    at: tuple[int, str]
    """Where its mount is: a directory's descriptor and a path from it, or a detached mount's and nothing."""

    @property
    def resolv_conf_fd(self) -> int:
        """The mount that sandboxes with a private network have at RESOLV_CONF. Raises: OSError."""


class Root(ABC):
    """A root; `fd` is what a Zygote's child gets to chroot into. Afterwards, in this order: `mount_proc` when the
    process is there, `mount_resolv_conf` and `replace_tmp` perhaps, `mount_code` when it is to become a function; processes
    inside see it at once."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.spent: list[int] = []
        """Mounts that it was made from and that it needs no more. Closing one is an unmount, which waits for an RCU grace
        period (up to 6 ms where processors are few): the caller that takes one from here has the launcher close it."""

    @abstractmethod
    async def mount_proc(self, pidfd: int, *, only_own: bool = False) -> None:
        """The procfs of the process's pid namespace. Args: only_own: each process sees only those that it may trace.

        Raises: OSError(ESRCH) when it is gone."""

    @abstractmethod
    def mount_resolv_conf(self) -> None:
        """See that names are asked of a private network's own nameserver. Raises: OSError."""

    @abstractmethod
    def replace_tmp(self, limits: Limits) -> None:
        """A new /tmp of another size over the old, which is not in use yet (a spare becomes a function)."""

    @abstractmethod
    def mount_code(self, program: Program) -> None:
        """See that the function's code is at /var/task, if it has any of its own."""

    def forked(self) -> None:
        """The process has it: let go of what only the fork needed."""
        return

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


class DetachedRoot(Root):
    """One that is mounted into while it is detached and in use (Linux 6.15)."""

    def __init__(self, fd: int, template: Template, procfs: Procfs) -> None:
        super().__init__(fd)
        self._template = template
        self._procfs = procfs

    @classmethod
    def create(cls, template: Template, limits: Limits, procfs: Procfs) -> DetachedRoot:
        """Clone a template and give it a private /tmp. Raises: OSError naming the call."""
        root = cls(syscalls.open_tree(*template.at, recursive=True), template, procfs)
        try:
            root.replace_tmp(limits)
        except BaseException:
            root.close()
            raise
        return root

    async def mount_proc(self, pidfd: int, *, only_own: bool = False) -> None:
        mounts.attach(await self._procfs.new(pidfd, only_own=only_own), self.fd, base.PROC)

    def mount_resolv_conf(self) -> None:
        mounts.attach_copy(self._template.resolv_conf_fd, self.fd, base.RESOLV_CONF)

    def replace_tmp(self, limits: Limits) -> None:
        mounts.attach_tmpfs(self.fd, base.TMP, size_bytes=limits.tmp_bytes, inodes=limits.tmp_inodes)

    def mount_code(self, program: Program) -> None:
        if program.code is not None:  # an image has its own
            mounts.attach_copy(program.code_fd, self.fd, base.CODE)


class AttachedRoot(Root):
    """One in a mount namespace of its own, which is there as long as this."""

    def __init__(self, fd: int, namespace: int, resolv_conf: str, namespaces: MountNamespaces, procfs: Procfs) -> None:
        """Args: fd, namespace: owned from now on; resolv_conf: what is mounted for a private network."""
        super().__init__(fd)
        self._namespace = namespace
        self._resolv_conf = resolv_conf
        self._namespaces = namespaces
        self._procfs = procfs

    async def mount_proc(self, pidfd: int, *, only_own: bool = False) -> None:
        self._attach(await self._procfs.new(pidfd, only_own=only_own), base.PROC)

    def mount_resolv_conf(self) -> None:
        self._attach(mounts.sealed_copy(self._resolv_conf), base.RESOLV_CONF)

    def replace_tmp(self, limits: Limits) -> None:
        self._attach(mounts.new_tmp(size_bytes=limits.tmp_bytes, inodes=limits.tmp_inodes), base.TMP)

    def mount_code(self, program: Program) -> None:
        if program.code is not None:
            self._attach(mounts.sealed_copy(str(program.code)), base.CODE)

    def forked(self) -> None:
        mounts.close_all([super().give_up()])

    def give_up(self) -> int:
        """The namespace's descriptor, the caller's from now on: with its last one the mounts come apart."""
        mounts.close_all([super().give_up()])
        namespace, self._namespace = self._namespace, -1
        return namespace

    def _attach(self, mount: int, path: str) -> None:
        self._namespaces.attach(mount, self._namespace, f"/{path}")
