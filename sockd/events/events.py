"""Asynchronous invocation: accepts events, and has them run until each is over.

Owns the backend and the dispatcher. `accept` returns when the event is committed: from then on it survives the
daemon's death, runs at least once, and ends at a destination or as a dead letter.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid
from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

from sockd.base.config import EventsConfig
from sockd.base.errors import DatabaseUnavailable, Draining, RequestTooLarge, StorageFull
from sockd.base.telemetry import TraceContext
from sockd.base.trace_context import kept
from sockd.events.clock import Clock, LoopClock
from sockd.events.dead_letters import DeadLetters, described
from sockd.events.destinations import Directories
from sockd.events.dispatcher import Dispatcher, Functions
from sockd.events.event import Event
from sockd.events.event_backend import EventBackend, Recovered
from sockd.events.event_endings import Endings
from sockd.events.event_records import embedded
from sockd.events.event_room import EventRoom
from sockd.events.invoke_configs import InvokeConfigs

CLOSE_DEADLINE_S = 2.0

_log = logging.getLogger(__name__)


class Events:
    """`start` when the functions are there; `stop` when they begin to go; `aclose`."""

    def __init__(
        self,
        backend: EventBackend,
        recovered: Recovered,
        functions: Functions,
        directories: Directories,
        config: EventsConfig,
        clock: Clock | None = None,
    ) -> None:
        """Args: backend: closed by `aclose`; recovered: what it has recovered."""
        self.config = config
        self.clock = clock or LoopClock()
        self._functions = functions
        self.backend = backend
        self.invoke_configs = InvokeConfigs(backend, functions.check, directories, self.clock)
        self._endings = Endings(
            backend,
            directories,
            config,
            self.clock,
            check=functions.check,
            explain=functions.explain,
            dead_total=recovered.dead,
        )
        self._dispatcher = Dispatcher(functions, self._endings, self.invoke_configs, config, self.clock)
        self.dead_letters = DeadLetters(backend, self._endings, self.clock, self._dispatcher.add)
        self.take_up(recovered)
        self._room = EventRoom(self._dispatcher.queue, config)
        self._closing = False
        self.accepted = 0
        """Since the daemon started."""

    def take_up(self, recovered: Recovered) -> None:
        """Run events that a daemon has left, and follow the settings that are stored now."""
        for function, count in Counter(each.function for each in recovered.suspects).items():
            _log.warning(
                "a daemon died while %d of the events of %s ran: they run late and one at a time", count, function
            )
        self._endings.dead_total = recovered.dead
        self.invoke_configs.take_up(recovered.configs)
        self._dispatcher.add_all(recovered.waiting, recovered.suspects)

    def start(self) -> None:
        """Run what is due, from now on."""
        self._dispatcher.start()

    async def pause(self, deadline_s: float) -> None:
        """Begin nothing until `resume`, and wait for what runs, until the deadline. Events are still accepted."""
        self._dispatcher.stop()
        await self._dispatcher.running_ended(deadline_s)

    def resume(self) -> None:
        """Run what is due again."""
        if not self._closing:
            self._dispatcher.start()

    def take_more(self, function: str) -> None:
        """Begin what is due of a function that may have more places now."""
        self._dispatcher.take_more(function)

    def crowded(self) -> dict[str, int]:
        """Return how many events run or are due, of each function that has no place for another."""
        return self._dispatcher.queue.crowded()

    def stop(self) -> None:
        """Accept and begin nothing any more."""
        self._closing = True
        self._dispatcher.stop()

    async def aclose(self) -> None:
        """Let attempts that have their answer end, and close the backend."""
        self.stop()
        await self._dispatcher.aclose(CLOSE_DEADLINE_S)
        self._endings.close()
        try:
            await self.backend.interrupt()
        except (StorageFull, DatabaseUnavailable) as error:
            _log.error("events that were cut off count as running when the daemon died: %s", error)
        await self.backend.aclose()

    # -- accepting

    async def accept(
        self,
        name: str,
        qualifier: str,
        payload: bytes,
        *,
        source: str,
        retry_key: str = "",
        trace: TraceContext | None = None,
    ) -> str:
        """Have a function run later, once at least. Returns the request id of its attempts, when it is committed.

        Args: retry_key: what a retry of this very call has in common with it; within some minutes it is no other event.
        Raises: NoSuchFunction, RequestTooLarge, TooManyEvents, Draining, StorageFull,
        DatabaseUnavailable."""
        self._functions.check(name, qualifier)
        if len(payload) > self.config.max_payload_bytes:
            raise RequestTooLarge(
                f"the payload has {len(payload)} bytes; the limit of an asynchronous invocation is "
                f"{self.config.max_payload_bytes}"
            )
        now = self.clock.now()
        event = Event(0, uuid.uuid4().bytes, name, qualifier, source, 0, now, now, 0, 0, 0, len(payload))
        if trace is not None:
            event.trace = kept(trace)
        key = b""
        if retry_key:
            about = f"{name}\0{self._functions.incarnation(name)}\0{qualifier}\0{retry_key}\0"
            key = hashlib.sha256(about.encode() + payload).digest()
        # On its own: a caller that leaves must not leave an event in the store that this worker does not know of.
        accepting = asyncio.ensure_future(self._accept(event, payload, key))
        return str(uuid.UUID(bytes=await asyncio.shield(accepting)))

    async def _accept(self, event: Event, payload: bytes, key: bytes) -> bytes:
        with self.room(event.function, event.size):
            event_id = await self.backend.accept(event, payload, key)
        if event.seq:
            self.added(event)
        return event_id

    def room(self, function: str, size_bytes: int) -> AbstractContextManager[None]:
        """Room for an event that is being written, for the length of a block.

        Raises: Draining, here; TooManyEvents, when too much waits already, as the block begins."""
        if self._closing:
            raise Draining("the worker is shutting down")
        return self._room.held(function, size_bytes)

    def added(self, event: Event) -> None:
        """Have an event run that is in the store."""
        self.accepted += 1
        self._dispatcher.add(event)

    # -- functions

    async def forget(self, function: str) -> None:
        """A function has been removed: what waits for it becomes dead letters, and its settings go."""
        queue = self._dispatcher.queue
        running = [entry.event.seq for entry in queue.entries() if entry.event.seq in queue.running]
        queue.drop_function(function)
        self._dispatcher.probation.forget(function)
        self._endings.count_burial(await self.backend.forget(function, self.clock.now(), running=running))
        self.invoke_configs.forget(function)

    async def forget_qualifier(self, function: str, qualifier: str) -> None:
        """A version of a function, or an alias, has been removed: its settings go. What waits for it fails as it is run."""
        await self.backend.forget_qualifier(function, qualifier)
        self.invoke_configs.forget(function, qualifier)

    # -- looking

    def waiting(self, function: str | None, limit: int) -> list[dict[str, Any]]:
        """Events that are not over, oldest first."""
        running = self._dispatcher.queue.running
        entries = (each.event for each in self._dispatcher.queue.entries() if function in (None, each.event.function))
        return [
            {**described(event), "state": "running" if event.seq in running else "waiting"}
            for event, _ in zip(entries, range(limit), strict=False)
        ]

    async def show(self, event_id: str) -> dict[str, Any]:
        """One that is not over, or a dead letter, with its payload. Raises: NoSuchEvent."""
        queue = self._dispatcher.queue
        entries = (entry.event for entry in queue.entries())
        event = next((each for each in entries if str(uuid.UUID(bytes=each.id)) == event_id), None)
        if event is None:
            return await self.dead_letters.show(event_id)
        payload = await self.backend.payload(event)
        state = "running" if event.seq in queue.running else "waiting"
        return {**described(event), "state": state, "payload": embedded(payload or b"")}

    def depth(self) -> dict[str, int]:
        """Events that are not over, by state."""
        queue = self._dispatcher.queue
        return {"waiting": len(queue) - len(queue.running), "running": len(queue.running)}

    def oldest_age_s(self) -> float:
        """How long the oldest event has been here."""
        oldest = self._dispatcher.queue.oldest()
        return max(self.clock.monotonic() - oldest.born, 0.0) if oldest is not None else 0.0

    def attempts(self) -> dict[str, int]:
        """Attempts so far, by what became of them."""
        return self._dispatcher.attempts

    def endings(self) -> dict[str, int]:
        """Events that are over, by how they ended."""
        return self._endings.counts

    def status(self) -> dict[str, Any]:
        """For `/status`."""
        return {
            **self.depth(),
            "waiting_bytes": self._dispatcher.queue.size_bytes,
            "oldest_age_s": round(self.oldest_age_s(), 3),
            "accepted": self.accepted,
            "attempts": dict(self.attempts()),
            "endings": dict(self.endings()),
            "dead": self._endings.dead_total[0],
            "dead_bytes": self._endings.dead_total[1],
            "suspects": len(self._dispatcher.probation),
        }

    def dead(self) -> int:
        """How many dead letters there are."""
        return self._endings.dead_total[0]
