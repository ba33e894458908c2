"""What this worker may use of limits that hold for its whole group: concurrency, and provisioned sandboxes.

    POLICY: a limit is divided evenly by the workers that are live. What remains goes one each to those that come first by a hash
    of function and worker, so that all workers find the same division without asking each other, and no worker has the remainders
    of all functions. Of a concurrency each worker has one at least, because a function answers through each worker: where the
    concurrency of a function is below the number of workers, they exceed it together.

A worker that is cut off from the database keeps its share, and the others divide the limit without it when it counts as dead. So
shares bound what a group does while its workers see each other, and are no lock. Owns nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence


class GroupShares:
    """The shares of one worker; all of each limit, unless it is in a group."""

    def __init__(self, worker: str = "") -> None:
        """Args: worker: its name."""
        self._worker = worker
        self._workers: Sequence[str] = ()
        self.followers: list[Callable[[], None]] = []
        """Called when the group has other workers than before."""

    @property
    def divisor(self) -> int:
        """The number of workers that divide limits."""
        return max(len(self._workers), 1)

    def change(self, workers: Sequence[str]) -> None:
        """Divide by these workers from now on. Args: workers: the live ones, with this one."""
        if workers == self._workers:
            return
        self._workers = workers
        for follower in self.followers:
            follower()

    def of(self, function: str, limit: int) -> int:
        """Return this worker's share of a function's limit."""
        each, rest = divmod(limit, self.divisor)
        return each + (rest > 0 and self._rank(function) < rest)

    def of_concurrency(self, function: str, limit: int) -> int:
        """Return this worker's share of a function's concurrency; 0 if the limit is 0: the function is disabled."""
        return max(self.of(function, limit), min(limit, 1))

    def _rank(self, function: str) -> int:
        """Return this worker's place among all workers, for one function."""
        mine = _rank_of(function, self._worker)
        return sum(_rank_of(function, worker) < mine for worker in self._workers)


def _rank_of(function: str, worker: str) -> bytes:
    return hashlib.sha256(f"{function} {worker}".encode()).digest()
