"""What the daemon tells its exporter, and what that answers: the one description of both.

    daemon -> exporter    length (4 bytes) and msgpack of a `Finished`, each an invocation that is over
    exporter -> daemon    lines of JSON, each a `Tally`: all there is to say so far

The daemon only encodes what it has; spans are made of it in the exporter."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from sockd.observe.traces import Trace

MAX_FRAME_BYTES = 1 << 20
_encoder = msgspec.msgpack.Encoder()
_LENGTH = 4


class Finished(msgspec.Struct, array_like=True):
    """One invocation, whose trace has a span."""

    trace: Trace
    """Without its run."""
    encoded: bytes
    """The engine's report of its initscript, as it came; empty, if there is none."""


class Tally(msgspec.Struct):
    """Invocations since the exporter's start."""

    exported: int = 0
    dropped: int = 0
    """The queue was full."""
    failed: int = 0
    """The collector did not take them."""


def encode(finished: Finished) -> bytes:
    """A frame."""
    body = _encoder.encode(finished)
    return len(body).to_bytes(_LENGTH) + body


def frames(buffer: bytearray) -> Iterator[bytes]:
    """The bodies of the whole frames in a buffer, which are taken out of it. Raises: ValueError at one that is too long."""
    at = 0
    while len(buffer) - at >= _LENGTH:
        size = int.from_bytes(buffer[at : at + _LENGTH])
        if size > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {size} bytes")
        if len(buffer) - at - _LENGTH < size:
            break
        yield bytes(buffer[at + _LENGTH : at + _LENGTH + size])
        at += _LENGTH + size
    del buffer[:at]
