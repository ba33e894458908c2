"""What all RPC stacks share: a connection, its replies, when they came, and how they fail.

    RpcFailed        errno for the guest, a word for the trace, and what happened
    Connection       one address as one run of an initscript uses it
    ReplyBuffer      where the body of one reply goes in the region

Owns the meaning of these. Knows nothing of protocols.
"""

from __future__ import annotations

import errno
import socket
import time
from abc import ABC, abstractmethod
from typing import Any, Literal

import msgspec

from sockd_initscripts.errors import RegionFull
from sockd_initscripts.region import OWN_SEGMENT_BYTES, Buffer, Region

monotonic_ns = time.monotonic_ns
Body = bytes | bytearray | memoryview
_COLLECTED_BYTES = 64 * 1024


class RpcFailed(Exception):
    """An RPC has no reply, or a connection is not to be had.

    `errno` is what the guest gets (negative), `reason` one word for the trace: denied, malformed, unresolved, refused,
    timeout, reset, protocol, tls, changed, region_full, unsupported, busy, rejected."""

    def __init__(self, number: int, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.errno = number
        self.reason = reason


def denied(detail: str) -> RpcFailed:
    """The function may not speak to that address."""
    return RpcFailed(errno.EACCES, "denied", detail)


def malformed(detail: str) -> RpcFailed:
    """The guest asked for what makes no sense."""
    return RpcFailed(errno.EINVAL, "malformed", detail)


def unsupported(detail: str) -> RpcFailed:
    """The protocol has no such thing."""
    return RpcFailed(errno.EOPNOTSUPP, "unsupported", detail)


def busy(detail: str) -> RpcFailed:
    """An RPC is under way where none may be."""
    return RpcFailed(errno.EBUSY, "busy", detail)


def refused(detail: str) -> RpcFailed:
    """Nothing listens there, or the way there is closed."""
    return RpcFailed(errno.ECONNREFUSED, "refused", detail)


def timed_out(detail: str) -> RpcFailed:
    """The peer was silent for too long."""
    return RpcFailed(errno.ETIMEDOUT, "timeout", detail)


def reset(detail: str) -> RpcFailed:
    """The peer went away before its reply was whole."""
    return RpcFailed(errno.ECONNRESET, "reset", detail)


def protocol_error(detail: str) -> RpcFailed:
    """The peer said what its protocol does not allow."""
    return RpcFailed(errno.EPROTO, "protocol", detail)


class Reply(msgspec.Struct):
    """What came back: the protocol's own status, and the body in the region (None if it is empty)."""

    status: int
    buffer: Buffer | None
    etag: str = ""
    """Names the version of the object; empty if the protocol has no such thing."""
    headers: dict[str, str] | None = None
    """Headers of the response, names in lower case; None if the protocol has none that matter."""


class RpcTiming(msgspec.Struct):
    """When an RPC's bytes went and came, by CLOCK_MONOTONIC in ns; 0 = not yet. The transport fills it in as it goes."""

    sent_ns: int = 0
    first_byte_ns: int = 0
    done_ns: int = 0
    connection: Literal["new", "kept"] = "new"
    bytes: int = 0
    """The bytes of the body."""
    parts: int = 1
    """Requests that the reply was put together from."""


class Connection(ABC):
    """One address, for one run. All calls are made on the engine's loop, but for the first step of a `call` while
    `is_reserved`, which may be made in the guest's thread; several RPCs may be under way at once."""

    def __init__(self, address: str) -> None:
        self.address = address

    @property
    def is_reserved(self) -> bool:
        """Whether an open connection waits for the first call, which writes its request in its first step then and needs
        no loop for that."""
        return False

    @abstractmethod
    async def call(self, method: str, body: Body, region: Region, timing: RpcTiming) -> Reply:
        """Send an RPC and receive its reply into the region. Where a connection is open and idle, the request has been
        written when this first waits.

        Raises: RpcFailed; then, as when it is cancelled, what it took of the region has been given back."""

    def descriptor(self, method: str, body: Body) -> list[str]:
        """What identifies the RPC to the app. Raises: RpcFailed if the body is none that `call` takes."""
        return [f"{self.address.partition(':')[0]}.{method}", self.address]

    async def is_unchanged(self, descriptor: list[str], etag: str) -> bool:
        """Whether the RPC with this descriptor would have the same reply now as the one that came with this ETag. False: no, or
        that cannot be found out without its body. Raises: RpcFailed."""
        return False

    async def detach(self) -> tuple[socket.socket, Literal["tcp", "relay"]]:
        """An open connection with nothing under way, as a blocking socket that is the caller's from now on: the TCP
        connection itself, or a stream that the engine relays to a TLS connection that it keeps.

        Raises: RpcFailed (busy, unsupported, or as when connecting)."""
        raise unsupported(f"connections to {self.address} cannot be given away")

    @abstractmethod
    def close(self) -> None:
        """Give up the address. What is open and reusable goes back to the pool; RPCs under way are their callers'."""


class ReplyBuffer:
    """Where the body of one reply goes: a buffer of its length, or what grows with it if that is not known beforehand."""

    def __init__(self, region: Region) -> None:
        self.buffer: Buffer | None = None
        self._region = region
        self._first = bytearray()
        """The beginning of a body of unknown length; most are small and end here."""
        self._used = 0

    def allocate(self, length: int) -> memoryview:
        """A buffer of exactly this length, in bytes. Raises: RpcFailed (region_full)."""
        self.buffer = self._allocate(length)
        return self.buffer.view

    def append(self, data: Body) -> None:
        """Add to a body of unknown length; call `settle` at its end. Raises: RpcFailed (region_full)."""
        if self.buffer is None:
            self._first += data
            if len(self._first) <= _COLLECTED_BYTES:
                return
            data = self._first
        end = self._used + len(data)
        if self.buffer is None or end > self.buffer.length:
            self._move(max(2 * end, OWN_SEGMENT_BYTES))  # a segment of its own, so it can be given back
        assert self.buffer is not None
        self.buffer.view[self._used : end] = data
        self._used, self._first = end, bytearray()

    def settle(self) -> int:
        """The body has ended; returns its length in bytes. Raises: RpcFailed (region_full)."""
        if self._first:
            self.allocate(len(self._first))[:] = self._first
            self._used = len(self._first)
        elif self.buffer is not None:
            self.buffer.shrink(self._used)
        return self._used

    def free(self) -> None:
        """Give back what was allocated, if anything."""
        buffer, self.buffer = self.buffer, None
        if buffer is not None:
            buffer.shrink(0)

    def __enter__(self) -> ReplyBuffer:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is not None:
            self.free()

    def _allocate(self, length: int) -> Buffer:
        try:
            return self._region.allocate(length)
        except RegionFull as error:
            raise RpcFailed(errno.ENOSPC, "region_full", f"no {length} bytes left in the region: {error}") from error

    def _move(self, length: int) -> None:
        """Into a larger buffer; the old one is given back."""
        larger = self._allocate(length)
        if self.buffer is not None:
            larger.view[: self._used] = self.buffer.view[: self._used]
            self.free()
        self.buffer = larger
