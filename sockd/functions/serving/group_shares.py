"""What this worker may use of limits that hold for its whole group: concurrency, and provisioned sandboxes.

    POLICY: a limit is divided evenly by the workers that are live. What remains goes one each to those that come first by a hash
    of function and worker, so that all workers find the same division without asking each other, and no worker has the remainders
    of all functions. Of a concurrency each worker has one at least, because a function answers through each worker: where the
    concurrency of a function is below the number of workers, they exceed it together.

    A worker whose requests wait for a function's concurrency wants more of it. The others keep what they run then, and those
    that want more divide the rest by what they want; with HAProxy's file all requests of a function come to one worker, its
    home, which has the whole limit. A worker takes only what the others have reported to have given up. One that runs none
    admits one all the same, and the others learn of it by its next report. So the workers may admit more together than the
    limit while a division changes, for two heartbeats at most, and one more for each worker that ran none when it reported
    last.

A worker that is cut off from the database keeps its share, and the others divide the limit without it when it counts as dead. So
shares bound what a group does while its workers see each other, and are no lock. Owns nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

MOST_WANTED = 64
"""Functions of which a worker wants more at a time: those of which it wants most."""


class Claim(NamedTuple):
    """What one worker reports of its share of a function's concurrency."""

    wanted: int
    """Requests under way and waiting, at most; 0: its share is enough."""
    admitted: int
    """Requests that it admits, or runs, at once; 0: it runs none, and admits one."""


Claims = Mapping[str, Mapping[str, Claim]]
"""By worker and function."""


class GroupShares:
    """The shares of one worker; all of each limit, unless it is in a group."""

    def __init__(self, worker: str = "") -> None:
        """Args: worker: its name."""
        self._worker = worker
        self._workers: Sequence[str] = ()
        self._wanted: dict[str, int] = {}
        """How many requests were under way at most when one had to wait, by function. It falls from report to report."""
        self._reported: dict[str, int] = {}
        """What this worker has reported to want, by function."""
        self._claims: Claims = {}
        """What the others have reported."""
        self._contested = frozenset[str]()
        """Functions of whose concurrency a worker wants more than its share."""
        self.followers: list[Callable[[], None]] = []
        """Called when the group has other workers than before."""
        self.claim_followers: list[Callable[[str], None]] = []
        """Called with each function whose division may be another."""
        self.wanting: list[Callable[[], None]] = []
        """Called when this worker wants more than it has reported."""

    @property
    def divisor(self) -> int:
        """The number of workers that divide limits."""
        return max(len(self._workers), 1)

    def change(self, workers: Sequence[str], claims: Mapping[str, str] | None = None) -> bool:
        """Divide by these workers from now on.

        Args: workers: the live ones, with this one; claims: what the others have reported, as JSON, by worker.

        Returns: whether others want more of other functions than before: they wait for this worker's answer."""
        contested_before, workers_before = _contested(self._claims), self._workers
        self._workers = workers
        self._claims = {
            worker: msgspec.json.decode(text, type=dict[str, Claim]) for worker, text in (claims or {}).items()
        }
        if workers != workers_before:
            for follower in self.followers:
                follower()
        contested = _contested(self._claims)
        self._contest({*self._reported, *contested})
        return contested != contested_before

    def want(self, function: str, count: int) -> None:
        """A request of a function waits for its concurrency. Args: count: requests that are under way or wait."""
        if self.divisor == 1:
            return
        self._wanted[function] = max(count, self._wanted.get(function, 0))
        if count >= 2 * self._reported.get(function, 0):
            for listener in self.wanting:
                listener()

    def report(self, under_way: Mapping[str, int], admitted: Callable[[str], int]) -> dict[str, Claim]:
        """Return what this worker claims, by function.

        Args: under_way: requests of each function; admitted: returns what Claim.admitted is of a function."""
        most = sorted(self._wanted, key=lambda function: -self._wanted[function])[:MOST_WANTED]
        self._reported = {function: self._wanted[function] for function in most}
        later = {name: max(under_way.get(name, 0), count * 3 // 4) for name, count in self._wanted.items()}
        self._wanted = {name: count for name, count in later.items() if count > 1}
        self._contest({*self._reported, *_contested(self._claims)})
        return {each: Claim(self._reported.get(each, 0), admitted(each)) for each in sorted(self._contested)}

    def of(self, function: str, limit: int) -> int:
        """Return this worker's even share of a function's limit."""
        return self._even(function, limit, self._worker)

    def of_concurrency(self, function: str, limit: int) -> int:
        """Return this worker's share of a function's concurrency; 0 if the limit is 0: the function is disabled."""
        if limit <= 0 or function not in self._contested:
            return max(self.of(function, limit), min(limit, 1))
        others = [worker for worker in self._workers if worker != self._worker]
        left = limit - sum(self._admitted(function, limit, worker) for worker in others)
        return max(min(self._target(function, limit), left), 1)

    def _target(self, function: str, limit: int) -> int:
        """Return the share that this worker has when all others have reported theirs; 1 if it wants none."""
        wants = {worker: count for worker in self._workers if (count := self._wants(function, worker))}
        if not wants:
            return max(self.of(function, limit), 1)
        if self._worker not in wants:
            return 1
        kept = sum(self._admitted(function, limit, worker) for worker in self._workers if worker not in wants)
        rest = max(limit - kept - len(wants), 0)  # of those that want more, each has one
        total = sum(wants.values())
        left = rest - sum(rest * count // total for count in wants.values())
        first = sorted(wants, key=lambda worker: _rank_of(function, worker))[:left]
        return 1 + rest * wants[self._worker] // total + (self._worker in first)

    def _wants(self, function: str, worker: str) -> int:
        if worker == self._worker:
            return self._reported.get(function, 0)
        claim = self._claims.get(worker, {}).get(function)
        return claim.wanted if claim is not None else 0

    def _admitted(self, function: str, limit: int, worker: str) -> int:
        """Return how many requests another worker may admit: its even share, until it has reported something else."""
        claim = self._claims.get(worker, {}).get(function)
        return claim.admitted if claim is not None else max(self._even(function, limit, worker), 1)

    def _even(self, function: str, limit: int, worker: str) -> int:
        each, rest = divmod(limit, self.divisor)
        return each + (rest > 0 and self._rank(function, worker) < rest)

    def _rank(self, function: str, worker: str) -> int:
        """Return a worker's place among all workers, for one function."""
        mine = _rank_of(function, worker)
        return sum(_rank_of(function, each) < mine for each in self._workers)

    def _contest(self, functions: set[str]) -> None:
        """Divide these by what workers want, and no others."""
        before, self._contested = self._contested, frozenset(functions)
        for function in before | self._contested:
            for follower in self.claim_followers:
                follower(function)


def _contested(claims: Claims) -> set[str]:
    return {name for theirs in claims.values() for name, claim in theirs.items() if claim.wanted}


def _rank_of(function: str, worker: str) -> bytes:
    return hashlib.sha256(f"{function} {worker}".encode()).digest()
