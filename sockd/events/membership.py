"""A worker's membership of its group: it reports that it is alive, takes over the events of workers that are silent, and follows
what others have changed.

    POLICY: a worker judges the others when it has itself reported without a gap for as long as they may be silent. Otherwise the
    first to reach a database that was away for all of them would take every other worker for dead.

    A worker whose requests wait for a function of which it has claimed nothing so far notifies the others with its report. They
    answer with reports of theirs, and it looks for those twice.

Owns the task that does so. What it does is done again with the next heartbeat, whatever has failed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from sockd.base.config import GroupConfig
from sockd.base.errors import DatabaseUnavailable, StorageFull
from sockd.events.clock import pause
from sockd.events.events import Events
from sockd.events.repeated_warnings import RepeatedWarnings
from sockd.events.schedules.schedules import Schedules

if TYPE_CHECKING:
    from sockd.events.postgres.group import Member, PostgresGroup

SOON_S = 0.1
"""The least time between two reports that a worker was asked for, or had for a notification."""
LOOKS = 2
"""Reports soon after one with a new claim, to read the answers."""
GAP = 1.5
"""The longest time between two reports without a gap, in heartbeats."""
_log = logging.getLogger(__name__)


class Membership:
    """`start` when events run; `stop` with them; `aclose` before they are closed."""

    def __init__(
        self,
        group: PostgresGroup,
        events: Events,
        schedules: Schedules,
        config: GroupConfig,
        about: Callable[[], dict[str, Any]],
        divide: Callable[[Sequence[str], Mapping[str, str]], bool],
        follow_nodes: Callable[[Mapping[str, str]], None] | None = None,
    ) -> None:
        """Args:
        about: what this worker reports of itself; divide: called at each report with the live workers, and with what the others
            claim, by worker; returns whether they wait for another report.
        follow_nodes: called at each report with where the cache nodes of the live workers are, by worker."""
        self._group = group
        self._events = events
        self._schedules = schedules
        self._config = config
        self._about = about
        self._divide = divide
        self._follow_nodes = follow_nodes
        self._warnings = RepeatedWarnings(_log)
        self._revision = 0
        """The revision of what all workers share, as it was read last."""
        self._beating: asyncio.Task[None] | None = None
        self._reported_s = self._since_s = -math.inf
        """When it reported last, and since when it has reported without a gap, on the clock that only grows."""
        self._asked_s = -math.inf
        """When it reported last because it was asked for that."""
        self._reporting = asyncio.Lock()
        self._wanted = frozenset[str]()
        """The functions of which it has claimed more, by its last report."""
        self._looks = 0
        """How often it is still to look for answers soon."""
        self._stopped = False

    def start(self) -> None:
        """Report, now and from now on."""
        self._beating = asyncio.ensure_future(self._beat_on())

    def stop(self) -> None:
        """Take over nothing any more; go on reporting."""
        self._stopped = True

    async def aclose(self) -> None:
        """Report no more. Safe to call twice."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        self._group.close()
        self._warnings.close()

    async def members(self) -> list[Member]:
        """Return the workers of the group, by name. Raises: DatabaseUnavailable."""
        return await self._group.members()

    async def beat(self) -> None:
        """Report, and do what there is to do. Raises: DatabaseUnavailable, StorageFull."""
        async with self._reporting:
            revision = await self._report()
        if self._stopped:
            return
        if self._reported_s - self._since_s >= self._config.silent_s:
            for dead in await self._group.silent():
                await self._take_over(dead)
        if revision != self._revision:
            shared = await self._group.shared()
            self._events.take_up(shared)
            self._schedules.follow(shared.schedules)
            self._revision = revision

    async def report(self) -> None:
        """Report at once what has changed of this worker. Raises: DatabaseUnavailable, StorageFull."""
        async with self._reporting:
            await self._report()

    def report_soon(self) -> None:
        """Have the next report come at once, but for the least time between two."""
        self._group.heard.set()

    async def _beat_on(self) -> None:
        while True:
            self._group.heard.clear()
            try:
                await self.beat()
            except (DatabaseUnavailable, StorageFull) as error:
                self._warnings.warn("the group cannot be reached", f"the group cannot be reached: {error}")
            except Exception:
                _log.exception("the worker's membership of its group")
            delay_s = SOON_S if self._looks else self._config.heartbeat_s
            self._looks = max(self._looks - 1, 0)
            due_s = self._events.clock.monotonic() + delay_s
            await pause(self._events.clock, delay_s, self._group.heard)
            if self._events.clock.monotonic() < due_s:
                await self._space_reports()

    async def _space_reports(self) -> None:
        """Return when the last report that was asked for is long enough ago."""
        delay_s = self._asked_s + SOON_S - self._events.clock.monotonic()
        if delay_s > 0:
            await pause(self._events.clock, delay_s)
        self._asked_s = self._events.clock.monotonic()

    async def _report(self) -> int:
        said = self._about()
        about = msgspec.json.encode(said)
        wanted = frozenset(function for function, (count, _) in said.get("claims", {}).items() if count)
        is_new = not wanted <= self._wanted
        reported = await self._group.report(about, notify=is_new)
        while reported is None:
            if not await self._group.join_again():
                raise DatabaseUnavailable(
                    "another worker has this one's name: stop one of them, or give it another postgres.worker"
                )
            _log.warning("this worker was silent for too long, and others have its events: it joins its group again")
            reported = await self._group.report(about, notify=is_new)
        self._wanted = wanted
        self._looks = LOOKS if is_new else self._looks
        now_s = self._events.clock.monotonic()
        if now_s - self._reported_s > GAP * self._config.heartbeat_s:
            self._since_s = now_s
        self._reported_s = now_s
        if self._divide(reported.workers, dict(each.split(" ", 1) for each in reported.claims)):
            await self._group.report(msgspec.json.encode(self._about()))
        if self._follow_nodes is not None:
            mine = {self._group.owner.worker: said["cache_node"]} if said.get("cache_node") else {}
            self._follow_nodes({**dict(each.split(" ") for each in reported.nodes), **mine})
        return reported.revision

    async def _take_over(self, dead: str) -> None:
        taken = await self._group.take_over(dead, self._events.clock.now())
        if taken is None:
            return
        _log.warning("worker %s of the group is gone: its %d events run here", dead, len(taken.waiting))
        self._events.take_up(taken)
