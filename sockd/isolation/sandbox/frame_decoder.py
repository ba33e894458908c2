"""The daemon's end of a channel: bytes in, frames out (`zygote/protocol.py` describes them).

Owns what has come of the next frame.
"""

from __future__ import annotations

from collections.abc import Mapping

from sockd_zygote import protocol


class FrameDecoder:
    """Cuts a stream into frames: `feed` bytes, then take (kind, number, body) from `next_frame` until it gives None.

    One frame that comes in one piece, as nearly all do, is copied once: its body. The body of a RESULT that came in several is
    a memoryview, as a copy of megabytes takes milliseconds and its times are still to be cut off."""

    awaited: int | None = None
    """The number that a RESULT must have whose body is still to come; None: any. Nothing is kept of an unread answer."""

    def __init__(self, limits: Mapping[int, int]) -> None:
        """Args: limits: the kinds of frame that the peer may send, and the longest body of each."""
        self._limits = limits
        self._buffer: bytes | bytearray = b""
        self._at = 0

    def feed(self, data: bytes | memoryview) -> None:
        """A view is copied: it may be of memory that is read to again."""
        if self._at == len(self._buffer):
            self._buffer, self._at = bytes(data), 0
            return
        if not isinstance(self._buffer, bytearray) or self._at:
            self._buffer, self._at = bytearray(self._buffer[self._at :]), 0
        self._buffer += data

    def next_frame(self) -> tuple[int, int, bytes] | None:
        """Raises ProtocolError for a type that may not come, set reserved bits or a body over its type's limit."""
        buffer, body = self._buffer, self._at + protocol.HEADER.size
        if len(buffer) < body:
            return None
        length, kind, flags, zero, number = protocol.HEADER.unpack_from(buffer, self._at)
        if kind not in self._limits or flags or zero:
            raise protocol.ProtocolError(f"bad frame header {buffer[self._at : body].hex()}")
        if length > self._limits[kind]:
            raise protocol.ProtocolError(f"{protocol.FRAME_NAMES[kind]} of {length} bytes, limit {self._limits[kind]}")
        end = body + length
        if len(buffer) < end:
            if kind == protocol.RESULT and self.awaited not in (None, number):
                raise protocol.ProtocolError(f"RESULT {number} instead of {self.awaited}")
            return None
        self._at = end
        if isinstance(buffer, bytes):
            return kind, number, buffer[body:end]
        view = memoryview(buffer)[body:end]  # of what is never resized: what is fed next goes into another buffer
        return kind, number, view if kind == protocol.RESULT else bytes(view)  # type: ignore[return-value]
