"""The reads that the init of a template makes through the storage library. Forks have them in memory, so an initscript during a
start of one need not fetch them again.
"""

from __future__ import annotations

import sys

from sockd_zygote.handlers import storage_finder

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from typing import Any

GET, WHOLE = "s3.GetObject", 3
"""The operation, and the words of one that gets a whole object."""
MOST = 256
MOST_CHARACTERS = 16 << 10


class InitReads:
    """Notes what the library reads between `begin` and `end`, for the function or for its clients of boto3."""

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
        """Keep the first of too many. An object that is read in ranges counts as read, once."""
        if rpc[0] == GET:
            rpc = rpc[:WHOLE]
            if rpc in self.rpcs:
                return
        self._room -= sum(map(len, rpc))
        if self._room >= 0 and len(self.rpcs) < MOST:
            self.rpcs.append(rpc)

    def _observe(self, observer: object) -> None:
        reads: Any = storage_finder.of_library("sockd_storage.reads")
        if reads is not None:
            reads.observer = observer
