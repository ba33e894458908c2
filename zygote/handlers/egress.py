"""Egress: whether this sandbox may have changed anything outside of itself since its initscript began.

A reply that an initscript fetched is what a read of the function would return only until the function's first write. What a
process sends cannot be read from here, so every socket that the sandbox has made since then counts as a write, and so does each
that it had before. The kernel counts them for the cgroup, whichever process and whichever code makes one
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

LEVEL, SOCKETS_MADE = 0x736F, 1
"""The option's level and name for getsockopt(2). No protocol of the kernel has this level."""
FDS = "/proc/self/fd"

began_ns = 0
"""When the initscript's replies began to age (CLOCK_MONOTONIC)."""
_made: int | None = None
"""What was made by then; None: not counted."""
_asked: socket.socket | None = None


def begin() -> None:
    """Count from here. Call it before the function's code runs."""
    global began_ns, _made
    began_ns = monotonic_ns()
    _made = None if _has_internet_socket() else sockets_made()


def end() -> None:
    """Undo `begin`."""
    global _made, _asked
    _made = None
    if _asked is not None:
        _asked.close()
        _asked = None


def may_have_written() -> bool:
    """Whether anything may have left this sandbox since `begin`, or it is not known."""
    return _made is None or sockets_made() != _made


def sockets_made() -> int | None:
    """Sockets that this cgroup has made, in 32 bits; None: they are not counted, or this process has no room for a socket."""
    global _asked
    import socket

    try:
        if _asked is None:  # made here: a socket's cgroup is its maker's, and the kernel asks that cgroup's programs
            _asked = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        return int.from_bytes(_asked.getsockopt(LEVEL, SOCKETS_MADE, 4), "little")
    except OSError:
        return None


def _has_internet_socket() -> bool:
    """Whether this process has a socket that reaches beyond the sandbox: a snapshot's forks inherit what its init opened."""
    import socket

    for number in os.listdir(FDS):
        try:
            if os.readlink(f"{FDS}/{number}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(number))) as found:
                    if found.family != socket.AF_UNIX:
                        return True
        except OSError:  # the descriptor of the directory itself
            continue
    return False
