"""The two wires of a sandbox, sans-IO: bytes in, messages out. Both ends import this file; it needs only the stdlib.

Control wire: daemon <-> Zygote. SOCK_SEQPACKET; one message is one datagram, a JSON object, with file descriptors beside it.

    daemon                                   Zygote
      │ fork    {id, uid, network} [root, channel, output, procs…]
      ├───────────────────────────────────────►│ clone() a handler sandbox, write its uid_map
      │◄──────────────── forked {id, pid} [pidfd]
      │ spawn   {id, first_uid, uid_count} [control, procs…]
      ├───────────────────────────────────────►│ clone() a child Zygote, hand it its block of uids
      │◄──────────────── forked {id, pid} [pidfd]
      │ import  {id, paths, modules}
      ├───────────────────────────────────────►│ import, collect, freeze
      │◄──────────────── imported {id, seconds, threads, failed}
      │◄──────────────── refused {id, error}      (the answer to any of the three that could not be done)

Channel: daemon <-> handler sandbox. A stream; each frame is a 16-byte header and a body that this file does not interpret.

    daemon                                   handler sandbox
      │◄──────────────── PRIMED                   (confined, warm, waiting; a spare stays here)
      │ INIT    JSON `Init`; the code is mounted by now
      ├───────────────────────────────────────►│ sys.path, environment, import the handler
      │◄──────────────── READY | FAILED
      │ INVOKE  request uuid, timeout, event bytes
      ├───────────────────────────────────────►│ call the handler
      │◄──────────────── RESULT | FAILED
      │◄──────────────── MODULES                  (once, after the first answer: what the function imported)

INIT and INVOKE may be queued before the sandbox exists. Anything out of order, of an unknown type or over its limit is a
ProtocolError, after which the peer is destroyed: there is no resynchronising with untrusted code.
"""

from __future__ import annotations

import json
from struct import Struct

CONTROL_MAX_BYTES = 128 * 1024
"""Longest control message; a Zygote that sends more is refused."""
CONTROL_MAX_FDS = 16

HEADER = Struct("<IBBHQ")
"""Frame header: body length in bytes, type, flags, zero, request number."""
INVOCATION = Struct("<16sq")
"""First bytes of an INVOKE body: request uuid, timeout in ns. The event follows."""
TIMES = Struct("<qq")
"""First bytes of a READY, RESULT or FAILED body: start and end in ns of CLOCK_MONOTONIC. The answer follows."""

PRIMED, INIT, READY, INVOKE, RESULT, FAILED, MODULES = range(1, 8)
FRAME_NAMES = {1: "PRIMED", 2: "INIT", 3: "READY", 4: "INVOKE", 5: "RESULT", 6: "FAILED", 7: "MODULES"}


class ProtocolError(Exception):
    """The peer sent something that this protocol does not contain; the peer must be destroyed."""


def encode_control(message: dict) -> bytes:
    """One control message as one datagram. Raises ProtocolError when it is over CONTROL_MAX_BYTES."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > CONTROL_MAX_BYTES:
        raise ProtocolError(f"control message of {len(data)} bytes, limit {CONTROL_MAX_BYTES}")
    return data


def decode_control(data: bytes) -> dict:
    """The control message in a datagram. Raises ProtocolError unless it is a JSON object with "op" and an integer "id"."""
    try:
        message = json.loads(data)
    except ValueError as error:
        raise ProtocolError(f"control message is not JSON: {error}") from None
    if (
        not isinstance(message, dict)
        or not isinstance(message.get("op"), str)
        or not isinstance(message.get("id"), int)
    ):
        raise ProtocolError("control message without op and id")
    return message


def encode_frame(kind: int, number: int, *parts: bytes) -> bytes:
    """One frame: header and the parts of its body, in one buffer for one write."""
    return HEADER.pack(sum(map(len, parts)), kind, 0, 0, number) + b"".join(parts)


def decode_header(header: bytes | bytearray, *, max_body_bytes: int) -> tuple[int, int, int]:
    """(kind, request number, body length) of a 16-byte header.

    Raises ProtocolError for an unknown type, set reserved bits or a body over max_body_bytes."""
    length, kind, flags, zero, number = HEADER.unpack(header)
    if kind not in FRAME_NAMES or flags or zero:
        raise ProtocolError(f"bad frame header {bytes(header).hex()}")
    if length > max_body_bytes:
        raise ProtocolError(f"{FRAME_NAMES[kind]} of {length} bytes, limit {max_body_bytes}")
    return kind, number, length


class FrameDecoder:
    """Cuts a stream into frames: `feed` bytes, then take (kind, number, body) from `next_frame` until it gives None."""

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next_frame(self) -> tuple[int, int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < HEADER.size:
            return None
        kind, number, length = decode_header(buffer[: HEADER.size], max_body_bytes=self._max_body_bytes)
        end = HEADER.size + length
        if len(buffer) < end:
            return None
        body = bytes(buffer[HEADER.size : end])
        del buffer[:end]
        return kind, number, body
