"""How many threads want the machine's processors (proc_loadavg(5)).

Owns the descriptor of the file.
"""

from __future__ import annotations

import os
from typing import Self

LOADAVG = "/proc/loadavg"


class RunQueues:
    """The run queues of the whole machine."""

    def __init__(self, loadavg: int) -> None:
        self._loadavg = loadavg

    @classmethod
    def open(cls, path: str = LOADAVG) -> Self:
        """Raises: OSError: there is no /proc."""
        return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def runnable(self) -> int:
        """Threads that run or could at this moment, the one that asks included. It takes 3 us."""
        return int(os.pread(self._loadavg, 256, 0).split()[3].partition(b"/")[0])

    def close(self) -> None:
        """Safe to call twice."""
        loadavg, self._loadavg = self._loadavg, -1
        if loadavg >= 0:
            os.close(loadavg)
