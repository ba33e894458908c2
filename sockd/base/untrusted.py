"""Single values that user code, or an imported package, has reported."""

from __future__ import annotations

import math

LONGEST_S = 3600.0
"""More than any import may take."""


def read_seconds(value: object) -> float:
    """A time that somebody says to have spent, at most LONGEST_S. It is added to those of others, so that one NaN would
    spoil them all. Raises: ValueError, TypeError, OverflowError."""
    seconds = float(value)  # type: ignore[arg-type]
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} is not a time")
    return min(max(seconds, 0.0), LONGEST_S)


def read_text(value: object) -> str:
    """Return a text that can be encoded as UTF-8: JSON can contain half of a surrogate pair, on which encoding fails."""
    return str(value).encode(errors="backslashreplace").decode()
