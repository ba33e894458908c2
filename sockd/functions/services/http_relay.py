"""One HTTP request over a connection to the program of a service, and its answer, piece by piece as it comes.

Owns nothing. A connection serves one request; what concerns one hop alone is not passed on. A request for a WebSocket that the
program agrees to makes client and program two ends of a stream of bytes, until one of them has ended it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools

from sockd.base.errors import ServiceAnswerLost, TimedOut
from sockd.base.invoke_request import Sink
from sockd.functions.services.byte_streams import READ_BYTES, pass_on
from sockd.functions.services.program_connection import ProgramConnection

HEAD_BYTES = 64 * 1024
"""The longest head of an answer, with those of interim answers before it."""
PREFIX_HEADER = "x-forwarded-prefix"
BODILESS = (204, 304)
INTERIM, SWITCHED = range(100, 200), 101
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})


class AnswerReader:
    """The callbacks of a parser: what has come of an answer, and what of it was not taken yet."""

    def __init__(self, *, has_body: bool, may_switch: bool = False) -> None:
        """Args: has_body: False: an answer to HEAD; may_switch: the request asks for another protocol."""
        self._has_body = has_body
        self._may_switch = may_switch
        self._parser = httptools.HttpResponseParser(self)
        self._is_framed = False
        """Whether the head says where the body ends; else the end of the connection does."""
        self._head_bytes = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.status = 0
        """0: the head has not come yet."""
        self.pieces: list[bytes] = []
        self.is_complete = False
        self.early = b""
        """What has come behind the head of an answer that switches."""

    def feed(self, data: bytes) -> None:
        """Read the next bytes; none: the end. Raises: ServiceAnswerLost."""
        if not data:
            if not self.status or self._is_framed:
                raise ServiceAnswerLost("the service closed the connection before the end of its answer")
            self.is_complete = True
            return
        if not self.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._may_switch:
                raise ServiceAnswerLost("the service switched to another protocol, which was not asked for") from None
            self.status = SWITCHED
            self.early = data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            raise ServiceAnswerLost(f"the answer of the service is not HTTP: {error}") from None
        if not self.status and self._head_bytes > HEAD_BYTES:
            raise ServiceAnswerLost(f"the head of the answer is longer than {HEAD_BYTES} bytes")

    @property
    def has_begun(self) -> bool:
        """Whether any byte has come."""
        return self._head_bytes > 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            return  # a trailer
        name = name.lower()
        self._is_framed = self._is_framed or name in (b"content-length", b"transfer-encoding")
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == SWITCHED and self._may_switch:
            return  # the parser stops behind it, if it is one
        if status in INTERIM:
            self.headers, self._is_framed = [], False
            return
        self.status = status
        self.is_complete = not self._has_body or status in BODILESS

    def on_body(self, data: bytes) -> None:
        self.pieces.append(data)

    def on_message_complete(self) -> None:
        self.is_complete = self.status > 0


async def relay(program: ProgramConnection, http: dict[str, Any], body: bytes, sink: Sink, *, timeout_s: float) -> None:
    """Send a request, and pass its answer to a sink.

    Args: http: as `InvokeRequest.as_http` gives it; timeout_s: how long the program may take to the head of its answer.
    Raises: ServiceAnswerLost; TimedOut; what the sink raises."""
    sink.on_gone = program.break_off
    answer = AnswerReader(has_body=http["method"] != "HEAD", may_switch="upgrade" in http)
    try:
        async with asyncio.timeout(timeout_s) as limit:
            program.write(_head(http))
            program.write(body)
            while not answer.status:
                answer.feed(await program.read(READ_BYTES))
        if answer.status == SWITCHED:
            client = await sink.switch(answer.headers)
            client.write(answer.early)
            await pass_on(client, client, program)
            return
        await sink.head(answer.status, answer.headers)
        while True:
            pieces, answer.pieces = answer.pieces, []
            for piece in pieces:
                await sink.chunk(piece)
            if answer.is_complete:
                return
            answer.feed(await program.read(READ_BYTES))
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimedOut(f"the service did not answer within {timeout_s:.2f} seconds", "timeout_s") from None
    except ConnectionError as error:
        lost = ServiceAnswerLost(f"the service broke the connection off: {error.strerror}")
        # The kernel resets a connection that was not accepted, or is closed with unread bytes; any other ends without an error.
        lost.is_reset = not answer.has_begun
        raise lost from None


def is_repeatable(http: dict[str, Any], body: bytes) -> bool:
    """Whether a request that the program has not wholly read may be sent again: twice is as once (RFC 9110, 9.2.2), or it is all
    head."""
    return http["method"] in IDEMPOTENT or not body


def _head(http: dict[str, Any]) -> bytes:
    """The head of a request, with the path below the service's own."""
    target = f"{http['raw_path']}?{http['query']}" if http["query"] else http["raw_path"]
    lines = [f"{http['method']} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in http["headers"] if name != PREFIX_HEADER]
    hop = ["connection: Upgrade", f"upgrade: {http['upgrade']}"] if "upgrade" in http else ["connection: close"]
    lines += [f"{PREFIX_HEADER}: {http['root_path']}", *hop, "", ""]
    return "\r\n".join(lines).encode("latin-1")
