"""Streamed answers of function URLs: passed on piece by piece, or buffered (`InvokeMode`).

Owns a buffered answer, or the first bytes of a streamed one, which may begin like those of AWS's custom runtimes: status and
headers as JSON, and eight NUL bytes before the body.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from sockd.base.errors import ResponseTooLarge
from sockd.base.invoke_request import Sink
from sockd.http.server.exchange import Exchange
from sockd.http.server.messages.answers import Answer
from sockd.http.server.messages.fields import passes_raw
from sockd.http.server.streamed import StreamedAnswer
from sockd.http.urls.response import Fields, Reply, metadata

PRELUDE_BYTES = 16 * 1024
"""Most of the JSON before the eight bytes."""
PRELUDE_TYPES = (b"application/octet-stream", b"application/vnd.awslambda.http-integration-response")
"""What an answer may say of itself that begins so: bytes without a declared type, or exactly that type."""
_END = bytes(8)
_BEGINNINGS = (b'{"statusCode":', b'{"headers":', b'{"cookies":')
_SPACE = re.compile(rb"\s")
_LONGEST_BEGINNING = 64
Shape = Callable[[Fields], Fields]
"""Gives a function's headers as this URL sends them."""


class Begun(NamedTuple):
    """An answer that begins with its own status and headers."""

    status: int
    fields: Fields
    rest: bytes
    """The bytes of the body that came with the prelude."""


class UrlStream(StreamedAnswer):
    """Passes an answer on; `finish` ends it."""

    can_switch = False

    def __init__(self, exchange: Exchange, request_id: bytes, shape: Shape) -> None:
        super().__init__(exchange, request_id)
        self._shape = shape
        self._held: bytearray | None = None
        """The first bytes of an answer that may begin with a prelude."""
        self._held_headers: list[tuple[bytes, bytes]] = []

    async def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if status == 200 and dict(headers).get(b"content-type") in PRELUDE_TYPES:
            self._held, self._held_headers = bytearray(), headers
        else:
            await self._begin(status, text_fields(headers))

    async def chunk(self, data: bytes) -> None:
        if self._held is not None:
            self._held += data
            begun = prelude(bytes(self._held))
            if begun is None:
                return
            self._held = None
            await self._begin(begun.status, begun.fields or text_fields(self._held_headers))
            data = begun.rest
        if data:
            await super().chunk(data)

    async def finish(self, answer: Answer) -> None:
        """The invocation has ended. Args: as of `close`."""
        if self._held is not None and answer.status == 200:
            held, self._held = bytes(self._held), None
            await self._begin(200, text_fields(self._held_headers))
            if held:
                await super().chunk(held)
        self.close(answer)

    async def _begin(self, status: int, fields: Fields) -> None:
        shaped = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._shape(fields)]
        await super().head(status, shaped)


class Buffered(Sink):
    """Keeps an answer until it is whole."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._max_bytes = max_bytes
        self._status = 200
        self._fields: Fields = []
        self._body = bytearray()

    async def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._status, self._fields = status, text_fields(headers)

    async def chunk(self, data: bytes) -> None:
        """Raises: ResponseTooLarge."""
        self._left -= len(data)
        if self._left < 0:
            raise ResponseTooLarge(
                "Function.ResponseSizeTooLarge",
                f"Response payload size exceeded maximum allowed payload size ({self._max_bytes} bytes).",
            )
        self._body += data

    def reply(self) -> Reply:
        """All of it."""
        return Reply(self._status, self._fields, bytes(self._body))


def text_fields(headers: list[tuple[bytes, bytes]]) -> Fields:
    """A stream's headers, without those that are not the function's to say."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers if passes_raw(name)]


def prelude(held: bytes) -> Begun | None:
    """How an answer begins whose first bytes are these; None: it takes more to tell. Without a prelude, `fields` is empty.

    Raises: BadReply: it has one that no HTTP answer can have."""
    first = _SPACE.sub(b"", held[:_LONGEST_BEGINNING])
    if not first.startswith(_BEGINNINGS):
        undecided = len(held) < _LONGEST_BEGINNING and any(each.startswith(first) for each in _BEGINNINGS)
        return None if undecided else Begun(200, [], held)
    encoded, end, rest = held.partition(_END)
    if len(encoded) > PRELUDE_BYTES:
        return Begun(200, [], held)
    return Begun(*metadata(encoded), rest) if end else None
