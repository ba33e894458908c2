"""Lookups: the lookups of addresses that are under way, and how recent ones ended, each for one source and one name.

Owns their tasks. Knows nothing of sockets and permissions. getaddrinfo(3) sends a query for A and one for AAAA. It reports a
temporary failure only if both answers do, therefore both answers come from one lookup.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from sockd.networks import dns

REMEMBERED_S = 10.0
"""A lookup that began so long ago decides no answer for AAAA any more: resolvers have given up by then (resolv.conf(5))."""
MOST_REMEMBERED = 1024
"""Lookups of all sources. A forgotten one costs a second query to a nameserver, no more."""

LookUp = Callable[[str, str], Coroutine[Any, Any, dns.Addresses]]
_Lookup = tuple[asyncio.Task[dns.Addresses], float]
"""And when it began, on the monotonic clock."""


class Lookups:
    """`addresses` for a query of A, `code` for one of AAAA. A waiter that is cancelled ends no lookup."""

    def __init__(self, look_up: LookUp) -> None:
        """Args: look_up: gets a source and a name, and does not raise."""
        self._look_up = look_up
        self._lookups: dict[tuple[str, str], _Lookup] = {}

    async def addresses(self, source: str, name: str) -> dns.Addresses:
        """What a lookup finds that is under way or begins now. One that has ended is not used: its time to live has begun."""
        task, _ = self._lookups.get((source, name), (None, 0.0))
        if task is None or task.done():
            task = self._begin(source, name)
        return await asyncio.shield(task)

    async def code(self, source: str, name: str) -> int:
        """How a lookup ends that is under way, has just ended, or begins now."""
        task, began_s = self._lookups.get((source, name), (None, 0.0))
        if task is None or (task.done() and time.monotonic() - began_s > REMEMBERED_S):
            task = self._begin(source, name)
        return (await asyncio.shield(task)).code

    def _begin(self, source: str, name: str) -> asyncio.Task[dns.Addresses]:
        task = asyncio.get_running_loop().create_task(self._look_up(source, name))
        self._lookups.pop((source, name), None)
        self._lookups[source, name] = task, time.monotonic()
        if len(self._lookups) > MOST_REMEMBERED:
            del self._lookups[next(iter(self._lookups))]
        return task
