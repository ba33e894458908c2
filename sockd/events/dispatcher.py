"""The dispatcher: runs events when they are due, and sees each to its end.

Owns the queue and the attempts under way; how events end is the business of `event_endings`. An event that is cut off in
an attempt is still in the store, and the daemon's successor runs it again.

It is woken by what comes, by what ends, by a function that has more places, and by a timer for what is due next.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import NamedTuple

from sockd.base.config import EventsConfig
from sockd.base.errors import SockdError
from sockd.base.invoke_request import InvokeRequest
from sockd.base.telemetry import Invocation
from sockd.base.trace_context import of_kept
from sockd.events.attempt_table import Suspect
from sockd.events.clock import Clock, Timer
from sockd.events.event import SCHEDULE, Event
from sockd.events.event_endings import Endings
from sockd.events.event_policy import FUNCTION_ERRORS, TOO_OLD, WORKER_DIED, Again, Rules, after_failure, rules
from sockd.events.event_queue import Entry, EventQueue
from sockd.events.invoke_configs import InvokeConfigs
from sockd.events.probation import Probation
from sockd.events.repeated_warnings import RepeatedWarnings

_log = logging.getLogger(__name__)


class Functions(NamedTuple):
    """The functions, as events need them."""

    invoke: Callable[[InvokeRequest], Awaitable[Invocation]]
    """Raises: SockdError."""
    check: Callable[[str, str], object]
    """Whether there is this function in this version. Raises: NoSuchFunction."""
    places: Callable[[str], int]
    """How many events of a function may run at a time."""
    explain: Callable[[SockdError, str], bytes]
    """An error as JSON; the second is the request's id."""
    incarnation: Callable[[str], str]
    """What tells a function from one that had its name before."""


