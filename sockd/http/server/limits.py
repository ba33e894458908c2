"""What one connection may take, and how long."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sockd.http.server.states import IN_BODY, Input


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Durations are kept to about a second: they are looked at once in each."""

    connections: int = 4096
    headers: int = 128
    """The most headers of one request."""
    head_bytes: int = 32 * 1024
    """The request line and the headers."""
    head_s: float = 10.0
    """From the first byte of a request, or from the connection's start, to the last of its head."""
    body_s: float = 60.0
    """From the head's end to the body's."""
    stall_s: float = 60.0
    """Without a byte of an answer being taken that waits for its client."""
    discard_bytes: int = 64 << 20
    """The most bytes of a refused body: they are read and dropped, so that a client which sends before it reads gets its
    answer."""
    half_close: bool = True
    """A client that shuts its sending half down still gets its answer. Off where an answer may take for ever and only
    the end of file tells that it is not read."""


def allowed_s(limits: ConnectionLimits, keep_alive_s: float) -> Mapping[Input, float]:
    """Return how long a connection may be in each of its states; infinity if it does not wait for its peer."""
    heads = dict.fromkeys((Input.CONNECTED, Input.FIRST_HEAD, Input.HEAD), limits.head_s)
    return {
        **dict.fromkeys(Input, math.inf),
        **heads,
        **dict.fromkeys(IN_BODY, limits.body_s),
        Input.IDLE: float(keep_alive_s),
    }
