"""Where events are kept: the interface of a store in which everything that must not come apart is one verb.

Each verb is one transaction: when it returns, all of it is committed, and when it raises, none of it. A verb may be called
again after an error, also after one that came with the answer of a commit. Knows nothing of functions or of timers.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from sockd.events.attempt_table import Suspect
from sockd.events.dead_letter_table import DeadLetter
from sockd.events.event import Event
from sockd.events.event_configs import EventInvokeConfig
from sockd.events.schedules.schedule_table import Schedule

MOST_AT_ONCE = 10_000
"""Dead letters that one call retries or deletes."""


class DeadTotal(NamedTuple):
    """The number of dead letters, and the bytes of their payloads."""

    number: int
    size_bytes: int


class Recovered(NamedTuple):
    """What a worker finds in its store at a start."""

    waiting: list[Event]
    """Events that are not over, oldest first."""
    suspects: list[Suspect]
    configs: list[EventInvokeConfig]
    schedules: list[Schedule]
    dead: DeadTotal


class Death(NamedTuple):
    """Why an event is a dead letter."""

    at: float
    """Unix time."""
    reason: str
    error_type: str = ""
    error: str = ""


class Burial(NamedTuple):
    """What has become of the dead letters when some were added."""

    buried: int
    dropped: int
    """The number of the oldest that were deleted, because there was no room for all."""
    total: DeadTotal


class EventBackend(Protocol):
    """A store of events, dead letters, event-invoke-configs and schedules; all verbs but `recover` and `aclose` raise
    StorageFull and DatabaseUnavailable."""

    async def recover(self, now: float) -> Recovered:
        """Count the death of the last daemon against the events that it was running; read what is there. Called once, before
        any other verb."""

    async def accept(self, event: Event, payload: bytes, key: bytes = b"") -> bytes:
        """Store an event and set its `seq`, unless `key` was accepted within `events.remember_s`.

        Args: key: what a retry of the call has in common with it; empty: the call is never the same as another.
        Returns: the id of the event that the key stands for, which is another one's if it was known; `seq` is 0 then."""

    async def payload(self, event: Event) -> bytes | None:
        """Return the payload of an event; None: the event is not stored any more."""

    async def begin(self, event: Event) -> bytes | None:
        """Note that an attempt is under way, and return as `payload`."""

    async def note(self, event: Event) -> None:
        """Store when an event is due again and how often it was tried: its attempt is over."""

    async def end(self, event: Event) -> None:
        """Delete an event that is over."""

    async def forward(self, event: Event, follower: Event, payload: bytes) -> None:
        """Replace an event that is over by another one, whose `seq` is set; 0: another worker has the event, which stays."""

    async def bury(self, event: Event, death: Death) -> Burial:
        """Make a dead letter of an event, with what has changed of it; one that is gone stays gone."""

    async def interrupt(self) -> None:
        """Note that no attempt is under way: the daemon ends in order, and what it cuts off is no suspect. Others of its group
        may have its events."""

    async def dead_letters(self, function: str | None, limit: int) -> list[DeadLetter]:
        """Return the newest dead letters, of one function or of all, newest first."""

    async def dead_letter(self, event_id: bytes) -> tuple[DeadLetter, bytes] | None:
        """Return a dead letter and its payload; None: there is none of this id."""

    async def revive(self, function: str | None, event_id: bytes | None, now: float) -> tuple[list[Event], DeadTotal]:
        """Make events of dead letters again, as if accepted now: the one of an id, or those of a function, or all, but no
        more than `MOST_AT_ONCE`."""

    async def discard(self, function: str | None, event_id: bytes | None) -> tuple[int, DeadTotal]:
        """Delete the dead letters that `revive` would take. Returns their number."""

    async def forget(self, function: str, now: float, *, running: list[int]) -> Burial:
        """Remove the settings and schedules of a function that is gone, and bury its events, except the running ones.

        Args: running: their `seq`."""

    async def forget_qualifier(self, function: str, qualifier: str) -> None:
        """Remove the settings and schedules of a version or an alias that is gone."""

    async def configure(self, config: EventInvokeConfig) -> None:
        """Store an event-invoke-config in place of the one of its function and qualifier."""

    async def unconfigure(self, function: str, qualifier: str) -> None:
        """Delete an event-invoke-config, if there is one."""

    async def put_schedule(self, schedule: Schedule) -> None:
        """Store a schedule in place of the one of its name."""

    async def remove_schedule(self, name: str) -> None:
        """Delete a schedule, if there is one."""

    async def tick(self, old: Schedule, ticked: Schedule, event: Event | None, payload: bytes) -> bool:
        """Store a schedule with its next moment and the event of its tick, whose `seq` is set, if the schedule is stored as
        it was before the tick.

        Args: event: None: the tick was missed, and makes none. Returns: whether it was; otherwise nothing has changed."""

    async def aclose(self) -> None:
        """Finish what was asked for, and close. Safe to call twice."""
