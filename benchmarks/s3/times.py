"""Times as S3 writes them in XML."""

from __future__ import annotations

import time


def iso(seconds: float) -> str:
    """Seconds since the epoch, in ISO 8601 with milliseconds."""
    whole, part = divmod(round(seconds * 1000), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{part:03}Z"
