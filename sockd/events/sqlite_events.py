"""The event backend of one worker: its SQLite file, used in a thread that commits many verbs at a time.

Owns the thread, and with it the file.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sockd.base.config import EventsConfig
from sockd.base.errors import DatabaseUnavailable, NoCapacity
from sockd.base.sqlite.store_thread import StoreThread
from sockd.events.dead_letter_table import DeadLetter
from sockd.events.event import Event
from sockd.events.event_backend import MOST_AT_ONCE, Burial, DeadTotal, Death, Recovered
from sockd.events.event_configs import EventInvokeConfig
from sockd.events.event_store import EventStore
from sockd.events.schedules.schedule_table import Schedule

T = TypeVar("T")

_log = logging.getLogger(__name__)


class SqliteEvents:
    """An `EventBackend`."""

    def __init__(self, store: EventStore, config: EventsConfig) -> None:
        """Args: store: owned from now on."""
        self._config = config
        self._thread = StoreThread(store, "sockd-events")

    @classmethod
    def open(cls, path: Path, config: EventsConfig) -> SqliteEvents:
        """Open the file, making an empty one when there is none. Raises: BadEventStore; OSError."""
        return cls(EventStore.open(path, synchronous=config.synchronous), config)

    async def recover(self, now: float) -> Recovered:
        try:
            await self._run(lambda store: store.attempts.recover(now, self._config))
        except NoCapacity as error:  # a full disk: they are suspects all the same, and counted by a later start
            _log.error("the death of the last daemon cannot be recorded: %s", error)

        def recovered(store: EventStore) -> Recovered:
            return Recovered(
                store.waiting(), store.attempts.suspects(), store.configs.all(), store.schedules.all(), _total(store)
            )

        return await self._run(recovered)

    # -- events

    async def accept(self, event: Event, payload: bytes, key: bytes = b"") -> bytes:
        since = event.accepted_at - self._config.remember_s

        def accept(store: EventStore) -> tuple[int, bytes]:
            known = store.known(key, since) if key else None
            if known is not None:
                return 0, known
            if key:
                store.remember(key, event.id, event.accepted_at, since=since, most=self._config.max_remembered)
            return store.add(event, payload), event.id

        event.seq, event_id = await self._run(accept)
        return event_id

    async def payload(self, event: Event) -> bytes | None:
        return await self._run(lambda store: store.payload(event.seq))

    async def begin(self, event: Event) -> bytes | None:
        def begin(store: EventStore) -> bytes | None:
            payload = store.payload(event.seq)
            if payload is not None:
                store.attempts.begin(event.seq)
            return payload

        return await self._run(begin)

    async def note(self, event: Event) -> None:
        await self._run(lambda store: store.note(event))

    async def end(self, event: Event) -> None:
        await self._run(lambda store: store.remove(event.seq))

    async def forward(self, event: Event, follower: Event, payload: bytes) -> None:
        def forward(store: EventStore) -> int:
            store.remove(event.seq)
            return store.add(follower, payload)

        follower.seq = await self._run(forward)

    async def bury(self, event: Event, death: Death) -> Burial:
        def bury(store: EventStore) -> Burial:
            store.bury(event, *death)
            return self._trimmed(store, 1)

        return await self._run(bury)

    async def interrupt(self) -> None:
        await self._run(lambda store: store.attempts.end_all())

    # -- dead letters

    async def dead_letters(self, function: str | None, limit: int) -> list[DeadLetter]:
        return await self._run(lambda store: store.dead.last(limit, function))

    async def dead_letter(self, event_id: bytes) -> tuple[DeadLetter, bytes] | None:
        def dead_letter(store: EventStore) -> tuple[DeadLetter, bytes] | None:
            letter = store.dead.get(event_id)
            return (letter, store.dead.payload(letter) or b"") if letter is not None else None

        return await self._run(dead_letter)

    async def revive(self, function: str | None, event_id: bytes | None, now: float) -> tuple[list[Event], DeadTotal]:
        def revive(store: EventStore) -> tuple[list[Event], DeadTotal]:
            return store.revive(_wanted(store, function, event_id), now), _total(store)

        return await self._run(revive)

    async def discard(self, function: str | None, event_id: bytes | None) -> tuple[int, DeadTotal]:
        def discard(store: EventStore) -> tuple[int, DeadTotal]:
            return sum(map(store.dead.discard, _wanted(store, function, event_id))), _total(store)

        return await self._run(discard)

    # -- functions

    async def forget(self, function: str, now: float, *, running: list[int]) -> Burial:
        def forget(store: EventStore) -> Burial:
            store.configs.remove_function(function)
            store.schedules.remove_function(function)
            return self._trimmed(store, store.dead.bury_function(function, now, "FunctionRemoved", but=running))

        return await self._run(forget)

    async def forget_qualifier(self, function: str, qualifier: str) -> None:
        def forget_qualifier(store: EventStore) -> None:
            store.configs.remove(function, qualifier)
            store.schedules.remove_qualifier(function, qualifier)

        await self._run(forget_qualifier)

    async def configure(self, config: EventInvokeConfig) -> None:
        await self._run(lambda store: store.configs.put(config))

    async def unconfigure(self, function: str, qualifier: str) -> None:
        await self._run(lambda store: store.configs.remove(function, qualifier))

    # -- schedules

    async def put_schedule(self, schedule: Schedule) -> None:
        await self._run(lambda store: store.schedules.put(schedule))

    async def remove_schedule(self, name: str) -> None:
        await self._run(lambda store: store.schedules.remove(name))

    async def tick(self, old: Schedule, ticked: Schedule, event: Event | None, payload: bytes) -> bool:
        def tick(store: EventStore) -> tuple[bool, int]:
            if not store.schedules.advance(old, ticked):
                return False, 0
            return True, store.add(event, payload) if event is not None else 0

        has_ticked, seq = await self._run(tick)
        if event is not None:
            event.seq = seq
        return has_ticked

    async def aclose(self) -> None:
        await self._thread.aclose()

    # -- the thread

    async def _run(self, work: Callable[[EventStore], T]) -> T:
        """Raises: StorageFull, DatabaseUnavailable."""
        try:
            return await self._thread.run(work)
        except sqlite3.Error as error:
            raise DatabaseUnavailable(f"events.sqlite cannot be used: {error}") from error

    def _trimmed(self, store: EventStore, buried: int) -> Burial:
        dropped = store.dead.trim(self._config.max_dead, self._config.max_dead_bytes)
        return Burial(buried, dropped, _total(store))


def _total(store: EventStore) -> DeadTotal:
    return DeadTotal(*store.dead.total())


def _wanted(store: EventStore, function: str | None, event_id: bytes | None) -> list[DeadLetter]:
    if event_id is None:
        return store.dead.last(MOST_AT_ONCE, function)
    found = store.dead.get(event_id)
    return [found] if found is not None else []
