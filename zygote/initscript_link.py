"""The function's end of the link to its initscript: offered before its code runs, taken back after its first answer.

Owns one descriptor, which came beside INIT, until the function's own library has taken it. An initscript works for the
first request of a sandbox only; afterwards nothing of it is left but memory that the function still looks at.
"""

from __future__ import annotations

import os
import sys

from zygote.protocol import ProtocolError

VARIABLE = "SOCKD_INITSCRIPT_FD"
"""Where `sockd_initscript` finds the descriptor's number."""


def only_one(rights: tuple[int, ...]) -> int | None:
    """The descriptor that came beside INIT, if any. Raises: ProtocolError when there are more; they are closed."""
    if len(rights) > 1:
        for fd in rights:
            os.close(fd)
        raise ProtocolError(f"{len(rights)} descriptors beside INIT")
    return rights[0] if rights else None


def offer(fd: int) -> None:
    """Let the function find it."""
    os.environ[VARIABLE] = str(fd)


def withdraw(fd: int) -> None:
    """Close the link: the function's library does, which knows what is mapped, or we, when it was never imported."""
    expire = getattr(sys.modules.get("sockd_initscript"), "expire", None)
    try:
        if expire is None:
            os.close(fd)
        else:
            expire()
    except Exception as error:  # the function closed the descriptor, or put something of its own in the library's place
        print(f"sockd: the link to the initscript: {error}", file=sys.stderr)
    os.environ.pop(VARIABLE, None)
