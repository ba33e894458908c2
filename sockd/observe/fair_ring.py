"""A ring that all functions share: when it is full, the function that has most in it loses its oldest item.

Owns the items. Knows nothing of what they are.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class FairRing(Generic[T]):
    """`append`; iteration is in the order of appending."""

    def __init__(self, most: int) -> None:
        """Args: most: items that are kept."""
        self._most = most
        self._numbers = count()
        self._items: dict[int, T] = {}
        self._numbers_of: defaultdict[str, deque[int]] = defaultdict(deque)

    def append(self, function: str, item: T) -> None:
        """Keep an item of a function."""
        number = next(self._numbers)
        self._items[number] = item
        self._numbers_of[function].append(number)
        if len(self._items) > self._most:
            self._drop_one()

    def _drop_one(self) -> None:
        """POLICY: of the functions with most items, the one that appended first loses its oldest."""
        function = max(self._numbers_of, key=lambda name: (len(self._numbers_of[name]), -self._numbers_of[name][0]))
        numbers = self._numbers_of[function]
        del self._items[numbers.popleft()]
        if not numbers:
            del self._numbers_of[function]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items.values())
