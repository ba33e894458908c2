"""Which chunk of one image is which of another, such as the build before it. Pure.

A chunk of equal content is its own counterpart, wherever it is. A chunk that was changed has the one in its place: between the
same two equal chunks, and as many of the changed ones after the first.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from sockd.images.chunks.chunk import Chunk

Chunks = Sequence[Chunk | None]
"""The chunks of an image; None: zeros, which have no counterpart, because zeros are not fetched."""


class Counterparts(NamedTuple):
    """Numbers of the other image's chunks, by those of the one's. No number is there twice."""

    equal: dict[int, int]
    """Name and key are equal, and so the plaintext is."""
    changed: dict[int, int]
    """At the same place; the content is another."""

    def of(self, number: int) -> int | None:
        """The counterpart of a chunk of the one image; None: it has none."""
        found = self.equal.get(number)
        return self.changed.get(number) if found is None else found


def counterparts(one: Chunks, other: Chunks) -> Counterparts:
    """Find for each chunk of the one image its counterpart in the other, if it has one."""
    equal = _equal(one, other)
    taken = set(equal.values())
    changed: dict[int, int] = {}
    places = [(-1, -1), *_in_both_orders(equal), (len(one), len(other))]
    for (begin, other_begin), (end, other_end) in itertools.pairwise(places):
        ours = [n for n in range(begin + 1, end) if one[n] is not None and n not in equal]
        theirs = [n for n in range(other_begin + 1, other_end) if other[n] is not None and n not in taken]
        changed.update(zip(ours, theirs, strict=False))
    return Counterparts(equal, changed)


def _equal(one: Chunks, other: Chunks) -> dict[int, int]:
    """Chunks of equal content; where an image has one several times, the first goes with the first, and so on."""
    numbers: defaultdict[Chunk, list[int]] = defaultdict(list)
    for number in reversed(range(len(other))):
        chunk = other[number]
        if chunk is not None:
            numbers[chunk].append(number)
    found = {}
    for number, chunk in enumerate(one):
        if chunk is not None and (left := numbers.get(chunk)):
            found[number] = left.pop()
    return found


def _in_both_orders(pairs: dict[int, int]) -> list[tuple[int, int]]:
    """As many of the pairs as possible, such that both of their numbers rise (patience sorting). Args: pairs: by rising keys."""
    ends: list[int] = []
    """The least number with which so many pairs can end."""
    keys: list[int] = []
    """Keys of the pairs that `ends` has the ends of."""
    before: dict[int, int] = {}
    """By key: the key of the pair before it."""
    for key, number in pairs.items():
        length = bisect.bisect_left(ends, number)
        if length:
            before[key] = keys[length - 1]
        ends[length : length + 1], keys[length : length + 1] = [number], [key]
    found = []
    at = keys[-1] if keys else None
    while at is not None:
        found.append((at, pairs[at]))
        at = before.get(at)
    return found[::-1]
