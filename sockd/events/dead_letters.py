"""Dead letters: events that ended without success, for people to look at, try again or delete.

Owns nothing: they are in the store.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from sockd.base.errors import SockdError
from sockd.events.clock import Clock
from sockd.events.dead_letter_table import STACK_FOLLOWS, DeadLetter
from sockd.events.event import Event
from sockd.events.event_backend import EventBackend
from sockd.events.event_endings import Endings
from sockd.events.event_records import embedded


class NoSuchEvent(SockdError):
    """No dead letter has this id."""

    status = 404
    error_type = "ResourceNotFoundException"


class DeadLetters:
    """The dead-letter queue of a worker."""

    def __init__(self, backend: EventBackend, endings: Endings, clock: Clock, again: Callable[[Event], None]) -> None:
        """Args: again: takes an event that is in the store, to be run."""
        self._backend = backend
        self._endings = endings
        self._clock = clock
        self._again = again

    async def last(self, function: str | None, limit: int) -> list[dict[str, Any]]:
        """The newest, newest first."""
        return [_described(letter) for letter in await self._backend.dead_letters(function, limit)]

    async def show(self, event_id: str) -> dict[str, Any]:
        """One with its payload. Raises: NoSuchEvent."""
        found = await self._backend.dead_letter(_parsed(event_id))
        if found is None:
            raise missing_event(event_id)
        letter, payload = found
        return {**_described(letter), "payload": embedded(payload)}

    async def retry(self, function: str | None, event_id: str | None) -> int:
        """Have dead letters run again, as if they had been accepted now: one, those of a function, or all.

        Returns how many. Raises: NoSuchEvent."""
        wanted = _parsed(event_id) if event_id is not None else None
        events, self._endings.dead_total = await self._backend.revive(function, wanted, self._clock.now())
        if event_id is not None and not events:
            raise missing_event(event_id)
        for event in events:
            self._again(event)
        return len(events)

    async def discard(self, function: str | None, event_id: str | None) -> int:
        """Delete dead letters: one, those of a function, or all. Returns how many. Raises: NoSuchEvent."""
        wanted = _parsed(event_id) if event_id is not None else None
        gone, self._endings.dead_total = await self._backend.discard(function, wanted)
        if event_id is not None and not gone:
            raise missing_event(event_id)
        return gone


def described(event: Event) -> dict[str, Any]:
    """An event for people, JSON-able."""
    return {
        "id": str(uuid.UUID(bytes=event.id)),
        "function": event.function,
        "qualifier": event.qualifier,
        "source": event.source,
        "accepted_at": event.accepted_at,
        "attempts": event.attempts,
        "payload_bytes": event.size,
    }


def _described(letter: DeadLetter) -> dict[str, Any]:
    message, _, stack = letter.error.partition(STACK_FOLLOWS)
    return {
        **described(letter),
        "state": "dead",
        "died_at": letter.died_at,
        "reason": letter.reason,
        "error_type": letter.error_type,
        "error": message,
        "stack": stack.splitlines(),
    }


def _parsed(event_id: str) -> bytes:
    try:
        return uuid.UUID(event_id).bytes
    except ValueError:
        raise missing_event(event_id) from None


def missing_event(event_id: str) -> NoSuchEvent:
    """The error for an id that no event has."""
    return NoSuchEvent(f"no dead letter {event_id[:80]!r}; `sockd events ls` lists them")
