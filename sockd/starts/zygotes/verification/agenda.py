"""The verifier's work: what waits for a task, what is under way, and what is tried again later.

Owns the timers of what is tried again. Knows nothing of what the work is, except which of it records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from sockd.starts.zygotes.verification.trials import Key, Work
from sockd.starts.zygotes.verification.turns import Turns

MOST_WAITING = 4096
"""Recordings and verifications that wait; a further one is considered again at its function's next start."""


class Agenda:
    """`add` or `add_later`; `taken` for each piece, once `wake` is set and while any is `waiting`; `close` in the end."""

    def __init__(self) -> None:
        self.waiting: Turns[Key, Work] = Turns()
        self.under_way: set[Key] = set()
        self.wake = asyncio.Event()
        """Set with each piece that begins to wait. A task that finds none left clears it."""
        self._later: dict[Key, asyncio.TimerHandle] = {}
        self._postponed: set[Key] = set()
        """Keys of `_later` whose trial found no memory or no Zygote; the trials of the others have failed."""

    @property
    def pending(self) -> int:
        """Recordings and verifications that wait or are under way; those that are tried again later are not counted."""
        return len(self.waiting) + len(self.under_way)

    @property
    def has_work(self) -> bool:
        """Whether anything is still to be recorded or verified, now or when there is memory for it."""
        return bool(self.pending or self._postponed)

    def records(self, program: str) -> bool:
        """Whether the top level of a program is to be recorded, now or later. Args: program: as `ImportView` has it."""
        key = ("", program)
        return key in self.waiting or key in self.under_way or key in self._later

    def add(self, work: Work) -> None:
        """Have a piece of work wait for a task, unless it does already."""
        key = work.key
        self._cancel_later(key)
        if key not in self.waiting and key not in self.under_way and len(self.waiting) < MOST_WAITING:
            self.waiting.add(key, work, is_recording=work.node is None)
            self.wake.set()

    def add_later(self, work: Work, seconds: float, *, is_postponed: bool = False) -> None:
        """Have a piece of work wait for a task after so many seconds, unless it is to do so already.

        Args: is_postponed: its trial found no memory or no Zygote."""
        if work.key not in self._later and len(self._later) < MOST_WAITING:
            again = replace(work, tries=work.tries + 1)
            self._later[work.key] = asyncio.get_running_loop().call_later(seconds, self.add, again)
        if is_postponed and work.key in self._later:
            self._postponed.add(work.key)

    @contextmanager
    def taken(self) -> Iterator[Work]:
        """The next piece, which is under way meanwhile. Raises: KeyError: none waits."""
        key, work = self.waiting.take()
        self.under_way.add(key)
        try:
            yield work
        finally:
            self.under_way.discard(key)

    def drop(self, program: str) -> None:
        """Drop what waits for a program that is not served any more. Args: program: as `ImportView` has it."""
        for key in [key for key in (*self.waiting, *self._later) if key[1] == program]:
            self.waiting.discard(key)
            self._cancel_later(key)

    def close(self) -> None:
        """Try nothing again."""
        for handle in self._later.values():
            handle.cancel()

    def _cancel_later(self, key: Key) -> None:
        self._postponed.discard(key)
        if (handle := self._later.pop(key, None)) is not None:
            handle.cancel()
