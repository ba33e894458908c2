"""Which code of the function runs: the places on the stack, and what has run to its end before an import.

Between imports a profile function notes each code object of the function's own files that returns (sys.setprofile). It is not
there while an import of the function's code runs, nor while states are compared.
"""

from __future__ import annotations

import sys

from sockd_zygote.forks.module_kinds import OWN, RUNTIME_PACKAGE, Kinds

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any

Place = tuple[str, int, str, int, str]
"""File and line where code runs, the name and first line of its code object, and how that has come to the place inside, or to the
import that begins: BY_IMPORT, BY_CALL, or through code of packages (BY_PACKAGE)."""
BY_IMPORT, BY_CALL, BY_PACKAGE = "import", "call", "package"
CONNECTS = frozenset(("connect", "connect_ex", "sendto", "sendmsg"))
"""Methods of sockets that a client begins with."""
Code = tuple[str, str, int]
"""File, name and first line of a code object."""


class OwnCalls:
    """Notes what runs while it watches.

    Attributes:
        finished: code objects of the function's in the order in which they first returned;
        has_connected: whether Python code has asked the network for something."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._seen: dict[int, CodeType] = {}
        self._hook: Any = self._note
        self._is_on = False
        self.finished: list[Code] = []
        self.has_connected = False

    def watch(self, is_on: bool) -> bool:
        """Begin or pause; where the function's code has set a profile function, that one stays. Returns: whether it watched."""
        was_on, self._is_on = self._is_on, is_on
        current = sys.getprofile()
        if is_on and current is None:
            sys.setprofile(self._hook)
        elif not is_on and current is self._hook:
            sys.setprofile(None)
        return was_on

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ in CONNECTS:
            self.has_connected = True
        code = frame.f_code
        if event != "return" or id(code) in self._seen:
            return
        self._seen[id(code)] = code
        if _is_code(frame, self._kinds):
            self.finished.append((code.co_filename, code.co_name, code.co_firstlineno))


def places(kinds: Kinds) -> list[Place]:
    """Return where the function's code is, the innermost place first."""
    found: list[Place] = []
    way, frame = BY_IMPORT, sys._getframe(1)
    while frame is not None:
        if _is_code(frame, kinds):
            code = frame.f_code
            found.append((code.co_filename, frame.f_lineno, code.co_name, code.co_firstlineno, way))
            way = BY_CALL
        elif not _is_machinery(frame):
            way = BY_PACKAGE
        elif way == BY_CALL:
            way = BY_IMPORT
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _is_code(frame: FrameType, kinds: Kinds) -> bool:
    file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
    is_runtime = module.partition(".")[0] == RUNTIME_PACKAGE or module == "__main__"
    return not is_runtime and not file.startswith("<") and kinds.key_of_file(file) == OWN


def _is_machinery(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__"))
    return module in ("importlib", RUNTIME_PACKAGE) or module.startswith((f"{RUNTIME_PACKAGE}.", "importlib._"))
