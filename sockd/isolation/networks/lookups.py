"""Lookups: the lookups of addresses that are under way, and how recent ones ended, each for one source and one name.

Owns their tasks. Knows nothing of sockets and permissions. getaddrinfo(3) sends a query for A and one for AAAA. It reports a
temporary failure only if both answers do, therefore both answers come from one lookup.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from sockd.isolation.networks import dns

REMEMBERED_S = 10.0
"""A lookup that began so long ago decides no answer for AAAA any more: resolvers have given up by then (resolv.conf(5))."""
MOST_REMEMBERED = 1024
"""Lookups of all sources. A forgotten one costs a second query to a nameserver, no more."""

REUSED_S = 1.0
"""A function that asks again within so long after the end of a lookup gets the same addresses. They are open for longer than the
answer says (`resolver.GRACE_S`), so that each of these answers is true for its whole lifetime."""

LookUp = Callable[[str, str], Coroutine[Any, Any, dns.Addresses]]
_Key = tuple[str, str, int]
"""Source, name, and the number of the source's rules: other rules have opened nothing yet."""


class _Lookup:
    """A lookup: its task, when it began and when it ended, on the monotonic clock."""

    def __init__(self, task: asyncio.Task[dns.Addresses]) -> None:
        self.task = task
        self.began_s = time.monotonic()
        self.ended_s = 0.0
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[dns.Addresses]) -> None:
        self.ended_s = time.monotonic()

    @property
    def is_recent(self) -> bool:
        """Whether it is under way, or has found addresses a moment ago."""
        if not self.task.done():
            return True
        return bool(self.task.result().addresses) and time.monotonic() - self.ended_s < REUSED_S

    @property
    def is_remembered(self) -> bool:
        """Whether its end still decides an answer for AAAA."""
        return not self.task.done() or time.monotonic() - self.began_s <= REMEMBERED_S


class Lookups:
    """`addresses` for a query of A, `code` for one of AAAA. A waiter that is cancelled ends no lookup."""

    def __init__(self, look_up: LookUp) -> None:
        """Args: look_up: gets a source and a name, and does not raise."""
        self._look_up = look_up
        self._lookups: dict[_Key, _Lookup] = {}

    async def addresses(self, source: str, name: str, rules: int) -> dns.Addresses:
        """What a lookup finds that is under way, has found addresses within `REUSED_S`, or begins now."""
        lookup = self._lookups.get((source, name, rules))
        if lookup is None or not lookup.is_recent:
            lookup = self._begin((source, name, rules))
        return await asyncio.shield(lookup.task)

    async def code(self, source: str, name: str, rules: int) -> int:
        """How a lookup ends that is under way, has just ended, or begins now."""
        lookup = self._lookups.get((source, name, rules))
        if lookup is None or not lookup.is_remembered:
            lookup = self._begin((source, name, rules))
        return (await asyncio.shield(lookup.task)).code

    def _begin(self, key: _Key) -> _Lookup:
        source, name, _ = key
        self._lookups.pop(key, None)
        lookup = self._lookups[key] = _Lookup(asyncio.get_running_loop().create_task(self._look_up(source, name)))
        if len(self._lookups) > MOST_REMEMBERED:
            del self._lookups[next(iter(self._lookups))]
        return lookup
