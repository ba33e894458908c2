"""Environment variables that a function's own code changes, and whether an import reads them.

An import that does not read a variable does the same with another value, so such a change ends no sharing. A recording notes what
imports read (`VariableReads`), but not what the function's own code reads between them and in modules of its own. C code can walk
through `environ` unseen: a shared library that has this symbol counts as one that reads all variables. The daemon compares the
changed names once more with what a Zygote's imports have read (`sockd.starts.zygotes.top_levels.soundness`).
"""

from __future__ import annotations

import os
import sys

from sockd_zygote import _native
from sockd_zygote.forks import children
from sockd_zygote.forks.variable_reads import UNOBSERVED, UNOBSERVED_PREFIX, VariableReads
from sockd_zygote.top_levels import interpreter

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from typing import Any

OF_THE_INTERPRETER = "PYTHON"
"""What the names of the interpreter's own variables begin with: it may read them at any import."""
SYMBOLS = (b"\0environ\0", b"\0__environ\0", b"\0_environ\0")
"""The names of the C library's array of variables, as a library has them that uses it."""
PIECE_BYTES = 1 << 20
OVERLAP_BYTES = max(map(len, SYMBOLS)) - 1


class OwnVariables:
    """`watch` while imports run; `changed` is what own code has changed; `read` then says which of these imports have read."""

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self._reads = VariableReads()
        self._is_watching = False
        self._libraries = set(interpreter.libraries())

    def watch(self, *, is_import: bool) -> bool:
        """Begin to note reads where an import begins, and stop where the function's own code runs. Returns: how it was before."""
        before = self._is_watching
        if is_import and not before:
            self._start()
        elif before and not is_import:
            self._stop()
        return before

    def read(self) -> list[str]:
        """Return the changed variables that imports have read or set, or may have, until now."""
        if self.changed:
            self._look_at_libraries()
        return sorted(filter(self._is_read, self.changed))

    def _start(self) -> None:
        if type(os.environ) is not os._Environ or type(os.environb) is not os._Environ:
            self._reads.add_every()  # own code has put something else in its place
            return
        try:
            _native.observe(self._heard)
        except RuntimeError:  # without LD_PRELOAD, reads by C code are not seen
            self._reads.add_every()
            return
        self._reads.watch()
        self._is_watching = True

    def _stop(self) -> None:
        self._is_watching = False
        names, are_all, *_ = _native.stop_observing()
        if not self._reads.unwatch():
            self._reads.add_every()
        self._reads.add_names_of_c(names, are_all=are_all)

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event in ("os.putenv", "os.unsetenv"):
            self._reads.add_set(args[0])
        elif event in children.EVENTS:
            variables = children.variables_of(event, args, sys._getframe(1).f_globals.get("__name__"))
            if variables is None:
                self._reads.add_every()
            else:
                self._reads.names.update(variables)

    def _look_at_libraries(self) -> None:
        new = set(interpreter.libraries()) - self._libraries
        self._libraries |= new
        if any(map(may_walk_environ, new)):
            self._reads.add_every()

    def _is_read(self, name: str) -> bool:
        return (
            self._reads.is_every
            or name in self._reads.names
            or name in UNOBSERVED
            or name.startswith((UNOBSERVED_PREFIX, OF_THE_INTERPRETER, *self._reads.prefixes))
        )


def may_walk_environ(path: str) -> bool:
    """Whether a shared library has the symbol of the array of all variables, or cannot be read."""
    try:
        with open(path, "rb") as file:
            end = b""
            while piece := file.read(PIECE_BYTES):
                if any(symbol in end + piece for symbol in SYMBOLS):
                    return True
                end = piece[-OVERLAP_BYTES:]
    except OSError:
        return True
    return False
