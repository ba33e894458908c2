"""Functions whose events were running when a daemon died: which of them may run an event now.

    POLICY: while an event is not over during which a daemon has died, its function runs one event at a time, late, and
    alone among all such functions. Other functions go on as ever. So one event at most is to blame for the next death.

Owns the order, in memory; `attempt_table` has it on the disk. Pure but for its state: the caller passes the time.
"""

from __future__ import annotations


class Probation:
    """`add` the suspects of the last daemons; `over` when one is over."""

    def __init__(self) -> None:
        self._suspects: dict[str, set[int]] = {}
        self._due: dict[str, float] = {}
        self._running: str | None = None

    def __len__(self) -> int:
        """How many events are suspects."""
        return sum(map(len, self._suspects.values()))

    def add(self, function: str, seq: int, due: float) -> None:
        """An event is a suspect; its function runs nothing before this moment."""
        self._suspects.setdefault(function, set()).add(seq)
        self._due[function] = due

    def places(self, function: str, usual: int, now: float) -> int:
        """How many events of a function may run at a time, which has `usual` places."""
        if function not in self._suspects:
            return usual
        return int(self._running is None and self._due[function] <= now)

    def began(self, function: str) -> None:
        """An event of a function was taken."""
        if function in self._suspects:
            self._running = function

    def ended(self, function: str) -> None:
        """An attempt of a function is over."""
        if self._running == function:
            self._running = None

    def over(self, function: str, seq: int) -> None:
        """An event is over; its function is free with the last of its suspects."""
        left = self._suspects.get(function)
        if left is not None:
            left.discard(seq)
            if not left:
                self.forget(function)

    def forget(self, function: str) -> None:
        """The function is removed, or has no suspect any more."""
        self._suspects.pop(function, None)
        self._due.pop(function, None)

    def due(self, now: float) -> list[str]:
        """Functions that may run an event now."""
        return [function for function, due in self._due.items() if due <= now] if self._running is None else []

    def next_due(self, now: float) -> float | None:
        """When the next function may; None: when none is waited for, or one runs."""
        return min((due for due in self._due.values() if due > now), default=None)
