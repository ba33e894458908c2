"""Erasure coding of one chunk, 4 of 5: four stripes of data and their XOR. Any four make the chunk.

    stripe on a node    magic 4 | number 1 | padding 3 | chunk's bytes 4 | BLAKE3 of all the rest 32 | data

A stripe says which of the five it is, so that a node holds the stripe of a chunk under the chunk's name, whatever its number.
All stripes of a chunk are equally long; the data of the last is filled up with zeros.

numpy computes the XOR ten times faster than the standard library where it is installed. sockd does not need it: the client
waits for a stripe of data a little longer than for the parity.
"""

from __future__ import annotations

import functools
import hmac
import importlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from blake3 import blake3

DATA_STRIPES = 4
STRIPES = DATA_STRIPES + 1
PARITY = DATA_STRIPES
"""The number of the stripe that is the XOR of the others."""
_MAGIC = b"sks2"
_FIELDS = struct.Struct(">4sB3xI")
_DIGEST_BYTES = 32
HEAD_BYTES = _FIELDS.size + _DIGEST_BYTES

Xor = Callable[[Sequence[bytes | memoryview]], bytes]


class Stripe(NamedTuple):
    """One of the five."""

    number: int
    chunk_bytes: int
    data: bytes | memoryview


class BadStripe(ValueError):
    """Bytes that are no stripe."""


def stripe_bytes(chunk_bytes: int) -> int:
    """Return the bytes of data of one stripe."""
    return -(-chunk_bytes // DATA_STRIPES)


def framed_bytes(chunk_bytes: int) -> int:
    """Return the bytes of one stripe on a node."""
    return HEAD_BYTES + stripe_bytes(chunk_bytes)


def split(chunk: bytes) -> list[bytes]:
    """The five stripes as nodes keep them, by number."""
    size = stripe_bytes(len(chunk))
    parts = [chunk[start : start + size].ljust(size, b"\0") for start in range(0, DATA_STRIPES * size, size)]
    parts.append(xor()(parts))
    return [framed(number, len(chunk), data) for number, data in enumerate(parts)]


def parse(framed: bytes | bytearray | memoryview, *, max_chunk_bytes: int) -> Stripe:
    """The stripe, of which nothing but the form is checked. Raises: BadStripe."""
    if len(framed) < HEAD_BYTES:
        raise BadStripe("shorter than its head")
    magic, number, chunk_bytes = _FIELDS.unpack_from(framed)
    if magic != _MAGIC or number >= STRIPES or not 0 < chunk_bytes <= max_chunk_bytes:
        raise BadStripe("not the head of a stripe")
    if len(framed) != framed_bytes(chunk_bytes):
        raise BadStripe("not as long as the head says")
    return Stripe(number, chunk_bytes, memoryview(framed)[HEAD_BYTES:])


def is_intact(framed: bytes | bytearray | memoryview) -> bool:
    """Whether the digest is the one of the other bytes. It finds damage, not lies: anybody can compute it."""
    view = memoryview(framed)
    digest = _digest(view[: _FIELDS.size], view[HEAD_BYTES:])
    return hmac.compare_digest(digest, view[_FIELDS.size : HEAD_BYTES])


def join(stripes: Mapping[int, Stripe]) -> bytes:
    """The chunk of four or five stripes, not verified.

    Raises: BadStripe: too few, or stripes of chunks of different lengths."""
    lengths = {stripe.chunk_bytes for stripe in stripes.values()}
    if len(stripes) < DATA_STRIPES or len(lengths) != 1:
        raise BadStripe("not four stripes of one chunk")
    parts = [stripes[number].data if number in stripes else None for number in range(DATA_STRIPES)]
    if None in parts:
        parts[parts.index(None)] = xor()([stripe.data for stripe in stripes.values()])
    return b"".join(part for part in parts if part is not None)[: lengths.pop()]


class RunningDigest:
    """The BLAKE3 of a chunk, computed stripe by stripe while later stripes are under way.

    The stripes' data must not change until the chunk was joined from them: what is verified is then what was joined."""

    def __init__(self) -> None:
        self._digest = blake3()
        self._next = 0
        self._bytes = 0

    def advance(self, found: Mapping[int, Stripe]) -> None:
        """Take in the stripes that come next. The last one, which may be filled up with zeros, waits for `of`."""
        while self._next < DATA_STRIPES - 1 and (stripe := found.get(self._next)) is not None:
            if self._bytes + len(stripe.data) > stripe.chunk_bytes:
                return
            self._digest.update(stripe.data)
            self._bytes += len(stripe.data)
            self._next += 1

    def of(self, chunk: bytes) -> bytes:
        """The digest of the chunk that `join` made of the same stripes; called once, and last."""
        return self._digest.update(memoryview(chunk)[self._bytes :]).digest()


def framed(number: int, chunk_bytes: int, data: bytes) -> bytes:
    """A stripe as nodes keep it."""
    fields = _FIELDS.pack(_MAGIC, number, chunk_bytes)
    return b"".join((fields, _digest(fields, data), data))


def _digest(fields: bytes | memoryview, data: bytes | memoryview) -> bytes:
    return blake3(fields).update(data).digest()


@functools.cache
def xor() -> Xor:
    """The XOR of several byte strings of one length, by the fastest means there is. The first call may import numpy."""
    try:
        numpy = importlib.import_module("numpy")
    except ImportError:
        return _xor_of_integers

    def xor_of_arrays(parts: Sequence[bytes | memoryview]) -> bytes:
        result = numpy.frombuffer(parts[0], numpy.uint8).copy()
        for part in parts[1:]:
            numpy.bitwise_xor(result, numpy.frombuffer(part, numpy.uint8), out=result)
        return bytes(result.tobytes())

    return xor_of_arrays


def _xor_of_integers(parts: Sequence[bytes | memoryview]) -> bytes:
    number = 0
    for part in parts:
        number ^= int.from_bytes(part, "little")
    return number.to_bytes(len(parts[0]), "little")
