"""netlink(7): messages and attributes as bytes, and a socket that sends a batch and reads the kernel's acknowledgements.

Owns the socket. The kernel handles a batch while it is sent, so the acknowledgements are there when send(2) returns and nothing
waits; a batch is still one call for many messages. A socket belongs to the network namespace that it was made in, for good.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

ROUTE, NETFILTER = 0, 12
"""NETLINK_ROUTE and NETLINK_NETFILTER."""
REQUEST, ACK, EXCL, CREATE, DUMP = 0x1, 0x4, 0x200, 0x400, 0x300
"""Flags of a message (NLM_F_*)."""
_ERROR = 2
_SOL_NETLINK, _CAP_ACK, _EXT_ACK = 270, 10, 11
_ERROR_TEXT = 1
_NESTED = 0x8000
_KIND_MASK = 0x3FFF
_RECEIVE_BYTES = 1 << 16
_header = struct.Struct("=IHHII")
_attribute = struct.Struct("=HH")


class Message(NamedTuple):
    """One message. `subject` is named by the error when the kernel refuses it."""

    kind: int
    flags: int
    body: bytes
    subject: str


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    size = _attribute.size + len(value)
    return _attribute.pack(size, kind) + value + bytes(-size % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """An attribute that holds attributes."""
    return attribute(kind | _NESTED, b"".join(attributes))


def text(kind: int, value: str) -> bytes:
    """An attribute with a string, ended by a zero."""
    return attribute(kind, value.encode() + b"\0")


def number(kind: int, value: int) -> bytes:
    """An attribute with a u32 in the machine's byte order."""
    return attribute(kind, struct.pack("=I", value))


def encode(messages: Sequence[Message], first_sequence: int) -> bytes:
    """The bytes of a batch; the messages' sequence numbers count up from the first."""
    data = bytearray()
    for sequence, message in enumerate(messages, first_sequence):
        data += _header.pack(_header.size + len(message.body), message.kind, message.flags, sequence, 0)
        data += message.body + bytes(-len(message.body) % 4)
    return bytes(data)


def split(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(kind, sequence, body) of each message in what was received. Raises: ValueError: cut short."""
    at = 0
    while at < len(data):
        size, kind, _, sequence, _ = _header.unpack_from(data, at)
        if size < _header.size or at + size > len(data):
            raise ValueError("a netlink message is cut short")
        yield kind, sequence, data[at + _header.size : at + size]
        at += size + -size % 4


def attributes(data: bytes) -> dict[int, bytes]:
    """Attributes by their kinds. Raises: ValueError: cut short."""
    found, at = {}, 0
    while at + _attribute.size <= len(data):
        size, kind = _attribute.unpack_from(data, at)
        if size < _attribute.size or at + size > len(data):
            raise ValueError("a netlink attribute is cut short")
        found[kind & _KIND_MASK] = data[at + _attribute.size : at + size]
        at += size + -size % 4
    return found


class NetlinkSocket:
    """A socket of one netlink family, in the network namespace of the thread that opened it. `close` closes it."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sequence = 0

    @classmethod
    def open(cls, family: int) -> NetlinkSocket:
        """Args: family: `ROUTE` or `NETFILTER`. Raises: OSError."""
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, family)
        try:
            for option in (_CAP_ACK, _EXT_ACK):
                sock.setsockopt(_SOL_NETLINK, option, 1)
            sock.bind((0, 0))
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    def exchange(self, messages: Sequence[Message]) -> None:
        """Send a batch and read an acknowledgement for each message that asks for one.

        Raises: OSError: the first refusal, with the kernel's words as a note; later messages of the batch may have been obeyed
        (rtnetlink) or not (nfnetlink, whose batches are transactions)."""
        first = self._sequence + 1
        self._sequence += len(messages)
        self._socket.send(encode(messages, first))
        waiting = {number for number, message in enumerate(messages, first) if message.flags & ACK}
        refused: tuple[int, int, str] | None = None
        while waiting:
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                if refused is None:
                    raise
                break  # a batch that was refused as a whole has one answer
            for kind, sequence, body in split(data):
                if kind == _ERROR and first <= sequence <= self._sequence:
                    waiting.discard(sequence)
                    errno = -struct.unpack_from("=i", body)[0]
                    if errno and refused is None:
                        refused = errno, sequence - first, _words(body)
        if refused is not None:
            errno, index, words = refused
            error = OSError(errno, f"netlink: {os.strerror(errno)}", messages[index].subject)
            if words:
                error.add_note(words)
            raise error

    def ask(self, message: Message) -> bytes:
        """The body of the one message that answers another. Raises: OSError, as `exchange` does."""
        self._sequence += 1
        self._socket.send(encode([message], self._sequence))
        while True:
            for kind, sequence, body in split(self._socket.recv(_RECEIVE_BYTES)):
                if sequence == self._sequence:
                    if kind == _ERROR:
                        errno = -struct.unpack_from("=i", body)[0]
                        raise OSError(errno, f"netlink: {os.strerror(errno)}", message.subject)
                    return body

    def close(self) -> None:
        self._socket.close()


def _words(body: bytes) -> str:
    """What the kernel says about an error (NLMSGERR_ATTR_MSG); the request's header stands before it (NETLINK_CAP_ACK)."""
    try:
        return attributes(body[4 + _header.size :]).get(_ERROR_TEXT, b"").rstrip(b"\0").decode(errors="replace")
    except ValueError:
        return ""
