"""Attempts of a request: how many, and how long to wait between two of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from sockd.base.http_client.connection import BROKEN, words

Result = TypeVar("Result")
MOST_WAIT_S = 30.0


class Again(Exception):
    """The server asks for another attempt. Args: wait_s: the wait that it asks for, in seconds; None: none."""

    def __init__(self, why: str, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.wait_s = wait_s


class GaveUp(Exception):
    """Every attempt failed; the message says why the last one did."""


class Stopped(Exception):
    """`Retries.stop` was called."""


class Retries:
    """The attempts of one client's requests. Safe for several threads.

    Args:
        attempts: the most for one request.
        first_wait_s: seconds before the second attempt; each wait is twice the one before, and no longer than MOST_WAIT_S."""

    def __init__(self, attempts: int, first_wait_s: float) -> None:
        self.attempts = attempts
        self._first_wait_s = first_wait_s
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End all waits; requests raise Stopped from now on."""
        self._stopped.set()

    def run(self, attempt: Callable[[int], Result]) -> Result:
        """Call `attempt` with 1, 2, …, until it neither breaks (BROKEN) nor raises Again. Raises: GaveUp; Stopped."""
        self._check()
        for number in range(1, self.attempts + 1):
            wait_s = None
            try:
                return attempt(number)
            except Again as again:
                why, wait_s = str(again), again.wait_s
            except BROKEN as error:
                why = words(error)
            if number < self.attempts:
                self.pause(number, wait_s)
        raise GaveUp(why)

    def pause(self, failures: int, asked_s: float | None = None) -> None:
        """Wait before another attempt. Args: asked_s: the seconds that the server asked for. Raises: Stopped."""
        wait_s = self._first_wait_s * 2 ** (failures - 1) if asked_s is None else asked_s
        self._stopped.wait(min(wait_s, MOST_WAIT_S))
        self._check()

    def _check(self) -> None:
        if self._stopped.is_set():
            raise Stopped
