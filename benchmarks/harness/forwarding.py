"""The host's forwarding of packets, which private networks of functions need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


@contextmanager
def forwarding() -> Iterator[None]:
    """The host forwards packets for the block."""
    before = FORWARD.read_text()
    FORWARD.write_text("1")
    try:
        yield
    finally:
        FORWARD.write_text(before)
