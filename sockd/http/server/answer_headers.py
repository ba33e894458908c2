"""Headers of a function's answer: which of them its client gets.

Pure. Not passed on are headers of one hop, and headers that the worker sets itself: with two of one name, a client would read
the function's.
"""

from __future__ import annotations

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Hop-by-hop headers (RFC 9110, 7.6.1), which are not passed on."""
_DROPPED = HOP_BY_HOP | {"content-length", "date", "x-amzn-requestid", "x-amzn-trace-id"}
_DROPPED_RAW = frozenset(name.encode() for name in _DROPPED)
_OUR_PREFIX = "x-sockd-"
_OUR_RAW_PREFIX = _OUR_PREFIX.encode()


def passes(name: str) -> bool:
    """Whether a header of the function is passed on. Args: name: in lower case."""
    return name not in _DROPPED and not name.startswith(_OUR_PREFIX)


def passes_raw(name: bytes) -> bool:
    """As `passes`, of a name in bytes."""
    return name not in _DROPPED_RAW and not name.startswith(_OUR_RAW_PREFIX)
