"""Premade: things of one kind that are made before they are needed, a few, each while no start waits for it.

Owns those that are not taken yet.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MOST = 4
LULL_S = 0.008
"""From a taking to the next making: longer than a start, also of a function with packages. Where the processors are busy, the
Zygote and its child have one only once this thread waits: connections made ahead, and nothing made during a start, are 7 % of it
there (3.42 ms instead of 3.68)."""


class Premade(Generic[T]):
    """`take` never waits; `close` gives back what is left."""

    def __init__(self, make: Callable[[], T], close: Callable[[T], None]) -> None:
        """Args: make: makes one, and may raise OSError; then the next `take` makes one itself, and raises its error."""
        self._make = make
        self._close = close
        self._ready: deque[T] = deque()
        self._loop = asyncio.get_running_loop()
        self._making: asyncio.Handle | None = None

    def take(self) -> T:
        """One, the caller's. Raises: OSError, as `make`."""
        if self._making is None:
            self._making = self._loop.call_later(LULL_S, self._make_next)
        return self._ready.popleft() if self._ready else self._make()

    def close(self) -> None:
        """Make no more. Safe to call twice."""
        if self._making is not None:
            self._making.cancel()
        while self._ready:
            self._close(self._ready.popleft())

    def _make_next(self) -> None:
        self._making = None
        if len(self._ready) >= MOST:
            return
        try:
            self._ready.append(self._make())
        except OSError:
            return
        self._making = self._loop.call_soon(self._make_next)
