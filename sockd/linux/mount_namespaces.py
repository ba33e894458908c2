"""Mount namespaces that hold one tree and nothing else, and the calling thread's way into them and back.

A process that has its root in such a tree finds nothing above it: `..` ends there, as in a detached tree. But mounts can be
attached while it is there, on every kernel, by a thread that is in the namespace for the call.

Owns descriptors of the calling thread's own namespace and root; a namespace is its descriptor's owner's. It
lives as long as a descriptor, or a process that entered it. (A process that only has its root there does not keep it: with the
namespace the mounts come apart.)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sockd.linux import mounts, syscalls

_PATH = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class MountNamespaces:
    """For one thread, whose mount namespace is private. `open`, and `close` at the end."""

    def __init__(self, home: int, root: int, proc: int) -> None:
        self._home = home
        self._root = root
        self._proc = proc

    @classmethod
    def open(cls) -> MountNamespaces:
        """Raises: OSError."""
        opened: list[int] = []
        try:
            opened.append(os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
            for path in ("/", "/proc"):
                opened.append(os.open(path, _PATH))
        except BaseException:
            mounts.close_all(opened)
            raise
        return cls(*opened)

    @contextmanager
    def entered(self, namespace: int) -> Iterator[None]:
        """The calling thread is in a namespace for a block, at its root. Nothing but system calls belongs there.

        Raises: OSError."""
        with mounts.owned(os.open(".", _PATH)) as directory:
            syscalls.unshare(syscalls.CLONE_FS)  # setns(2) takes no thread that shares its root with others
            syscalls.setns(namespace, syscalls.CLONE_NEWNS)
            try:
                yield
            finally:
                self._return(directory)

    def of_tree(self, path: str) -> int:
        """A namespace whose root is a copy of the mount at a path, with all below it; a descriptor. Raises: OSError."""
        with mounts.owned(os.open(".", _PATH)) as directory:
            syscalls.unshare(syscalls.CLONE_NEWNS)  # the thread's root is its own with it
            try:
                os.chdir(path)  # noqa: TID251  this thread's alone
                syscalls.pivot_root(".", ".")
                syscalls.umount(".")
                return self._current()
            finally:
                self._return(directory)

    def copy(self, namespace: int, tmp: int) -> tuple[int, int]:
        """A namespace with a copy of another's tree.

        Args: tmp: a detached mount for its /tmp, closed whatever happens.
        Returns: descriptors of the namespace and of its root. Raises: OSError."""
        with mounts.owned(tmp), self.entered(namespace):
            syscalls.unshare(syscalls.CLONE_NEWNS)
            syscalls.move_mount(tmp, syscalls.AT_FDCWD, "/tmp")
            return self._opened()

    def rebuild(self, namespace: int, build: Callable[[], str]) -> tuple[int, int]:
        """A namespace with another root, which is built in a copy of a namespace's tree; nothing else of that tree stays.

        Args: build: attaches the root in the copy, by system calls alone; its path.
        Returns: descriptors of the namespace and of its root. Raises: OSError."""
        with self.entered(namespace):
            syscalls.unshare(syscalls.CLONE_NEWNS)
            os.chdir(build())  # noqa: TID251  this thread's alone
            syscalls.pivot_root(".", ".")
            syscalls.umount(".")
            return self._opened()

    def attach(self, mount: int, namespace: int, path: str) -> None:
        """Attach a detached mount in a namespace. Args: mount: closed, whatever happens. Raises: OSError."""
        with mounts.owned(mount), self.entered(namespace):
            syscalls.move_mount(mount, syscalls.AT_FDCWD, path)

    def close(self) -> None:
        """Safe to call twice."""
        opened = [self._home, self._root, self._proc]
        self._home = self._root = self._proc = -1
        mounts.close_all(opened)

    def _opened(self) -> tuple[int, int]:
        """Descriptors of the namespace that the thread is in, and of its root."""
        made = self._current()
        try:
            return made, os.open("/", _PATH)
        except BaseException:
            os.close(made)
            raise

    def _current(self) -> int:
        return os.open("thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)

    def _return(self, directory: int) -> None:
        """Back to where this thread was. Where that fails nothing can go on: the host's paths would be a sandbox's."""
        try:
            syscalls.setns(self._home, syscalls.CLONE_NEWNS)
            os.fchdir(self._root)
            os.chroot(".")  # setns(2) leaves a thread at the root of the namespace, where a chroot(2) may not have been
            os.fchdir(directory)
        except OSError:
            os.abort()
