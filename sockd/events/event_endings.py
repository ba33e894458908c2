"""How events end: forgotten, handed on to a destination, or kept as dead letters.

Owns nothing but the numbers. An event leaves the store in the transaction in which what follows it comes in (a dead
letter, the event of another function), or after what follows has its name on the disk (a file, named after the event, so
that writing it twice is writing it once). A disk that is full is waited for: what has run is not run again for it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from sockd.base.blocking import in_thread
from sockd.base.config import EventsConfig
from sockd.base.errors import BadRequest, DatabaseUnavailable, RequestTooLarge, SockdError, StorageFull
from sockd.base.telemetry import Invocation
from sockd.events.clock import Clock, pause
from sockd.events.dead_letter_table import words_of
from sockd.events.destinations import Directories, DirectoryDestination, FunctionDestination, parse_destination
from sockd.events.event import Event
from sockd.events.event_backend import Burial, DeadTotal, Death, EventBackend
from sockd.events.event_policy import FUNCTION_ERRORS, SUCCESS
from sockd.events.event_records import record
from sockd.events.repeated_warnings import RepeatedWarnings

MAX_HOPS = 16
"""Destinations in a row; AWS stops functions that call each other at about as many."""
MAX_STORE_PAUSE_S = 60.0
T = TypeVar("T")
P = ParamSpec("P")
Explain = Callable[[SockdError, str], bytes]
"""An error as JSON; the second is the request's id."""
Check = Callable[[str, str], object]
"""Whether there is this function in this version. Raises: NoSuchFunction."""

_log = logging.getLogger(__name__)


class Endings:
    """Each returns the event that follows, which is in the store already, or None."""

    def __init__(
        self,
        backend: EventBackend,
        directories: Directories,
        config: EventsConfig,
        clock: Clock,
        *,
        check: Check,
        explain: Explain,
        dead_total: DeadTotal,
    ) -> None:
        self._backend = backend
        self._directories = directories
        self._config = config
        self._clock = clock
        self._check = check
        self._explain = explain
        self._warnings = RepeatedWarnings(_log)
        self.counts: dict[str, int] = {}
        """Endings by what they were, since the daemon started."""
        self.dead_total = dead_total

    async def success(self, event: Event, payload: bytes, destination: str, invocation: Invocation) -> Event | None:
        """The function has answered."""
        if not destination:
            await self._written(self._backend.end, event)
            self._count("succeeded")
            return None
        version, answer, now = invocation.version, invocation.body, self._clock.now()
        made = await in_thread(record, event, payload, condition=SUCCESS, now=now, version=version, answer=answer)
        return await self._deliver(event, destination, made)

    async def failure(
        self, event: Event, payload: bytes, destination: str, condition: str, error: SockdError | None
    ) -> Event | None:
        """There will be no other attempt. Args: error: of the last one, if that is why."""
        if not destination:
            await self._bury(event, condition, error)
            return None
        made = await in_thread(
            record,
            *(event, payload),
            condition=condition,
            now=self._clock.now(),
            version=error.invocation.version if error is not None and error.invocation is not None else "",
            answer=self._explain(error, str(uuid.UUID(bytes=event.id))) if error is not None else None,
            is_error=isinstance(error, FUNCTION_ERRORS),
        )
        return await self._deliver(event, destination, made)

    async def begin(self, event: Event) -> bytes | None:
        """Note that an attempt is under way; what the event says. None: it has been removed."""
        return await self._written(self._backend.begin, event)

    async def note(self, event: Event) -> None:
        """Keep what has changed of an event that goes on."""
        await self._written(self._backend.note, event)

    async def _deliver(self, event: Event, destination: str, content: bytes) -> Event | None:
        """Hand a record on, and let go of its event; where that cannot be, it is a dead letter."""
        follower = None
        try:
            target = parse_destination(destination)
            if isinstance(target, DirectoryDestination):
                name = f"{uuid.UUID(bytes=event.id)}.json"
                await in_thread(self._directories.write, target.name, name, content)
                await self._written(self._backend.end, event)
            else:
                follower = await self._forward(event, target, content)
        except (SockdError, OSError) as error:
            words = error.message if isinstance(error, SockdError) else error.strerror
            what = f"event {uuid.UUID(bytes=event.id)}: no delivery to {destination}: {words}"
            self._warnings.warn(f"deliveries of events of {event.function} failed", what)
            await self._bury(event, f"DeliveryFailed: {destination}: {words}", None)
            return None
        self._count("delivered")
        return follower if follower is not None and follower.seq else None  # 0: another worker has the event

    async def _forward(self, event: Event, target: FunctionDestination, content: bytes) -> Event:
        """Make a record the event of another function. Raises: SockdError."""
        self._check(target.name, target.qualifier)
        if event.hops >= MAX_HOPS:
            raise BadRequest(f"it has come through {MAX_HOPS} destinations already")
        if len(content) > self._config.max_payload_bytes:
            raise RequestTooLarge(f"the record has {len(content)} bytes; the limit is {self._config.max_payload_bytes}")
        now = self._clock.now()
        follower = Event(
            *(0, uuid.uuid4().bytes, target.name, target.qualifier, "destination", event.hops + 1),
            *(now, now, 0, 0, 0, len(content)),
        )
        await self._written(self._backend.forward, event, follower, content)
        return follower

    async def _bury(self, event: Event, reason: str, error: SockdError | None) -> None:
        """Make a dead letter of an event."""
        error_type, words = (error.error_type, words_of(error)) if error is not None else ("", "")
        death = Death(self._clock.now(), reason, error_type, words)
        self.count_burial(await self._written(self._backend.bury, event, death))

    def close(self) -> None:
        """Say what has been counted of warnings."""
        self._warnings.close()

    def count_burial(self, burial: Burial) -> None:
        """Count the dead letters that were added, and log those that were deleted to make room."""
        self.dead_total = burial.total
        if burial.buried:
            self._count("dead", burial.buried)
        if burial.dropped:
            self._count("dropped", burial.dropped)
            what = f"{burial.dropped} dead letters were dropped: there is room for {self._config.max_dead}"
            self._warnings.warn("dead letters were dropped", what)

    async def _written(self, verb: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a verb of the backend returns, which is called again until the backend could do it."""
        delay_s = 1.0
        while True:
            try:
                return await verb(*args, **kwargs)
            except (StorageFull, DatabaseUnavailable) as error:
                what = f"events cannot be written: {error}; again in {delay_s:.0f} s"
                self._warnings.warn("events cannot be written", what)
                await pause(self._clock, delay_s)
                delay_s = min(delay_s * 2, MAX_STORE_PAUSE_S)

    def _count(self, outcome: str, number: int = 1) -> None:
        self.counts[outcome] = self.counts.get(outcome, 0) + number
