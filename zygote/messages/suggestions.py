"""CPython's suggestions behind a message: `. Did you mean: 'name'?`.

From 3.12 on `traceback` makes them. Before, only the interpreter's own printing of an exception does: it is given a stream.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sockd_zygote.messages.own_traceback import TracebackException

KINDS = frozenset({NameError, AttributeError, ImportError})
"""Exactly these types have any."""
BEGIN = ". Did you "
MOST_CHARACTERS = 1000


def suggestion(error: BaseException, message: str, whole: TracebackException) -> str:
    """What follows the message; empty: nothing is suggested."""
    text = "".join(whole.format_exception_only()) if sys.version_info >= (3, 12) else printed(error)
    _, found, rest = text.rpartition(message + BEGIN)
    return (BEGIN + rest.partition("\n")[0])[:MOST_CHARACTERS] if found and message else ""


def printed(error: BaseException) -> str:
    """As the interpreter prints it, without what it came from."""
    others = error.__cause__, error.__context__, error.__suppress_context__
    stream = Stream(sys.stderr)
    error.__cause__ = error.__context__ = None
    sys.stderr = stream
    try:
        sys.__excepthook__(type(error), error, None)
    finally:
        sys.stderr = stream.theirs
        error.__cause__, error.__context__, error.__suppress_context__ = others
    return "".join(stream.written)


class Stream:
    """Keeps what this thread writes; that of the others goes where it was going."""

    def __init__(self, theirs: Any) -> None:
        from _thread import get_ident

        self.theirs = theirs
        self.written: list[str] = []
        self._ident = get_ident
        self._own = get_ident()

    def write(self, text: str) -> object:
        if self._ident() != self._own:
            return self.theirs.write(text)
        self.written.append(text)
        return len(text)

    def flush(self) -> None:
        """Nothing waits in it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.theirs, name)
