"""Canaries: second versions of aliases, withdrawn when too many of their requests fail, or promoted when they hold.

Owns the counts of the requests, which begin anew with each worker, a timer for each canary, and the tasks that change aliases.
What guards a canary, and what became of it, is in the registry.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from sockd.base.errors import FunctionFailed, SandboxDied, SockdError, TimedOut
from sockd.base.invoke_request import InvokeRequest, Sink
from sockd.base.telemetry import Invocation
from sockd.functions.registry.aliases import Alias, Guard

WINDOW = 1000
"""Requests of a canary that are looked at, the newest ones."""
FAILURES = (FunctionFailed, SandboxDied, TimedOut)
"""What the code of a version is to blame for; a refused request, or one without memory, says nothing of it."""
SERVER_ERRORS = range(500, 600)
"""The statuses of a web app's answers that are failures."""
LONGEST_TIMER_S = 86400.0

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Canary:
    """The requests of one guarded version."""

    def __init__(self, alias: Alias, guard: Guard) -> None:
        self.alias = alias
        self.guard = guard
        self._failures: deque[bool] = deque(maxlen=WINDOW)
        self.failed = 0
        self.timer: asyncio.TimerHandle | None = None
        self.is_ending = False
        """Its alias is being changed, and its requests are not judged meanwhile."""

    @property
    def requests(self) -> int:
        """How many of its requests are looked at."""
        return len(self._failures)

    def add(self, *, failed: bool) -> None:
        """Count one request."""
        if len(self._failures) == WINDOW:
            self.failed -= self._failures[0]
        self._failures.append(failed)
        self.failed += failed


class Aliases(Protocol):
    """The aliases of all functions."""

    def guarded(self, name: str, qualifier: str) -> Alias | None:
        """Return the alias of this name, if its second version is guarded."""

    async def put_alias(self, alias: Alias, *, old: Alias) -> Alias:
        """Change an alias, if it is still the old one. Raises: SockdError."""


class Canaries:
    """The guarded versions of all functions, for one event loop. `close` it."""

    def __init__(self, aliases: Aliases) -> None:
        self._aliases = aliases
        self._canaries: dict[tuple[str, str], Canary] = {}
        """By function and alias; one is made by the first request."""
        self._endings: set[asyncio.Task[None]] = set()

    async def watched(self, request: InvokeRequest, number: str, running: Awaitable[T]) -> T:
        """Wait for an invocation, and count it if it is a canary's. Raises: as `running`.

        Args: number: the version that serves it."""
        canary = self._find(request.name, request.qualifier)
        if canary is None or number != canary.alias.other:
            return await running
        watched = None
        if request.sink is not None:
            request.sink = watched = _StatusSink(request.sink)
        try:
            answer = await running
        except FAILURES:
            self._count(canary, failed=True)
            raise
        self._count(canary, failed=watched is not None and watched.status in SERVER_ERRORS)
        return answer

    def _find(self, name: str, qualifier: str) -> Canary | None:
        """Return the counts of an alias as it is now: each change of it begins them anew."""
        alias = self._aliases.guarded(name, qualifier)
        if alias is None or alias.guard is None:
            return None
        canary = self._canaries.get((name, qualifier))
        if canary is None or canary.alias.revision != alias.revision:
            self._drop((name, qualifier))
            canary = self._canaries[name, qualifier] = Canary(alias, alias.guard)
            self._arm(canary)
        return canary

    def _arm(self, canary: Canary) -> None:
        """Judge it when it has held: there may be no request at that time."""
        left_s = canary.guard.since_s + canary.guard.hold_s - time.time()
        if left_s > 0:
            loop = asyncio.get_running_loop()
            canary.timer = loop.call_later(min(left_s, LONGEST_TIMER_S), self._woken, canary)

    def _woken(self, canary: Canary) -> None:
        self._arm(canary)
        self._judge(canary)

    def _count(self, canary: Canary, *, failed: bool) -> None:
        canary.add(failed=failed)
        self._judge(canary)

    def _judge(self, canary: Canary) -> None:
        alias, verdict = canary.alias, canary.guard.verdict(canary.requests, canary.failed, time.time())
        if verdict is None or canary.is_ending or self._canaries.get((alias.name, alias.alias)) is not canary:
            return
        if self._aliases.guarded(alias.name, alias.alias) != alias:
            self._drop((alias.name, alias.alias))  # it was changed or removed meanwhile
            return
        canary.is_ending = True
        ending = asyncio.get_running_loop().create_task(self._end(canary, promotes=verdict))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _end(self, canary: Canary, *, promotes: bool) -> None:
        alias = canary.alias
        found = f"{canary.failed} of {canary.requests} requests failed, where {canary.guard.most_errors * 100:.4g} % of them may"
        outcome = f"version {alias.other} {'was promoted' if promotes else 'was withdrawn'}: {found}"
        try:
            await self._aliases.put_alias(alias.decided(promotes=promotes, outcome=outcome), old=alias)
        except SockdError as error:  # it is judged again at its next request
            _log.error(
                "alias %s of %s cannot be changed, and keeps its canary: %s", alias.alias, alias.name, error.message
            )
            canary.is_ending = False
            return
        if self._canaries.get((alias.name, alias.alias)) is canary:
            self._drop((alias.name, alias.alias))
        (_log.info if promotes else _log.warning)("alias %s of %s: %s", alias.alias, alias.name, outcome)

    def counts(self, name: str, alias: str) -> tuple[int, int]:
        """Return how many requests of an alias's canary were looked at, and how many of them failed."""
        canary = self._find(name, alias)
        return (canary.requests, canary.failed) if canary is not None else (0, 0)

    def _drop(self, key: tuple[str, str]) -> None:
        canary = self._canaries.pop(key, None)
        if canary is not None and canary.timer is not None:
            canary.timer.cancel()

    def close(self) -> None:
        """Judge nothing any more."""
        for key in list(self._canaries):
            self._drop(key)
        for ending in self._endings:
            ending.cancel()


class _StatusSink(Sink):
    """A request's sink that notes the status of the answer."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.status = 0

    @property
    def begun(self) -> Invocation | None:
        return self._sink.begun

    @begun.setter
    def begun(self, begun: Invocation | None) -> None:
        self._sink.begun = begun

    @property
    def on_gone(self) -> Callable[[], None] | None:
        return self._sink.on_gone

    @on_gone.setter
    def on_gone(self, on_gone: Callable[[], None] | None) -> None:
        self._sink.on_gone = on_gone

    async def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        await self._sink.head(status, headers)

    async def chunk(self, data: bytes) -> None:
        await self._sink.chunk(data)
