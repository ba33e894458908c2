"""Further data of the page: versions, function URLs, schedules and events, and changes of them.

Owns nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from sockd.base.config import Config
from sockd.base.errors import SecretsLocked
from sockd.events.events import Events
from sockd.events.schedules.schedule_table import Schedule
from sockd.events.schedules.schedules import Schedules
from sockd.http import version_rows
from sockd.http.url_names import UrlNames
from sockd.http.worker import Urls, Versions


class UrlRow(NamedTuple):
    """One function URL."""

    url: str
    qualifier: str
    """An alias; empty: the version that was deployed last."""
    auth: str
    mode: str


class EventCounts(NamedTuple):
    """The queue of asynchronous invocations in numbers."""

    waiting: int
    running: int
    dead: int
    schedules: int
    oldest_age_s: float
    """Age of the oldest event that waits or runs."""


class PageSources(Protocol):
    """Fulfilled by `WorkerSources`."""

    def versions(self, name: str) -> Mapping[str, Any]:
        """As `GET /functions/{name}/versions` of the management API. Raises: NoSuchFunction."""

    def rollback_target(self, name: str) -> Mapping[str, Any] | None:
        """The deploy to which `rollback` returns, as those of `versions`. Raises: NoSuchFunction."""

    async def rollback(self, name: str) -> Mapping[str, Any]:
        """Deploy the code before the last deploy again; the new deploy. Raises: as `Versions.rollback`."""

    def urls(self, name: str) -> Sequence[UrlRow]: ...

    def schedules(self, function: str | None) -> Sequence[Schedule]: ...

    def counts(self) -> EventCounts: ...

    def waiting(self, function: str | None, limit: int) -> list[dict[str, Any]]:
        """Events that wait or run, the oldest first."""

    async def dead_letters(self, function: str | None, limit: int) -> list[dict[str, Any]]:
        """The newest first."""

    async def event(self, event_id: str) -> dict[str, Any]:
        """An event that waits or runs, or a dead letter, with its payload. Raises: NoSuchEvent."""

    async def retry(self, event_id: str) -> None:
        """Have a dead letter run again. Raises: NoSuchEvent."""


class WorkerSources:
    """The sources of a worker."""

    def __init__(
        self,
        versions: Versions,
        urls: Urls,
        events: Events,
        schedules: Schedules,
        config: Config,
        worker_url: Callable[[], str],
    ) -> None:
        """Args: worker_url: gives the address of the public port, which is known when the port is open."""
        self._versions = versions
        self._urls = urls
        self._events = events
        self._schedules = schedules
        self._names = UrlNames(config.function_urls.domain)
        self._worker_url = worker_url

    def versions(self, name: str) -> Mapping[str, Any]:
        return version_rows.described(self._versions, name)

    def rollback_target(self, name: str) -> Mapping[str, Any] | None:
        try:
            record = self._versions.deploy_before(name)
        except SecretsLocked:  # of an environment that does not open, nothing can be compared
            return None
        return version_rows.deploy_of(record) if record is not None else None

    async def rollback(self, name: str) -> Mapping[str, Any]:
        return version_rows.deploy_of(await self._versions.rollback(name))

    def urls(self, name: str) -> Sequence[UrlRow]:
        base = self._worker_url()
        return [
            UrlRow(self._names.url(each.id, base), each.qualifier, each.auth, each.mode)
            for each in self._urls.all_of(name)
        ]

    def schedules(self, function: str | None) -> Sequence[Schedule]:
        return [each for each in self._schedules.all() if function in (None, each.function)]

    def counts(self) -> EventCounts:
        events, depth = self._events, self._events.depth()
        return EventCounts(
            depth["waiting"], depth["running"], events.dead(), len(self._schedules.all()), events.oldest_age_s()
        )

    def waiting(self, function: str | None, limit: int) -> list[dict[str, Any]]:
        return self._events.waiting(function, limit)

    async def dead_letters(self, function: str | None, limit: int) -> list[dict[str, Any]]:
        return await self._events.dead_letters.last(function, limit)

    async def event(self, event_id: str) -> dict[str, Any]:
        return await self._events.show(event_id)

    async def retry(self, event_id: str) -> None:
        await self._events.dead_letters.retry(None, event_id)


_verified: Callable[..., PageSources] = WorkerSources
