"""How long each module's own import took, while one is being watched.

Wraps the import system's `_find_and_load_unlocked`, which is a Python function looked up at each import, and takes the
wrapper out again: after the first answer of a sandbox nothing of it is left. Costs under a microsecond an import.
"""

from __future__ import annotations

import sys
import time

_bootstrap = sys.modules["_frozen_importlib"]


class ImportTimer:
    """Between `start` and `stop`, `seconds[module]` is the time its import took without those it imported in turn."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]
        self._load = _bootstrap._find_and_load_unlocked

    def start(self) -> None:
        _bootstrap._find_and_load_unlocked = self._timed  # type: ignore[attr-defined]

    def stop(self) -> None:
        _bootstrap._find_and_load_unlocked = self._load  # type: ignore[attr-defined]

    def _timed(self, name: str, import_: object) -> object:
        self._inner.append(0.0)
        self.seconds[name] = 0.0  # takes its place in the order in which imports begin
        started = time.perf_counter()
        try:
            return self._load(name, import_)
        finally:
            spent = time.perf_counter() - started
            self.seconds[name] = spent - self._inner.pop()
            self._inner[-1] += spent
