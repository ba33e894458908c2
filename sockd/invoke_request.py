"""One invocation as it was asked for, through whatever door, as plain data.

Owns nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class InvokeRequest(msgspec.Struct):
    """What runs through the house from a door to a sandbox. (A struct, as one is made for every request.)"""

    name: str
    """The function."""
    payload: bytes
    """The event, JSON that the daemon never looks at."""
    id: bytes
    """16 bytes, a UUID."""
    arrived_ns: int
    """When the request's head was read, CLOCK_MONOTONIC."""
    gone: Callable[[], bool] | None = None
    """Whether nobody wants the answer any more; asked if it had to wait, before anything is run."""
    trigger: str = "http"
    """What asked for it, in OpenTelemetry's words for `faas.trigger`: http, timer, other (an SDK's Invoke)."""
