"""EndpointPool: endpoints of one walled Zygote, made before they are needed (Mohan et al., "Agile Cold Starts").

Owns those that are not taken yet, and those whose processes are gone. `take` costs microseconds; what is taken is made anew
off the path, and what is not there when it is needed is made on the path and counted. While none are taken, more are made than
the last minute asked for, so that a burst from idle finds them. The kernel's work to remove endpoints is done between bursts as
well, for all of them at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from typing import Protocol

from sockd.base.errors import NoCapacity
from sockd.isolation.networks.demand import Demand
from sockd.isolation.networks.endpoint import EMPTY_MEMORY_BYTES, MEMORY_BYTES, Endpoint, Reserved
from sockd.isolation.networks.router import Router

AT_ONCE = 8
"""Namespaces that are asked of a Zygote in one message."""
FEW = 1 / 8
"""The share of the wanted endpoints: with fewer ready they are made anew at once, else when the burst is over."""
QUIET_S = 0.05
"""A burst is over when none was taken for so long."""
MOST_ENDED = 128
"""Endpoints that wait for their removal; with one more, all are removed at once."""
_log = logging.getLogger(__name__)


class NamespaceMaker(Protocol):
    """Makes network namespaces that one Zygote may enter: owned by its user namespace."""

    async def make(self, count: int) -> list[int]:
        """New empty namespaces' descriptors, the caller's from now on. Raises: OSError."""
        ...


class EndpointPool:
    """`take`, or else `make`; `adjust` now and then; `aclose` closes what was not taken."""

    def __init__(
        self,
        maker: NamespaceMaker,
        router: Router | None,
        demand: Demand,
        reserve: Callable[[int], Reserved | None],
        idle_share: Callable[[], int] = lambda: 0,
        is_short: Callable[[], bool] = lambda: False,
    ) -> None:
        """Args:
        router: endpoints are connected to it; None: they are empty, for functions without network.
        reserve: sets memory aside, or has none.
        idle_share: how many should be ready while none are taken, whatever the demand was.
        is_short: whether memory is too scarce for more than the demand."""
        self._maker = maker
        self._router = router
        self._demand = demand
        self._reserve = reserve
        self._idle_share = idle_share
        self._is_short = is_short
        self._size = EMPTY_MEMORY_BYTES if router is None else MEMORY_BYTES
        self._ready: deque[Endpoint] = deque()
        self._ended: list[Endpoint] = []
        self._loop = asyncio.get_running_loop()
        self._refilling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._taken_s = 0.0
        self._is_closed = False
        self.hits = 0
        """Endpoints that were ready."""
        self.misses = 0
        """Endpoints that were made on the path."""

    def __len__(self) -> int:
        """How many are ready."""
        return len(self._ready)

    def take(self) -> Endpoint | None:
        """A ready endpoint, the caller's; None: there is none, which is a miss: `make` one."""
        self._taken_s = self._loop.time()
        self._demand.note(self._taken_s)
        endpoint = self._ready.popleft() if self._ready else None
        if endpoint is None:
            self.misses += 1
        else:
            self.hits += 1
        if len(self._ready) < self._demand.wanted(self._taken_s) * FEW:
            self._refill()
        self._await_quiet()
        return endpoint

    async def make(self) -> Endpoint:
        """An endpoint that is made now (1.6 ms alone). Raises: NoCapacity: no memory or address; OSError."""
        (namespace,) = await self._maker.make(1)
        return await self._furnish(namespace)

    def take_back(self, endpoint: Endpoint) -> None:
        """Its last process is gone: it is removed between two bursts, for no other sandbox gets it."""
        self._ended.append(endpoint)
        if self._is_closed or len(self._ended) > MOST_ENDED:
            self._remove_ended()
        else:
            self._await_quiet()

    def adjust(self) -> None:
        """Remove those that have ended; make or close others until there are as many as the last minute asked for, or the idle
        share."""
        self._remove_ended()
        wanted = max(self._demand.wanted(self._loop.time()), self._idle_share())
        while len(self._ready) > wanted:
            self._ready.popleft().close()
        self._refill()

    @property
    def spare_bytes(self) -> int:
        """Memory of endpoints that are ready beyond the demand of the last minute."""
        return max(0, len(self._ready) - self._demand.wanted(self._loop.time())) * self._size

    def make_room(self, need_bytes: int) -> int:
        """Close endpoints beyond the demand until they give back so many bytes. Returns: how many they gave."""
        count = min(self.spare_bytes, need_bytes + self._size - 1) // self._size
        for _ in range(count):
            self._ready.popleft().close()
        return count * self._size

    async def aclose(self) -> None:
        """Close all that are ready; those that were taken are their takers'."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._refilling is not None:
            self._refilling.cancel()
            await asyncio.wait([self._refilling])
        while self._ready:
            self._ready.popleft().close()
        self._remove_ended()

    def _remove_ended(self) -> None:
        while self._ended:
            self._ended.pop().close()

    def _await_quiet(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(QUIET_S, self._when_quiet)

    def _when_quiet(self) -> None:
        self._timer = None
        rest_s = self._taken_s + QUIET_S - self._loop.time()
        if rest_s > 0:
            self._timer = self._loop.call_later(rest_s, self._when_quiet)
        else:
            self._remove_ended()
            self._refill()

    def _refill(self) -> None:
        if self._refilling is None and not self._is_closed and self._missing() > 0:
            self._refilling = self._loop.create_task(self._make_missing())
            self._refilling.add_done_callback(self._refilled)

    def _refilled(self, task: asyncio.Task[None]) -> None:
        """What failed is tried again with the next `take` or `adjust`."""
        self._refilling = None
        if not task.cancelled() and (error := task.exception()) is not None:
            level = logging.DEBUG if isinstance(error, NoCapacity) else logging.WARNING
            _log.log(level, "no networks are made ahead for now: %s", error)

    def _missing(self) -> int:
        """POLICY: during a burst its demand is enough: each endpoint that is made takes a processor for 1 ms."""
        now_s = self._loop.time()
        wanted = self._demand.wanted(now_s)
        if now_s - self._taken_s >= QUIET_S and not self._is_short():
            wanted = max(wanted, self._idle_share())
        return wanted - len(self._ready)

    async def _make_missing(self) -> None:
        while (missing := self._missing()) > 0:
            namespaces = deque(await self._maker.make(min(missing, AT_ONCE)))
            try:
                while namespaces:
                    self._ready.append(await self._furnish(namespaces.popleft()))
            finally:
                for namespace in namespaces:
                    os.close(namespace)

    async def _furnish(self, namespace: int) -> Endpoint:
        """An endpoint out of a namespace, which is closed if that fails."""
        memory = self._reserve(self._size)
        if memory is None and self._ended:
            self._remove_ended()
            memory = self._reserve(self._size)
        if memory is None:
            os.close(namespace)
            raise NoCapacity("no memory is free for another network")
        if self._router is None:
            return self._own(Endpoint(namespace, memory))
        try:
            address = self._router.addresses.take()
        except NoCapacity:
            os.close(namespace)
            memory.close()
            raise
        endpoint = Endpoint(namespace, memory, self._router, address)
        try:
            await self._router.connect(namespace, address)
        except BaseException:
            endpoint.close()
            raise
        return self._own(endpoint)

    def _own(self, endpoint: Endpoint) -> Endpoint:
        endpoint.take_back = self.take_back
        return endpoint
