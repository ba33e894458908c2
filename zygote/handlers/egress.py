"""Egress: whether this sandbox may have changed anything outside of itself since its initscript began.

A reply that an initscript fetched is what a read of the function would return only until the function's first write. What a
process sends cannot be read from here, so every socket by which it may have sent something since then counts as a write: one of
TCP that has connected, listens or was accepted, each other IP socket from its making, a Unix socket that was connected, and each
socket that the sandbox had before. One of TCP that did none of it has sent nothing: urllib3 makes such a one at import, to find
out about IPv6. The kernel counts them for the cgroup, whichever process and whichever code uses one
(`sockd.linux.bpf.socket_programs`), and tells the count as an option of any socket. A host that cannot count tells nothing:
there a write is always possible.

The storage library asks here, in the process that its handler runs in.
"""

from __future__ import annotations

import os
from time import monotonic_ns

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    import socket

LEVEL, USES = 0x736F, 1
"""The option's level and name for getsockopt(2). No protocol of the kernel has this level."""
TCP_CLOSE = 7
"""A state of linux/tcp_states.h."""
FDS = "/proc/self/fd"

began_ns = 0
"""When the initscript's replies began to age (CLOCK_MONOTONIC)."""
_used: int | None = None
"""How often sockets were used by then; None: not counted."""
_asked: socket.socket | None = None


def begin() -> None:
    """Count from here. Call it before the function's code runs."""
    global began_ns, _used
    began_ns = monotonic_ns()
    _used = None if _has_used_socket() else uses_of_sockets()


def end() -> None:
    """Undo `begin`."""
    global _used, _asked
    _used = None
    if _asked is not None:
        _asked.close()
        _asked = None


def may_have_written() -> bool:
    """Whether anything may have left this sandbox since `begin`, or it is not known."""
    return _used is None or uses_of_sockets() != _used


def uses_of_sockets() -> int | None:
    """Return how often this cgroup may have sent something, in 32 bits; None: not counted, or there is no room for a socket."""
    global _asked
    import socket

    try:
        if _asked is None:  # made here: a socket's cgroup is its maker's, and the kernel asks that cgroup's programs
            _asked = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        return int.from_bytes(_asked.getsockopt(LEVEL, USES, 4), "little")
    except OSError:
        return None


def _has_used_socket() -> bool:
    """Whether this process has a socket that reaches beyond the sandbox: a snapshot's forks inherit what its init opened.

    One of TCP that was made in this sandbox's cgroup in place of a connection (`sockd_zygote.forks.parked`) is counted when it
    connects; one that a hook of the fork has made may be of the Zygote's cgroup, whose count is not asked for."""
    import socket

    from sockd_zygote.forks.kept import kept_sockets

    remade = kept_sockets()
    for number in os.listdir(FDS):
        try:
            if os.readlink(f"{FDS}/{number}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(number))) as found:
                    is_counted = int(number) in remade and _is_unconnected(found)
                    if found.family != socket.AF_UNIX and not is_counted:
                        return True
        except OSError:  # the descriptor of the directory itself
            continue
    return False


def _is_unconnected(found: socket.socket) -> bool:
    """Whether it is of TCP, and neither connects nor listens."""
    import socket

    if found.proto != socket.IPPROTO_TCP:
        return False
    return found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE
