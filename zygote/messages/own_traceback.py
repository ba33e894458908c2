"""The standard library's traceback, for the texts of errors: imported before any function, and kept apart from its imports.

A function may have modules of its own that are named `token` or `traceback`: its imports must find these, and the text of
its error must not need them. So what traceback imports is taken out of sys.modules again, and is there only while a text is
made, as traceback imports `ast` when it is called.
"""

from __future__ import annotations

import sys

_before = set(sys.modules)

import ast  # noqa: E402, F401  (marks the part of a line that failed)
import linecache  # noqa: E402
import tokenize  # noqa: E402, F401  (finds the encoding of a file, for linecache)
import traceback  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

# A module in C stays: no file has its name, and it may have to be the only one of its kind.
_ours = {name: sys.modules[name] for name in set(sys.modules) - _before if hasattr(sys.modules[name], "__file__")}
for _name in _ours:
    del sys.modules[_name]

TracebackException = traceback.TracebackException
extract_tb = traceback.extract_tb
format_list = traceback.format_list


class OwnModules:
    """While it is entered, imports find the modules that traceback was imported with."""

    def __enter__(self) -> None:
        self._theirs = {name: sys.modules.get(name) for name in _ours}
        share_lines(self._theirs.get("linecache"))
        sys.modules.update(_ours)

    def __exit__(self, *_: object) -> None:
        for name, module in self._theirs.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def share_lines(theirs: ModuleType | None) -> None:
    """Read the lines that a package has kept for code without a file (attrs does), if the function has the same linecache."""
    if getattr(theirs, "__file__", None) == linecache.__file__:
        linecache.cache = theirs.cache  # type: ignore[union-attr]
