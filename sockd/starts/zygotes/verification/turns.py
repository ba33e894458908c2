"""What the verifier has still to do: recordings and verifications take turns, so that neither waits for the end of the other.

Owns the order of the work, in which each kind is first come, first served; knows nothing of what it is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
W = TypeVar("W")


class Turns(Generic[K, W]):
    """Work of two kinds by its keys. `add`, then `take` for each piece."""

    def __init__(self) -> None:
        self._recordings: OrderedDict[K, W] = OrderedDict()
        self._verifications: OrderedDict[K, W] = OrderedDict()
        self._is_verifications_turn = False

    def __len__(self) -> int:
        return len(self._recordings) + len(self._verifications)

    def __contains__(self, key: K) -> bool:
        return key in self._recordings or key in self._verifications

    def __iter__(self) -> Iterator[K]:
        """The keys of all that waits."""
        yield from self._recordings
        yield from self._verifications

    @property
    def has_recording(self) -> bool:
        """Whether a recording waits."""
        return bool(self._recordings)

    def add(self, key: K, work: W, *, is_recording: bool) -> None:
        """Have a piece of work wait behind those of its kind."""
        (self._recordings if is_recording else self._verifications)[key] = work

    def discard(self, key: K) -> None:
        """Have a piece of work wait no longer, if it does."""
        self._recordings.pop(key, None)
        self._verifications.pop(key, None)

    def take(self) -> tuple[K, W]:
        """Take the next piece: of the kind that the last one was not, if any waits. Raises: KeyError: there is none."""
        is_verification = not self._recordings or (self._is_verifications_turn and bool(self._verifications))
        self._is_verifications_turn = not is_verification
        return (self._verifications if is_verification else self._recordings).popitem(last=False)