class Dispatcher:
    """`add` gives it what the store has; `stop`, then `aclose`, end it."""

    def __init__(
        self,
        functions: Functions,
        endings: Endings,
        configs: InvokeConfigs,
        config: EventsConfig,
        clock: Clock,
    ) -> None:
        self._functions = functions
        self._endings = endings
        self._configs = configs
        self._config = config
        self._clock = clock
        self._warnings = RepeatedWarnings(_log)
        self._running: set[asyncio.Task[None]] = set()
        self._timer: Timer | None = None
        self._going = False
        self._convicts: list[Event] = []
        """Events that are not tried again, and that no daemon has ended yet."""
        self.probation = Probation()
        self.queue = EventQueue(self._places)
        self.attempts: dict[str, int] = {}
        """Attempts by what became of them, since the daemon started."""

    def start(self) -> None:
        """From now on, run what is due."""
        self._going = True
        self._bury_convicts()
        self._dispatch()

    def _bury_convicts(self) -> None:
        while self._convicts:
            self._begin(self._bury(self._convicts.pop()))

    def stop(self) -> None:
        """Begin nothing any more; what runs goes on."""
        self._going = False
        if self._timer is not None:
            self._timer.cancel()

    async def running_ended(self, deadline_s: float) -> None:
        """Wait until what runs now has ended, until the deadline."""
        if self._running:
            await asyncio.wait(self._running, timeout=deadline_s)

    async def aclose(self, deadline_s: float) -> None:
        """Let what runs end, but no longer than the deadline; what is cut off then is run again by the next daemon."""
        self.stop()
        await self.running_ended(deadline_s)
        for attempt in self._running:
            attempt.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._warnings.close()

    def add(self, event: Event) -> None:
        """Have an event that is in the store run when it is due."""
        self._push(event)
        self._dispatch()

    def take_more(self, function: str) -> None:
        """Begin what is due of a function that may have more places now."""
        self.queue.line_up(function)
        self._dispatch()

    def add_all(self, events: Iterable[Event], suspects: Iterable[Suspect]) -> None:
        """As `add`, for the events of a daemon that has died: the suspects, during which daemons have died, are run late and
        alone, and in the end no more."""
        suspected = {each.seq: each for each in suspects}
        for event in events:
            if event in self.queue:  # it was taken over by another worker, which has died since
                continue
            suspect = suspected.get(event.seq)
            if suspect is not None and suspect.deaths >= self._config.max_deaths:
                self._convicts.append(event)
                continue
            if suspect is not None:
                wait_s = min(max(suspect.due_at - self._clock.now(), 0.0), self._config.max_death_delay_s)
                self.probation.add(event.function, event.seq, self._clock.monotonic() + wait_s)
            self._push(event, was_running=suspect is not None)
        if self._going:
            self._bury_convicts()
        self._dispatch()

    def _push(self, event: Event, *, was_running: bool = False) -> None:
        """Queue an event until it is due, by the wall clock's word of it, within bounds: whatever that clock has done meanwhile,
        nothing waits longer than it ever had to. It may be the clock of a dead worker of the group, which was ahead of ours."""
        now, monotonic = self._clock.now(), self._clock.monotonic()
        longest = max(*self._config.retry_delays_s, self._config.max_throttle_delay_s, 0.0)
        if not event.attempts:
            longest = event.due_at - event.accepted_at
        wait_s = 0.0 if was_running else max(min(event.due_at - now, longest), 0.0)
        self.queue.push(event, due=monotonic + wait_s, born=monotonic - max(now - event.accepted_at, 0.0))

    def rules(self, event: Event) -> Rules:
        """What holds for an event."""
        return rules(self._config, self._configs.get(event.function, event.qualifier))

    def _dispatch(self) -> None:
        """Begin what is due and has a place. What is not due yet is waited for by a timer, a place by whom it is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._going:
            return
        now = self._clock.monotonic()
        for function in self.probation.due(now):
            self.queue.line_up(function)
        while len(self._running) < self._config.concurrency:
            entry = self.queue.take(now)
            if entry is None:
                dues = [due for due in (self.queue.next_due(), self.probation.next_due(now)) if due is not None]
                if dues:
                    self._timer = self._clock.call_later(max(min(dues) - self._clock.monotonic(), 0.0), self._dispatch)
                return
            self.probation.began(entry.event.function)
            self._begin(self._run(entry))

    def _places(self, function: str) -> int:
        return self.probation.places(function, self._functions.places(function), self._clock.monotonic())

    def _begin(self, run: Coroutine[None, None, None]) -> None:
        running = asyncio.ensure_future(run)
        self._running.add(running)
        running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        self._dispatch()

    async def _run(self, entry: Entry) -> None:
        """One attempt, and what comes of it."""
        event, again_s = entry.event, None
        try:
            again_s = await self._attempt(event, self._clock.monotonic() - entry.born)
        except Exception:
            # The event stays in the store for the next daemon; here it holds up no other event.
            _log.exception("event %s of %s", uuid.UUID(bytes=event.id), event.function)
            self.queue.drop(event)
        finally:
            self.probation.ended(event.function)
            self.queue.leave(event)
        if again_s is not None:
            self.queue.push(event, due=self._clock.monotonic() + again_s, born=entry.born)

    async def _attempt(self, event: Event, age_s: float) -> float | None:
        """Returns: in how many seconds there is to be another one."""
        payload = await self._endings.begin(event)
        if payload is None:
            self.probation.over(event.function, event.seq)
            self.queue.drop(event)
            return None
        holds = self.rules(event)
        if age_s >= holds.max_age_s:
            await self._over(event, self._endings.failure(event, payload, holds.on_failure, TOO_OLD, None))
            return None
        trigger = "timer" if event.source.startswith(SCHEDULE) else "other"
        request = InvokeRequest(event.function, payload, event.id, time.monotonic_ns(), trigger=trigger)
        request.qualifier = event.qualifier
        if event.trace:
            request.trace = of_kept(event.trace)
        try:
            invocation = await self._functions.invoke(request)
        except SockdError as error:
            # The frames that it came through have the body in them, and often the error itself: such a cycle would keep
            # megabytes until the garbage collector looks.
            return await self._after_failure(event, payload, error.with_traceback(None), age_s)
        except Exception:
            _log.exception("event %s of %s", uuid.UUID(bytes=event.id), event.function)
            return await self._after_failure(event, payload, SockdError("internal error; see the worker's log"), age_s)
        event.attempts += 1
        self._count("ok")
        await self._over(event, self._endings.success(event, payload, self.rules(event).on_success, invocation))
        return None

    async def _after_failure(self, event: Event, payload: bytes, error: SockdError, age_s: float) -> float | None:
        ran = isinstance(error, FUNCTION_ERRORS)
        if not self._going and not ran:
            return None  # the daemon is ending, and the next one will run it
        event.attempts += 1
        event.failures += ran
        event.throttles += not ran
        self._count("error" if ran else "throttled")
        failures, throttles, holds = event.failures, event.throttles, self.rules(event)
        step = after_failure(
            error, failures=failures, throttles=throttles, age_s=age_s, rules=holds, config=self._config
        )
        again = f"again in {step.delay_s:.0f} s" if isinstance(step, Again) else "the last"
        about = f"event {uuid.UUID(bytes=event.id)} of {event.function}: attempt {event.attempts}"
        self._warnings.warn(
            f"attempts of events of {event.function} failed", f"{about} failed: {error.error_type[:100]!r}; {again}"
        )
        if isinstance(step, Again):
            event.due_at = self._clock.now() + step.delay_s
            await self._endings.note(event)
            return step.delay_s
        await self._over(event, self._endings.failure(event, payload, holds.on_failure, step.condition, error))
        return None

    async def _bury(self, event: Event) -> None:
        """End an event that is not tried again, as too many daemons have died while it ran."""
        payload = await self._endings.begin(event)
        if payload is not None:
            on_failure = self.rules(event).on_failure
            await self._over(event, self._endings.failure(event, payload, on_failure, WORKER_DIED, None))

    async def _over(self, event: Event, ending: Awaitable[Event | None]) -> None:
        """See an event to its end, and what follows it to its beginning."""
        follower = await ending
        self.probation.over(event.function, event.seq)
        self.queue.drop(event)
        if follower is not None:
            self.add(follower)

    def _count(self, outcome: str) -> None:
        self.attempts[outcome] = self.attempts.get(outcome, 0) + 1
