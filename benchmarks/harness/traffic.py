"""Requests as users send them, drawn from a seed: several functions, bodies of many lengths, trace headers, connections that go.

Pure. The same seed gives the same requests, so that all servers of a run are sent the same ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

SMALLEST, LARGEST = 2, 65536
"""Bytes of a body, JSON's quotes included."""
BODY_MEDIAN, BODY_SIGMA = 500, 1.8
"""The median and sigma of a log-normal distribution: half of the bodies have less than 500 bytes, one in ten has 5000 or
more."""
TRACED = 0.5
"""Share of the requests with a `traceparent`."""
LAST = 0.01
"""Share of the requests that are the last on their connection."""


def requests(functions: Sequence[str], count: int, *, seed: int = 0, last: float = LAST) -> list[bytes]:
    """So many requests; the n-th function gets 1/n of what the first gets (Zipf).

    Args: last: share of those after which the connection is closed."""
    rng = random.Random(seed)
    weights = [1 / rank for rank in range(1, len(functions) + 1)]
    return [encoded(rng, name, last) for name in rng.choices(functions, weights, k=count)]


def encoded(rng: random.Random, function: str, last: float) -> bytes:
    """One of them."""
    body = drawn_body(rng)
    lines = [
        f"POST /run/{function} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    if rng.random() < TRACED:
        lines.append(f"traceparent: 00-{rng.getrandbits(128) | 1:032x}-{rng.getrandbits(64) | 1:016x}-01")
    if rng.random() < last:
        lines.append("Connection: close")
    return "\r\n".join((*lines, "", "")).encode() + body


def drawn_body(rng: random.Random) -> bytes:
    """A JSON string of a drawn length."""
    size = min(LARGEST, max(SMALLEST, round(BODY_MEDIAN * rng.lognormvariate(0, BODY_SIGMA))))
    return b'"' + b"x" * (size - 2) + b'"'


def gap_s(rng: random.Random, shortest_s: float, longest_s: float) -> float:
    """How long nobody calls: log-uniform, so that a pause of minutes is as likely as one of tens of milliseconds."""
    return float(shortest_s * (longest_s / shortest_s) ** rng.random())
