"""AWS's event stream encoding (application/vnd.amazon.eventstream): messages of headers and a payload, each with its checksums.

    total length u32 | headers' length u32 | CRC-32 of these 8 bytes | headers | payload | CRC-32 of all before it

Pure. Only what a server sends, and only headers whose values are text.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from struct import Struct

CONTENT_TYPE = "application/vnd.amazon.eventstream"
MAX_PAYLOAD_BYTES = 16 << 20
"""The most bytes of one message (the encoding's own limit; SDKs refuse more)."""
_U32 = Struct(">I")
_LENGTHS = Struct(">II")
_TEXT = 7
_TEXT_LENGTH = Struct(">BH")


def message(kind: str, payload: bytes, content_type: str) -> bytes:
    """One event. Args: kind: its name in the service's model, as PayloadChunk."""
    return encode({":event-type": kind, ":content-type": content_type, ":message-type": "event"}, payload)


def encode(headers: Mapping[str, str], payload: bytes) -> bytes:
    """One message. Names have up to 255 bytes, values up to 32767."""
    head = b"".join(_header(name.encode(), value.encode()) for name, value in headers.items())
    lengths = _LENGTHS.pack(16 + len(head) + len(payload), len(head))
    parts = (lengths, _U32.pack(zlib.crc32(lengths)), head, payload)
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return b"".join((*parts, _U32.pack(checksum)))


def _header(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + _TEXT_LENGTH.pack(_TEXT, len(value)) + value
