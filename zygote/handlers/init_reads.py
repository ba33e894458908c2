"""The reads that the init of a template makes through the storage library. Forks have them in memory, so an initscript during a
start of one need not fetch them again.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from typing import Any

MOST = 256
MOST_CHARACTERS = 16 << 10


class InitReads:
    """Notes what the library reads between `begin` and `end`, if the function's storage library is sockd's."""

    def __init__(self) -> None:
        self.rpcs: list[list[str]] = []
        """The reads in their order, each in the engine's words."""
        self._room = MOST_CHARACTERS

    def begin(self) -> None:
        """Note reads from now on."""
        self._observe(self._note)

    def end(self) -> None:
        """Note no more of them, and have each fork look for an initscript of its own."""
        self._observe(None)
        forget = getattr(sys.modules.get("sockd_initscript"), "forget", None)
        if forget is not None:  # it may be an older library, of a requirement
            forget()

    def _note(self, rpc: list[str]) -> None:
        """Keep the first of too many."""
        self._room -= sum(map(len, rpc))
        if self._room >= 0 and len(self.rpcs) < MOST:
            self.rpcs.append(rpc)

    def _observe(self, observer: object) -> None:
        reads: Any = sys.modules.get("sockd_storage.reads")
        if reads is not None:
            reads.observer = observer
