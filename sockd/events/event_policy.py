"""What becomes of an event whose attempt failed: tried again, and when, or ended, and as what.

Pure. The numbers are AWS Lambda's: two retries of a function's own errors, after one and two minutes; what found no place
is tried for six hours, after 1 s, 2 s, 4 s and so on up to 5 minutes.
"""

from __future__ import annotations

from typing import NamedTuple

from sockd.base.config import EventsConfig
from sockd.base.errors import (
    BadRequest,
    FunctionFailed,
    NoSuchFunction,
    RequestTooLarge,
    SandboxDied,
    SockdError,
    TimedOut,
)
from sockd.events.event_configs import EventInvokeConfig

FUNCTION_ERRORS = (FunctionFailed, SandboxDied, TimedOut)
"""The function's own failure: it ran, or tried to."""
HOPELESS = (BadRequest, RequestTooLarge, NoSuchFunction)
"""Trying again cannot help."""
SUCCESS = "Success"
RETRIES_EXHAUSTED = "RetriesExhausted"
TOO_OLD = "EventAgeExceeded"
WORKER_DIED = "WorkerDied"
"""So many daemons have died while it ran that it is not tried again (`probation`)."""


class Rules(NamedTuple):
    """What holds for one event."""

    retries: int
    max_age_s: float
    on_success: str
    on_failure: str


class Again(NamedTuple):
    """The event is tried again."""

    delay_s: float


class Ended(NamedTuple):
    """The event is over; `condition` is AWS's word for it."""

    condition: str


def rules(worker: EventsConfig, function: EventInvokeConfig | None) -> Rules:
    """What a function's own settings and the worker's come to."""
    if function is None:
        return Rules(worker.retries, worker.max_age_s, "", "")
    retries = worker.retries if function.max_retries is None else function.max_retries
    max_age_s = worker.max_age_s if function.max_age_s is None else function.max_age_s
    return Rules(retries, max_age_s, function.on_success, function.on_failure)


def after_failure(
    error: SockdError, *, failures: int, throttles: int, age_s: float, rules: Rules, config: EventsConfig
) -> Again | Ended:
    """POLICY: errors of the function are retried so many times; everything that may pass is retried until the event is
    too old, less and less often; what cannot pass is not. An event that would be too old when its turn comes is
    looked at once more at just that age, and ends.

    Args: failures, throttles: attempts that ended so, this one included."""
    if isinstance(error, HOPELESS):
        return Ended(RETRIES_EXHAUSTED)
    if isinstance(error, FUNCTION_ERRORS):
        if failures > rules.retries:
            return Ended(RETRIES_EXHAUSTED)
        delays = config.retry_delays_s or [0.0]
        delay_s = delays[min(failures, len(delays)) - 1]
    else:
        doubled = config.throttle_delay_s * 2.0 ** min(throttles - 1, 30)
        delay_s = min(doubled, config.max_throttle_delay_s)
    left_s = rules.max_age_s - age_s
    return Again(min(delay_s, left_s)) if left_s > 0 else Ended(TOO_OLD)


def delay_after_death_s(deaths: int, config: EventsConfig) -> float:
    """POLICY: a function waits twice as long after each daemon that has died while its events ran."""
    return min(config.death_delay_s * 2.0 ** min(deaths - 1, 30), config.max_death_delay_s)
