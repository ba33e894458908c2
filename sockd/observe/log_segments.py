"""Segments of the log store: frames with a header, and how much of the space each function may have.

    magic 4, length of the body 4, CRC-32 of the body 4, CRC-32 of the function's name 4; the body, msgpack

A record is a frame; nothing in its text can begin another one. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from zlib import crc32

import msgspec

_HEADER = struct.Struct("<4sIII")
_MAGIC = b"slg1"


class Body(msgspec.Struct, array_like=True):
    """What a frame holds."""

    function: str
    request_id: str
    """Empty: the function was removed."""
    time_s: float = 0.0
    version: str = ""
    text: bytes = b""
    dropped_bytes: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Body).decode


def frame(body: Body) -> bytes:
    """Return a body with its header."""
    encoded = _encode(body)
    return _HEADER.pack(_MAGIC, len(encoded), crc32(encoded), crc32(body.function.encode())) + encoded


def bodies(data: bytes, name: str) -> Iterator[Body | None]:
    """Read the frames of a segment, as far as they are whole: those of one function, and None for every other."""
    wanted = crc32(name.encode())
    for start, end, check, of in _frames(data):
        if of != wanted:
            yield None
            continue
        encoded = data[start + _HEADER.size : end]
        if crc32(encoded) != check:
            return
        body = _decode(encoded)
        yield body if body.function == name else None


def shares(data: bytes) -> Counter[int]:
    """Return how many bytes of a segment are each function's, by the CRC-32 of its name."""
    found: Counter[int] = Counter()
    for start, end, _, of in _frames(data):
        found[of] += end - start
    return found


def fair_share(sizes: Iterable[int], limit: int) -> int:
    """POLICY: how much may one function keep when all together may keep `limit` bytes?

    Functions that keep less than an equal share leave the rest to the others (max-min fairness), so that a function loses
    records only to functions that keep no more than itself."""
    left = limit
    ordered = sorted(sizes)
    for number, size in enumerate(ordered):
        equal = left // (len(ordered) - number)
        if size > equal:
            return equal
        left -= size
    return limit


def without(data: bytes, excess: Counter[int]) -> bytes:
    """Leave out the oldest frames of functions that keep too much.

    Args: excess: how many bytes each function has to lose; reduced by what is left out.
    Returns: the other frames, in order; what follows a frame that is not whole is left out, too."""
    kept = []
    for start, end, _, of in _frames(data):
        if excess[of] > 0:
            excess[of] -= end - start
        else:
            kept.append(data[start:end])
    return b"".join(kept)


def _frames(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Each whole frame: start, end, the CRC-32 of its body, and of its function's name."""
    start, size = 0, len(data)
    while start + _HEADER.size <= size:
        magic, length, check, of = _HEADER.unpack_from(data, start)
        end = start + _HEADER.size + length
        if magic != _MAGIC or end > size:
            return
        yield start, end, check, of
        start = end
