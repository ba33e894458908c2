"""Header fields: which of a function's answer its client gets, and how they are written.

Pure. Not passed on are fields of one hop, and fields that the worker sets itself: with two of one name, a client would read the
function's.

This is the one place that makes lines of heads out of texts that are not constants. Whatever a text holds, it ends no line and
begins no other. Settings, errors and functions' answers are checked where they come in; here their texts are made harmless once
more. tests/http/server/test_fields.py finds lines that are made elsewhere.
"""

from __future__ import annotations

import re

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
_NOT_IN_A_VALUE = re.compile(r"[^\t\x20-\x7e\x80-\xff]")
"""RFC 9110, 5.5: no CR, LF, NUL or other control; beyond ASCII, bytes as latin-1."""
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9!#$%&'*+.^_`|~-]")


def field(name: str, value: object) -> str:
    """One line. What cannot stand in it is written as `?`."""
    return f"{_NOT_IN_A_NAME.sub('?', name) or '?'}: {_NOT_IN_A_VALUE.sub('?', str(value))}\r\n"


def raw_field(name: bytes, value: bytes) -> str:
    """One line, of bytes."""
    return field(name.decode("latin-1"), value.decode("latin-1"))


def passes(name: str) -> bool:
    """Whether a header of the function is passed on. Args: name: in lower case."""
    return name not in _DROPPED and not name.startswith(_OUR_PREFIX)


def passes_raw(name: bytes) -> bool:
    """As `passes`, of a name in bytes."""
    return name not in _DROPPED_RAW and not name.startswith(_OUR_RAW_PREFIX)
