"""Refused distributions: the failed module, Zygote and cause, and the time of the next attempt. Pure.

A refusal ends after seconds if a deadline caused it, because a busy host has the same effect, and after a day if the import
failed. Each further failure doubles the time. The count is reset when the distribution is imported, forgiven, or loaded by
another version of the worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

AFTER_DEADLINE_S = 10.0
"""Time before the first retry, if a deadline passed."""
AFTER_FAILURE_S = 86_400.0
"""Time before the first retry, if the import or its forks failed."""
LONGEST_S = 7 * 86_400.0
MAX_REFUSALS = 1024
"""Most distributions that are remembered, the oldest dropped first."""
MAX_TEXT = 500
"""Characters of a cause or of a node's packages."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One distribution, and its last failure."""

    key: str
    """The distribution."""
    module: str
    """The module whose import failed; empty if that is not known, or if a fork failed."""
    node: str
    """The Zygote that failed: its packages."""
    cause: str
    by_deadline: bool
    time_s: float
    """Unix time."""
    tries: int = 1
    """How often it failed."""

    @property
    def retry_s(self) -> float:
        """Unix time from which it is tried again."""
        first = AFTER_DEADLINE_S if self.by_deadline else AFTER_FAILURE_S
        return self.time_s + min(first * 2.0 ** min(self.tries - 1, 30), LONGEST_S)

    @property
    def reason(self) -> str:
        """In words."""
        return f"{self.module}: {self.cause}" if self.module else self.cause


class Refusals:
    """The record of one worker. A refusal counts until its time is over."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Args: clock: gives Unix time."""
        self._clock = clock
        self._failed: dict[str, Refusal] = {}
        self._keys: frozenset[str] = frozenset()
        self._keys_until_s = 0.0

    def refuse(self, key: str, cause: str, *, module: str = "", node: str = "", by_deadline: bool = False) -> Refusal:
        """Records a failure of a distribution. One that is refused already stays as it is."""
        old, now_s = self._failed.get(key), self._clock()
        if old is not None and old.retry_s > now_s:
            return old
        tries = old.tries + 1 if old is not None else 1
        refusal = Refusal(key, module[:MAX_TEXT], node[:MAX_TEXT], cause[:MAX_TEXT], by_deadline, now_s, tries)
        self._put(refusal)
        return refusal

    def forgive(self, key: str) -> bool:
        """Forgets a distribution's failures; whether there were any."""
        self._keys_until_s = 0.0
        return self._failed.pop(key, None) is not None

    @property
    def keys(self) -> frozenset[str]:
        """Every distribution that is refused now."""
        now_s = self._clock()
        if now_s >= self._keys_until_s:
            current = self.list()
            self._keys = frozenset(refusal.key for refusal in current)
            self._keys_until_s = min((refusal.retry_s for refusal in current), default=now_s + LONGEST_S)
        return self._keys

    def is_refused(self, key: str) -> bool:
        return key in self.keys

    def list(self) -> list[Refusal]:
        """Every refusal that counts now, the oldest first."""
        now_s = self._clock()
        current = [refusal for refusal in self._failed.values() if refusal.retry_s > now_s]
        return sorted(current, key=lambda refusal: (refusal.time_s, refusal.key))

    def to_json(self) -> Sequence[Sequence[Any]]:
        """Everything recorded, as plain data."""
        return [
            [each.key, each.module, each.node, each.cause, each.by_deadline, each.time_s, each.tries]
            for each in self._failed.values()
        ]

    def update_from_json(self, data: Sequence[Sequence[Any]]) -> None:
        """Adds what `to_json` gave. Raises: ValueError or TypeError when it is not that."""
        for key, module, node, cause, by_deadline, time_s, tries in data:
            if not all(isinstance(text, str) for text in (key, module, node, cause)):
                raise TypeError("a refusal's texts are not texts")
            if type(tries) is not int or tries < 1 or type(by_deadline) is not bool:
                raise TypeError("a refusal without a number of tries")
            # A clock that was set back must not make a refusal longer.
            time_s = min(float(time_s), self._clock())
            self._put(Refusal(key, module, node, cause, by_deadline, time_s, tries))

    def _put(self, refusal: Refusal) -> None:
        self._failed.pop(refusal.key, None)
        self._failed[refusal.key] = refusal
        while len(self._failed) > MAX_REFUSALS:
            del self._failed[next(iter(self._failed))]
        self._keys_until_s = 0.0
