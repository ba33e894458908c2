"""Parsing and formatting of times and durations."""

from __future__ import annotations

import re
import time
from datetime import datetime

from sockd.client.console.output import USAGE, Failure

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|h|d)", re.ASCII)


def seconds(text: str) -> float:
    """Return the seconds of `10s`, `5m`, `2h` or `1d`. Raises: Failure."""
    found = _AGO.fullmatch(text.strip())
    if found is None:
        raise Failure(f"{text!r} is no duration", fix="use 10s, 5m, 2h or 1d", exit_code=USAGE)
    return float(found[1]) * _UNITS_S[found[2]]


def since(text: str) -> float:
    """The Unix time of `10s`, `5m`, `2h`, `1d` ago, or of an ISO 8601 time, local by default. Raises: Failure."""
    if found := _AGO.fullmatch(text.strip()):
        return time.time() - float(found[1]) * _UNITS_S[found[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise Failure(f"{text!r} is no time", fix="use 10s, 5m, 2h, 1d or 2026-01-31T12:00", exit_code=USAGE) from None


def short_ms(ms: float) -> str:
    """A duration as a short text with its unit."""
    if ms < 1:
        return f"{ms * 1e3:.0f}us"
    if ms < 1000:
        return f"{ms:.1f}ms" if ms < 100 else f"{ms:.0f}ms"
    return f"{ms / 1e3:.1f}s" if ms < 100_000 else f"{ms / 1e3:.0f}s"
