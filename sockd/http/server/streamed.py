"""An answer that is written while it is being made: of a promised length, in chunks, or until the connection's end.

Owns what has been promised of the answer's length, and keeps to it whatever comes. Status and headers are a stranger's,
but for what only we can know: lengths, the connection, the date, ids.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import os
from http import HTTPStatus

from sockd.base.invoke_request import Sink
from sockd.base.request_ids import request_id_text
from sockd.base.telemetry import Ending
from sockd.http.server.exchange import Exchange, answer_of
from sockd.http.server.messages.answers import Answer, begun_fields
from sockd.http.server.messages.fields import passes_raw, raw_field
from sockd.http.server.states import OVER, Stage
from sockd.http.server.tunnel import Tunnel
from sockd_zygote.protocol import BODILESS, LENGTH_MAX_DIGITS


class Framing(enum.Enum):
    """How the client knows where the body ends."""

    NO_BODY = 0
    LENGTH = 1
    CHUNKS = 2
    CLOSE = 3


class StreamedAnswer(Sink):
    """Made for every request whose answer may be streamed; `close` ends it, whether it was."""

    can_switch = True
    started = False
    """A head has come: the answer can be no other any more."""
    _head: tuple[int, str] | None = None
    """Status and header lines that wait for the first chunk, to be written with it."""
    _framing = Framing.CHUNKS
    _left = 0
    """Bytes to come until the promised length."""

    def __init__(self, exchange: Exchange, request_id: bytes) -> None:
        self._exchange = exchange
        self.request_id = request_id

    async def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        exchange = self._exchange
        self.started = True
        # Who shuts its sending half down in the middle of an answer has hung up; who did so before is still waiting.
        exchange.when_gone = self._hung_up
        if exchange.stage is Stage.LOST:
            self._hung_up()
        length = _promised_length(headers)
        self._framing = self._choose_framing(status, length)
        fields = "".join(raw_field(name, value) for name, value in headers if passes_raw(name))
        if length is not None and status not in BODILESS:
            self._left = length
            fields += f"content-length: {length}\r\n"
        if self._framing is Framing.CLOSE:
            exchange.keep_alive = False
        request_id = request_id_text(self.request_id)
        self._head = status, fields + begun_fields(self.begun, request_id)
        # At once, but for a first chunk that comes in the same breath.
        asyncio.get_running_loop().call_soon(self._flush)

    async def switch(self, headers: list[tuple[bytes, bytes]]) -> Tunnel:
        exchange = self._exchange
        self.started = exchange.endless = True
        if self._is_over():
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        exchange.when_gone = self._hung_up
        self._framing = Framing.NO_BODY
        fields = "".join(raw_field(name, value) for name, value in headers if passes_raw(name))
        fields += "connection: Upgrade\r\nupgrade: websocket\r\n"
        fields += begun_fields(self.begun, request_id_text(self.request_id))
        exchange.keep_alive = True  # its header says something else
        exchange.connection.write(
            f"{exchange.begin(HTTPStatus.SWITCHING_PROTOCOLS, fields)}\r\n".encode("latin-1"), b""
        )
        exchange.keep_alive = False
        return exchange.connection.switch()

    async def chunk(self, data: bytes) -> None:
        connection = self._exchange.connection
        await connection.writable()
        if self._is_over():
            return
        if self._framing is Framing.LENGTH:
            data = data[: self._left]  # more would be taken for the next answer's head
            self._left -= len(data)
        if self._framing is Framing.NO_BODY or not data:
            return
        if self._framing is Framing.CHUNKS:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        connection.write(self._head_bytes(), data)

    def close(self, answer: Answer) -> None:
        """End the answer when the invocation has ended. Args: answer: what the invocation gave, or its error; sent unless a
        part of another answer was sent before."""
        if not self.started:
            self._exchange.answer(answer)
        elif answer.status == HTTPStatus.OK and not self._is_over():
            self._end()
        # Otherwise it is cut: the connection closes behind an exchange that has not been answered.

    def conclude(self, ending: Ending) -> None:
        """As `close`, of an invocation that is no task: its exchange has ended with it."""
        exchange = self._exchange
        exchange.end = exchange.sink = None  # each knows the other: no cycle is to be left
        try:
            self.close(answer_of(ending, request_id_text(self.request_id)))
        finally:
            exchange.connection.ended(exchange)

    def _end(self) -> None:
        connection, last = self._exchange.connection, b""
        if self._framing is Framing.LENGTH and self._left:
            self._flush()  # less than was promised: cut, too
            return
        if self._framing is Framing.CHUNKS:
            if self._head is not None:
                self._head = self._head[0], f"{self._head[1]}content-length: 0\r\n"
                self._framing = Framing.LENGTH
            else:
                last = b"0\r\n\r\n"
        connection.write(self._head_bytes(), last)
        connection.finish(self._exchange)

    def _choose_framing(self, status: int, length: int | None) -> Framing:
        head = self._exchange.head
        if head.method == b"HEAD" or status in BODILESS:
            return Framing.NO_BODY
        if length is not None:
            return Framing.LENGTH
        return Framing.CLOSE if head.version == "1.0" else Framing.CHUNKS

    def _flush(self) -> None:
        if self._head is not None and not self._is_over():
            self._exchange.connection.write(self._head_bytes(), b"")

    def _head_bytes(self) -> bytes:
        """What is to be written before the next part of the body."""
        if self._head is None:
            return b""
        (status, fields), self._head = self._head, None
        if self._framing is Framing.CHUNKS:
            fields += "transfer-encoding: chunked\r\n"
        return f"{self._exchange.begin(status, fields)}\r\n".encode("latin-1")

    def _is_over(self) -> bool:
        return self._exchange.stage in OVER

    def _hung_up(self) -> None:
        if self.on_gone is not None:
            tell, self.on_gone = self.on_gone, None
            tell()


def _promised_length(headers: list[tuple[bytes, bytes]]) -> int | None:
    """The content-length that a function gives, if it gives one and no other."""
    lengths = {value for name, value in headers if name == b"content-length"}
    if len(lengths) != 1:
        return None
    length = lengths.pop()
    return int(length) if length.isdigit() and len(length) <= LENGTH_MAX_DIGITS else None
