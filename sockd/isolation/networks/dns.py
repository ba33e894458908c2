"""Messages of DNS (RFC 1035), as far as a resolver for a few names needs them: one question, answers with addresses of IPv4.

Pure. Names are compared in lower case; what has other characters than host names have is refused.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from ipaddress import IPv4Address

A, CNAME, AAAA, OPT, SVCB, HTTPS = 1, 5, 28, 41, 64, 65
NO_ERROR, SERVER_FAILURE, NO_SUCH_NAME = 0, 2, 3
MOST_MESSAGE_BYTES = 1232
"""What fits into a packet on any path (the DNS flag day of 2020)."""
MOST_ADDRESSES = 15
"""The most addresses of a name, however many it has: with them an answer fits into 512 bytes, which every client takes."""
_INTERNET = 1
_RESPONSE, _TRUNCATED, _RECURSION_DESIRED, _RECURSION_AVAILABLE = 0x8000, 0x0200, 0x0100, 0x0080
_RCODE_MASK = 0xF
_MOST_CHAIN = 16
HOST_NAME = "host.sockd.internal"
"""The name of the address at which a rule `host:PORT` opens a port of the host's loopback; no nameserver is asked for it."""
MOST_NAME = 253
"""Characters of a name, dots included (RFC 1035): without this limit each record of an answer may point to one of 8 KB."""
_LABEL = re.compile(rb"[A-Za-z0-9_-]{1,63}")
_head = struct.Struct("!6H")
_record = struct.Struct("!HHIH")


class BadMessage(ValueError):
    """Raised for bytes that are no message of DNS, or one that is not supported."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, by whom it was numbered."""

    number: int
    name: str
    """In lower case, without a dot at its end."""
    kind: int
    raw: bytes
    """The question's bytes, as answers repeat them."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """What a name stands for, and for how long."""

    addresses: list[IPv4Address]
    ttl_s: int
    code: int = NO_ERROR


def question(message: bytes) -> Question:
    """The question of a query. Raises: BadMessage."""
    if len(message) < _head.size:
        raise BadMessage("too short")
    number, flags, count, *_ = _head.unpack_from(message)
    if flags & 0xF800 or count != 1:
        raise BadMessage("not a query with one question")
    return _question(message, number)


def query(number: int, name: str, kind: int) -> bytes:
    """A query for a nameserver, with room for a large answer (EDNS0)."""
    labels = b"".join(bytes((len(label),)) + label.encode() for label in name.split("."))
    head = _head.pack(number, _RECURSION_DESIRED, 1, 0, 0, 1)
    extension = b"\0" + struct.pack("!HHIH", OPT, MOST_MESSAGE_BYTES, 0, 0)
    return head + labels + b"\0" + struct.pack("!HH", kind, _INTERNET) + extension


def is_answer(message: bytes, query: bytes) -> bool:
    """Whether a message answers a query."""
    try:
        if not struct.unpack_from("!H", message, 2)[0] & _RESPONSE:
            return False
        answered, asked = _question(message, struct.unpack_from("!H", message)[0]), question(query)
    except (BadMessage, struct.error):
        return False
    return (answered.number, answered.name, answered.kind) == (asked.number, asked.name, asked.kind)


def is_truncated(answer: bytes) -> bool:
    """Whether an answer was too large for its datagram. Args: answer: one that `is_answer`."""
    return bool(struct.unpack_from("!H", answer, 2)[0] & _TRUNCATED)


def addresses(message: bytes) -> Addresses:
    """The addresses that an answer gives for what it was asked, by way of its aliases. Raises: BadMessage."""
    try:
        _, flags, _, count, _, _ = _head.unpack_from(message)
        name, at = _name(message, _head.size)
        at += 4
        aliases: dict[str, tuple[str, int]] = {}
        found: dict[str, list[tuple[IPv4Address, int]]] = {}
        for _ in range(count):
            owner, at = _name(message, at)
            kind, class_, ttl_s, size = _record.unpack_from(message, at)
            at += _record.size
            if class_ == _INTERNET and kind == CNAME:
                aliases[owner] = _name(message, at)[0], ttl_s
            elif class_ == _INTERNET and kind == A and size == 4:
                found.setdefault(owner, []).append((IPv4Address(message[at : at + 4]), ttl_s))
            at += size
    except (struct.error, ValueError, IndexError) as error:
        raise BadMessage(str(error)) from None
    lifetimes = []
    for _ in range(_MOST_CHAIN):
        if name not in aliases:
            break
        name, ttl_s = aliases[name]
        lifetimes.append(ttl_s)
    given = found.get(name, [])[:MOST_ADDRESSES]
    lifetimes += [ttl_s for _, ttl_s in given]
    return Addresses([address for address, _ in given], min(lifetimes, default=0), flags & _RCODE_MASK)


def answer(to: Question, found: Addresses) -> bytes:
    """An answer: the addresses as if they were the name's own."""
    flags = _RESPONSE | _RECURSION_DESIRED | _RECURSION_AVAILABLE | found.code
    head = _head.pack(to.number, flags, 1, len(found.addresses), 0, 0)
    pointer = struct.pack("!HHHIH", 0xC000 | _head.size, A, _INTERNET, found.ttl_s, 4)
    return head + to.raw + b"".join(pointer + each.packed for each in found.addresses)


def _question(message: bytes, number: int) -> Question:
    try:
        name, at = _name(message, _head.size)
        kind, class_ = struct.unpack_from("!HH", message, at)
    except (struct.error, IndexError) as error:
        raise BadMessage(str(error)) from None
    if class_ != _INTERNET:
        raise BadMessage("another class than the internet's")
    return Question(number, name, kind, message[_head.size : at + 4])


def _name(message: bytes, at: int) -> tuple[str, int]:
    """A name, and where what follows it begins. Raises: BadMessage, IndexError."""
    labels: list[str] = []
    end, length = None, 0
    for _ in range(128):
        size = message[at]
        if size >= 0xC0:  # the rest of it is elsewhere
            end = at + 2 if end is None else end
            at = struct.unpack_from("!H", message, at)[0] & 0x3FFF
            continue
        if size == 0:
            return ".".join(labels), at + 1 if end is None else end
        label = message[at + 1 : at + 1 + size]
        if len(label) != size or not _LABEL.fullmatch(label):
            raise BadMessage("not a host name")
        length += 1 + size
        if length > MOST_NAME + 1:  # each label is counted with a dot
            raise BadMessage("a name of more than 253 characters")
        labels.append(label.decode().lower())
        at += 1 + size
    raise BadMessage("a name without end")
