"""The asynchronous side of the daemon: events that run later and schedules that make them, over the worker's functions.

Owns both, and the membership of a group. Built before the ports open; what waits from an earlier life begins to run after that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sockd.base.config import Config
from sockd.base.errors import NoSuchFunction
from sockd.base.invoke_request import InvokeRequest
from sockd.base.telemetry import Invocation
from sockd.events.destinations import Directories
from sockd.events.dispatcher import Functions
from sockd.events.event_backend import EventBackend, Recovered
from sockd.events.events import Events
from sockd.events.membership import Membership
from sockd.events.schedules.schedules import Schedules
from sockd.events.sqlite_events import SqliteEvents
from sockd.http.server.messages.answers import error_body
from sockd.linux.wall_clock import WallTimer
from sockd.observe.metrics import Metrics
from sockd.worker.worker import Worker

if TYPE_CHECKING:
    from sockd.events.postgres.group import PostgresGroup

EVENTS = "events.sqlite"
_log = logging.getLogger(__name__)


class StoredEvents(NamedTuple):
    """The open backend of events, and what it has recovered of an earlier daemon."""

    backend: EventBackend
    recovered: Recovered
    group: PostgresGroup | None
    """The workers that share the database, if this one is in a group."""

    @classmethod
    async def open(cls, config: Config, state_path: Path, *, is_first: bool) -> StoredEvents:
        """Open the file of the events, which the first worker on a state directory makes before it can have functions, or
        the database in its place.

        Args: is_first: no function is recorded, so that there need be no file yet.
        Raises: BadEventStore, BadDatabase, DatabaseUnavailable, OtherGroup; OSError."""
        backend, group = await _backend(config, state_path / EVENTS, is_first=is_first)
        try:
            if group is not None:
                await group.join(config.group.name)
            return cls(backend, await backend.recover(time.time()), group)
        except BaseException:
            await backend.aclose()
            raise


async def _backend(config: Config, path: Path, *, is_first: bool) -> tuple[EventBackend, PostgresGroup | None]:
    if config.postgres.dsn:
        from sockd.events.postgres.events import PostgresEvents  # 4 MB that a worker without PostgreSQL does not need

        postgres = msgspec.structs.replace(config.postgres, worker=config.worker_name)
        silent_s = config.group.silent_s if config.group.name else 0.0
        backend = await PostgresEvents.open(postgres, config.events, silent_s=silent_s)
        return backend, backend.group if config.group.name else None
    if not is_first:
        _warn_of_loss(path)
    return SqliteEvents.open(path, config.events), None


def _warn_of_loss(path: Path) -> None:
    if not (path.exists() and path.stat().st_size):
        _log.warning(
            "%s was lost: waiting events, dead letters and schedules are gone; to get those of a backup: stop sockd, "
            "sockd restore it with --replace, start sockd",
            EVENTS,
        )


class Asynchronous:
    """`start`, `stop`, then `aclose`."""

    def __init__(
        self,
        worker: Worker,
        stored: StoredEvents,
        invoke: Callable[[InvokeRequest], Awaitable[Invocation]],
        metrics: Metrics,
        about: Callable[[], dict[str, Any]],
    ) -> None:
        """Args: stored: closed by `aclose`; about: what the worker reports to its group. Raises: BadConfig."""
        config, path = worker.config.events, worker.state.path
        self._worker = worker
        directories = Directories(path / "destinations", config.directories)
        functions = Functions(invoke, self._check, self._places, error_body, worker.functions.live.incarnation)
        backend, recovered, group = stored
        self.events = Events(backend, recovered, functions, directories, config)
        worker.functions.live.allowances.resized.append(self.events.take_more)
        read_schedule = group.schedule if group is not None else None
        self.schedules = Schedules(self.events, recovered.schedules, self._check, read_schedule)
        self.membership: Membership | None = None
        if group is not None:
            divide, follow = worker.shares.change, worker.cache.follow if worker.cache is not None else None
            self.membership = Membership(
                group, self.events, self.schedules, worker.config.group, partial(self._about, about), divide, follow
            )
            worker.shares.wanting.append(self.membership.report_soon)
        watch(metrics, self.events, self.schedules)

    def start(self) -> None:
        """Run what is due, from now on."""
        self.events.start()
        self.schedules.start(WallTimer)
        if self.membership is not None:
            self.membership.start()

    def stop(self) -> None:
        """Begin nothing any more."""
        if self.membership is not None:
            self.membership.stop()
        self.schedules.stop()
        self.events.stop()

    async def aclose(self) -> None:
        """End, when what runs has ended."""
        if self.membership is not None:
            await self.membership.aclose()
        await self.schedules.aclose()
        await self.events.aclose()

    async def forget(self, function: str) -> None:
        """A function has been removed."""
        await self.events.forget(function)
        self.schedules.forget(function)

    async def forget_qualifier(self, function: str, qualifier: str) -> None:
        """A version of a function, or an alias, has been removed."""
        await self.events.forget_qualifier(function, qualifier)
        self.schedules.forget(function, qualifier)

    def status(self) -> dict[str, Any]:
        """For `/status`."""
        return {"events": {**self.events.status(), "schedules": len(self.schedules.all())}}

    def _about(self, about: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What the worker reports to its group. Functions whose events wait for their concurrency want more of it."""
        for function, count in self.events.crowded().items():
            self._worker.shares.want(function, count)
        return about()

    def _check(self, name: str, qualifier: str) -> None:
        if qualifier or not self._is_live(name):
            self._worker.versions.get(name, qualifier)

    def _is_live(self, name: str) -> bool:
        try:
            self._worker.functions.live.allowances.admission(name)
        except NoSuchFunction:
            return False
        return True

    def _places(self, name: str) -> int:
        try:
            return (
                self._worker.functions.live.allowances.admission(name).concurrency or 1
            )  # 0: the call is refused, and tried again
        except NoSuchFunction:
            return 1  # for finding out whether it is gone or has to be installed again


def watch(metrics: Metrics, events: Events, schedules: Schedules) -> None:
    """Have the numbers of events read at each scrape."""
    metrics.gauge("events", "Events that are not over, by state.", events.depth, label="state")
    metrics.gauge("events_oldest_age_seconds", "Age of the oldest event that is not over.", events.oldest_age_s)
    metrics.counter("schedule_ticks", "Events made by schedules.", lambda: schedules.ticks)
    metrics.gauge("events_dead", "Dead letters that are kept.", events.dead)
    metrics.counter("events_accepted", "Events accepted.", lambda: events.accepted)
    metrics.counter(
        "event_attempts", "Attempts to run an event, by what became of them.", events.attempts, label="outcome"
    )
    metrics.counter("events_ended", "Events that are over, by how they ended.", events.endings, label="ending")
