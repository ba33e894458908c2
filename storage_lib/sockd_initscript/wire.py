"""The app link, sans-IO: the datagrams between the initscript engine and the function that its script works for.

SOCK_SEQPACKET, one datagram a message: a JSON object, a newline, and a payload that is not looked into; at most one file
descriptor attached. Both ends import this file; it needs only the standard library.

    engine                                   app
      │ sent       {id, rpc}                       an RPC is on its way; a read of that reply waits for it
      ├───────────────────────────────────────►│
      │ message    {id, rpc|null, status, segment, offset, length[, size][, headers]} [the segment's fd, in its first message]
      ├───────────────────────────────────────►│ map the segment read-only, keep the message until it is asked for
      │ file       {id, status, length[, headers]} [the file]    that is the app's own, to write to and make longer
      ├───────────────────────────────────────►│
      │ failed     {id, rpc, reason}               that reply will not come
      ├───────────────────────────────────────►│
      │ connection {id, addr, kind, tls_server_name|null} [socket]
      ├───────────────────────────────────────►│
      │ checked    {id, same}                      whether the message's object is the same still
      ├───────────────────────────────────────►│
      │ end        {outcome, status}               no message more will come
      ├───────────────────────────────────────►│
      │◄──────────────── message    {id} + payload, at most MAX_PAYLOAD
      │◄──────────────── connection {id, addr} [socket]
      │◄──────────────── check      {id}                                 of a message, after what may have been a write
      │◄──────────────── read       {rpc, served, start_ns, end_ns, why?} what was read, and from where; for the trace

Nothing else is acknowledged. The end of the socket means what `end` means. An id is an unsigned 64-bit number; a guest that
counts in signed ones may send those: they are made unsigned here.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_DATAGRAM = 64 * 1024
"""Bytes; a longer datagram is refused before it is sent."""
MAX_PAYLOAD = 32 * 1024
"""Bytes of payload with a message to the script."""
ID_MASK = (1 << 64) - 1

FIELDS: dict[str, dict[str, type]] = {
    "message": {"id": int},
    "file": {"id": int, "status": int, "length": int},
    "connection": {"id": int, "addr": str},
    "failed": {"id": int, "rpc": list, "reason": str},
    "sent": {"id": int, "rpc": list},
    "check": {"id": int},
    "checked": {"id": int, "same": bool},
    "end": {"outcome": str, "status": int},
    "read": {"rpc": list, "served": str, "start_ns": int, "end_ns": int},
}
"""What a message of each kind always has, in either direction."""
REGION_FIELDS = {"status": int, "segment": int, "offset": int, "length": int}
"""What a `message` has besides when it comes from the engine."""

_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode
_spell_out = json.JSONEncoder(ensure_ascii=False).encode


class WireError(Exception):
    """The peer sent, or we were about to send, something that the app link does not contain."""


def encode(message: dict[str, Any], payload: bytes = b"") -> bytes:
    """One message as one datagram. Raises: WireError when it is over MAX_DATAGRAM."""
    data = b"%b\n%b" % (_encode(message).encode(), payload)
    if len(data) > MAX_DATAGRAM:
        raise WireError(f"{message['op']} of {len(data)} bytes, limit {MAX_DATAGRAM}")
    return data


def decode(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The message in a datagram, and its payload.

    Raises: WireError, unless it is a JSON object of a known `op` with the fields that `FIELDS` names for it."""
    text, newline, payload = data.partition(b"\n")
    try:
        message = _decode(str(text, "utf-8"))
        if b"\\u" in text:  # half a surrogate pair is no text: it could not be passed on, not even in a report
            _spell_out(message).encode()
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from None
    fields = FIELDS.get(str(message.get("op"))) if isinstance(message, dict) and newline else None
    if fields is None:
        raise WireError(f"no message of the app link: {data[:80]!r}")
    require(message, fields)
    if "id" in fields:
        message["id"] &= ID_MASK
    return message, payload


def require(message: dict[str, Any], fields: Mapping[str, type]) -> None:
    """Raises: WireError, unless `message` has these fields, each of exactly this type."""
    for name, kind in fields.items():
        if type(message.get(name)) is not kind:
            raise WireError(f"{message['op']} without {name} as {kind.__name__}")
