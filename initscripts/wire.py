"""The wires between the daemon and the engine process: SOCK_SEQPACKET, sans-IO but for `send` and `receive`.

One datagram a message: a JSON object, a newline, and a payload that is not looked into; fds attached. Starts have a wire of
their own, where the engine's guest threads wait for them: what is said on one may be heard before what was said earlier on
the other, so the engine hears the control wire out before it calls a function unknown, and remembers to cancel what has not
been started yet. Both ends import this file. What is no message of it, has a surplus fd or lacks one, raises WireError,
its fds closed; the peer is then another version or broken, and is not spoken to any longer.

    daemon                                       engine
      │◄───────────────────────── ready  {wasmtime}                    once, when everything is imported
      │ define {id, name, env, budget, static_args?} [compiled file, certificates]    neither for record-only functions
      ├─────────────────────────────►
      │ start  {run, function, request, arrived_ns, known} + event [app link, memfd of an event over EVENT_LIMIT_BYTES]
      ├═════════════════════════════►                                   on the wire of starts
      │◄───────────────────────── abort  {run, status, message}        at once, when a guest aborts the launch
      │ cancel {run}
      ├─────────────────────────────►
      │◄───────────────────────── ended  {run}                         its guest is over; the app may go on for long
      │◄───────────────────────── done   {report}                      for every start, exactly one: the app has gone, too
      │ forget {id}
      ├─────────────────────────────►
"""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import Sequence
from typing import ClassVar, TypeVar

import msgspec

from sockd_initscripts.errors import WireError
from sockd_initscripts.limits import Budget
from sockd_initscripts.report import RunReport

MAX_DATAGRAM = 192 * 1024
EVENT_LIMIT_BYTES = 64 * 1024
"""A longer event is passed as a memfd."""
REPORT_LIMIT_BYTES = 128 * 1024
_MAX_FDS = 2
_FDS_SPACE = socket.CMSG_SPACE(_MAX_FDS * array("i").itemsize)


class Message(msgspec.Struct, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    """A message; `fds` says how many may come with it."""

    fds: ClassVar[range] = range(1)


class Define(Message, tag="define"):
    """Know this function from now on. Attached: its compiled file, unless runs are to be record-only, and then the file with
    the certificates of its authorities, if it has some of its own."""

    fds: ClassVar[range] = range(3)
    id: int
    name: str
    env: dict[str, str] = {}
    budget: Budget = Budget()
    static_args: bytes | None = None


class Forget(Message, tag="forget"):
    """Know it no longer."""

    id: int


class Start(Message, tag="start"):
    """Run its initscript. Attached: the engine's end of the app link, and the event's memfd if it is no payload."""

    fds: ClassVar[range] = range(1, 3)
    run: int
    function: int
    request: str = ""
    arrived_ns: int = 0
    known: tuple[tuple[str, ...], ...] = ()
    """Descriptors of RPCs whose replies the function has already: the init of its snapshot has read them."""


class Cancel(Message, tag="cancel"):
    """End this run; its `done` follows."""

    run: int


class Ready(Message, tag="ready"):
    """The engine listens."""

    wasmtime: str


class Abort(Message, tag="abort"):
    """The guest asks that the function not be launched."""

    run: int
    status: int
    message: str


class Ended(Message, tag="ended"):
    """The guest of a run is over, and another may take its place. Not said of a start that never had one."""

    run: int


class Done(Message, tag="done"):
    """A run is over: its guest, and what the app had to say of it."""

    report: RunReport


ToEngine = Define | Forget | Cancel
ToDaemon = Ready | Abort | Ended | Done
_Message = TypeVar("_Message", bound=Message)
_encoder = msgspec.json.Encoder()
_to_engine = msgspec.json.Decoder(ToEngine)
_starts = msgspec.json.Decoder(Start)
_to_daemon = msgspec.json.Decoder(ToDaemon)


def encode(message: Message, payload: bytes = b"") -> bytes:
    """One message as one datagram; raises WireError when it is over MAX_DATAGRAM."""
    data = _encoder.encode(message) + b"\n" + payload
    if len(data) > MAX_DATAGRAM:
        raise WireError(f"{type(message).__name__} of {len(data)} bytes, limit {MAX_DATAGRAM}")
    return data


def encode_done(report: RunReport) -> bytes:
    """A Done; of a report that is too long the lists are cut until it is not."""
    data = encode_report(report)
    while len(data) > REPORT_LIMIT_BYTES:
        report = msgspec.structs.replace(
            report,
            rpcs=report.rpcs[: len(report.rpcs) // 2],
            reads=report.reads[: len(report.reads) // 2],
            messages=report.messages[: len(report.messages) // 2],
            log=report.log[: max(len(report.log) // 2, 1024)],
            message=report.message[:1024],
            cut=True,
        )
        data = encode_report(report)
    return data


def encode_report(report: RunReport) -> bytes:
    """A Done as it is, however long."""
    return _encoder.encode(Done(report=report)) + b"\n"


def decode_to_engine(data: bytes, fd_count: int) -> tuple[ToEngine, bytes]:
    """A message of the daemon on the control wire, and its payload; raises WireError."""
    return _decode(_to_engine, data, fd_count)


def decode_start(data: bytes, fd_count: int) -> tuple[Start, bytes]:
    """One on the wire of starts, and the event if it is no memfd; raises WireError."""
    return _decode(_starts, data, fd_count)


def decode_to_daemon(data: bytes, fd_count: int) -> tuple[ToDaemon, bytes]:
    """A message of the engine and its payload; raises WireError."""
    return _decode(_to_daemon, data, fd_count)


def _decode(decoder: msgspec.json.Decoder[_Message], data: bytes, fd_count: int) -> tuple[_Message, bytes]:
    text, newline, payload = data.partition(b"\n")
    if not newline:
        raise WireError("a datagram without the newline behind its JSON")
    try:
        message = decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(str(error)) from error
    if fd_count not in message.fds:
        raise WireError(f"{type(message).__name__} with {fd_count} fds")
    return message, payload


def send(sock: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Send one datagram, not waiting; raises BlockingIOError, or OSError when the peer is gone."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
    sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)


def receive(
    sock: socket.socket, scratch: bytearray | None = None, flags: int = socket.MSG_DONTWAIT
) -> tuple[bytes, list[int]]:
    """One datagram and its fds, by default not waiting; empty at the end of the wire.

    Args: scratch: MAX_DATAGRAM bytes for callers that receive often: so much memory is mapped and unmapped at each call
    else.
    Raises BlockingIOError when there is none, WireError when one was cut off."""
    scratch = scratch or bytearray(MAX_DATAGRAM)
    try:
        size, ancillary, flags, _ = sock.recvmsg_into([scratch], _FDS_SPACE, flags | socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return b"", []
    fds = array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_all(fds)
        raise WireError("a datagram was cut off, or had too many fds with it")
    return bytes(memoryview(scratch)[:size]), list(fds)


def close_all(fds: Sequence[int]) -> None:
    """Close fds that are not wanted."""
    for fd in fds:
        os.close(fd)
