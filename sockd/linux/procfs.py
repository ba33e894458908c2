"""The procfs of another pid namespace, made from outside of it, as a detached mount.

Since Linux 6.18 procfs takes the namespace as an option. Before, a child of the daemon that is born there opens it
(native/procfs.c): 0.1 to 0.2 ms. Owns two sockets and a descriptor of the daemon's own namespace for that.
"""

from __future__ import annotations

import os
import socket
from typing import Protocol

from sockd.linux import _procfs, descriptor_passing, syscalls
from sockd.linux.processes import pidfds
from sockd.linux.syscalls import MountAttr

ATTRIBUTES = MountAttr.NOSUID | MountAttr.NODEV | MountAttr.NOEXEC
ONLY_OWN = {"hidepid": "invisible"}
"""Each process sees only those that it may trace (proc(5))."""


class Procfs(Protocol):
    """One way to make it."""

    def new(self, pidfd: int, *, only_own: bool = False) -> int:
        """A procfs of the namespace that a process is in, a detached mount; its fd, close-on-exec.

        Args: only_own: each process sees only those that it may trace.
        Raises: ProcessLookupError: the process is gone; OSError naming the call."""

    def close(self) -> None:
        """Make no more."""


class ByNamespace:
    """By the option `pidns=` (Linux 6.18)."""

    def new(self, pidfd: int, *, only_own: bool = False) -> int:
        namespace = pidfds.pid_namespace(pidfd)
        try:
            options: syscalls.FileSystemOptions = {"pidns": namespace, **(ONLY_OWN if only_own else {})}
            return syscalls.new_filesystem("proc", options, ATTRIBUTES)
        finally:
            os.close(namespace)

    def close(self) -> None:
        return


class ByChild:
    """By a child that is born in the namespace. For one thread, in whose pid namespace it was made."""

    def __init__(self) -> None:
        self._home = os.open("/proc/thread-self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._theirs, self._ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)

    def new(self, pidfd: int, *, only_own: bool = False) -> int:
        try:
            _procfs.open_context(pidfd, self._home, self._theirs.fileno())
        except OSError as error:
            self._drain()
            raise OSError(error.errno, f"fsopen in a pid namespace: {error.strerror}", "proc") from None
        _, (context,) = descriptor_passing.receive(self._ours, 1, 1)
        return syscalls.finish_filesystem(context, "proc", ONLY_OWN if only_own else {}, ATTRIBUTES)

    def close(self) -> None:
        """Safe to call twice."""
        home, self._home = self._home, -1
        if home >= 0:
            os.close(home)
        self._theirs.close()
        self._ours.close()

    def _drain(self) -> None:
        """Close what a child sent before it was killed."""
        try:
            _, contexts = descriptor_passing.receive(self._ours, 1, 1)
        except BlockingIOError:
            return
        for context in contexts:
            os.close(context)


def why_not_by_namespace() -> str:
    """The kernel's words if procfs does not take a namespace; empty if it does. Nothing stays behind."""
    pidfd = os.pidfd_open(os.getpid())
    try:
        os.close(ByNamespace().new(pidfd))
    except OSError as error:
        return error.strerror or str(error)
    finally:
        os.close(pidfd)
    return ""
