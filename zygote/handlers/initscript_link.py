"""The function's end of the link to its initscript: offered before its code runs, taken back after its first answer.

Owns one descriptor, which came with INIT, until the function's own library has taken it. An initscript works for the
first request of a sandbox only; afterwards nothing of it is left but memory that the function still looks at.

`sockd_initscript` finds the descriptor here, in the process that has it. A program of `runtime = "provided"` finds it in its
environment, by number and inode: only such a program inherits the descriptor.
"""

from __future__ import annotations

import os
import sys

from sockd_zygote.handlers import egress
from sockd_zygote.protocol import ProtocolError

VARIABLE = "SOCKD_INITSCRIPT_FD"
"""FD:INODE, in the environment of a program."""

offered: int | None = None
"""The descriptor, until `withdraw`."""


def only_one(rights: tuple[int, ...]) -> int | None:
    """The descriptor that came with INIT, if any. Raises: ProtocolError when there are more; they are closed."""
    if len(rights) > 1:
        for fd in rights:
            os.close(fd)
        raise ProtocolError(f"{len(rights)} descriptors with INIT")
    return rights[0] if rights else None


def offer(fd: int) -> None:
    """Let the function find it, and count from here what leaves the sandbox."""
    global offered
    offered = fd
    egress.begin()


def inherited() -> tuple[dict[str, str], tuple[int, ...]]:
    """Variables and descriptors for a program that is to have the link."""
    if offered is None:
        return {}, ()
    return {VARIABLE: f"{offered}:{os.fstat(offered).st_ino}"}, (offered,)


def withdraw(fd: int) -> None:
    """End the link, also for a program that inherited it, and close our descriptor: the function's library does, which
    knows what is mapped, or we, when it was never imported."""
    global offered
    expire = getattr(sys.modules.get("sockd_initscript"), "expire", None)
    try:
        if expire is None:
            shut_down(fd)
        else:
            expire()
    except Exception as error:  # the function closed the descriptor, or put something of its own in the library's place
        print(f"sockd: the link to the initscript: {error}", file=sys.stderr)
    offered = None
    egress.end()


def shut_down(fd: int) -> None:
    """End the connection for every process that has a descriptor of it. Raises: OSError."""
    import socket

    with socket.socket(fileno=fd) as link:
        link.shutdown(socket.SHUT_RDWR)
