"""Network namespaces: made, entered and left by the calling thread, and held by descriptors.

Owns nothing: descriptors are the caller's. A namespace lives as long as a descriptor, a process, a socket or a thread is in it.
Which one a thread is in concerns that thread alone (nsproxy is per task), its children and what it reads below /proc/sys/net.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from sockd.linux import syscalls
from sockd.linux.network import rtnetlink
from sockd.linux.network.netlink import ROUTE, NetlinkSocket

_OWN = "/proc/thread-self/ns/net"
_SYSCTL = Path("/proc/sys/net")


def current() -> int:
    """A descriptor of the calling thread's namespace. Raises: OSError."""
    return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)


def new() -> int:
    """A new empty namespace, owned by the caller's user namespace; its descriptor. The calling thread stays where it was.

    Raises: OSError."""
    before = current()
    try:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        try:
            return current()
        finally:
            enter(before)
    finally:
        os.close(before)


def enter(namespace: int) -> None:
    """Move the calling thread into a namespace (setns(2)). Raises: OSError."""
    syscalls.setns(namespace, syscalls.CLONE_NEWNET)


@contextlib.contextmanager
def entered(namespace: int) -> Iterator[None]:
    """The calling thread is in a namespace for a block. Raises: OSError."""
    before = current()
    try:
        enter(namespace)
        try:
            yield
        finally:
            enter(before)
    finally:
        os.close(before)


def bring_loopback_up() -> None:
    """In the calling thread's namespace, of which a new one has it down. Raises: OSError."""
    with contextlib.closing(NetlinkSocket.open(ROUTE)) as netlink:
        netlink.exchange([rtnetlink.link_up(rtnetlink.LOOPBACK)])


def set_sysctl(name: str, value: int | str) -> None:
    """Set /proc/sys/net/`name` of the calling thread's namespace. Raises: OSError."""
    (_SYSCTL / name).write_text(f"{value}\n")


def sysctl(name: str) -> str:
    """/proc/sys/net/`name` of the calling thread's namespace. Raises: OSError."""
    return (_SYSCTL / name).read_text().strip()
