"""Bodies whose length is not known beforehand: decoded and collected in the region as they come.

Chunks are httptools' (llhttp) to decode. Content-Encoding is not decoded: a body is given as it is stored, as boto3 does.
"""

from __future__ import annotations

from typing import Protocol

import httptools

from sockd_initscripts.rpc.base import ReplyBuffer, RpcFailed, protocol_error, reset


class CollectedBody(Protocol):
    """What an `IncomingReply` feeds."""

    whole: bool

    def feed(self, data: bytes) -> None:
        """Raises: RpcFailed (protocol, region_full)."""

    def end(self) -> None:
        """The connection has ended. Raises: RpcFailed (reset) if the body has not."""


class ChunkedBody:
    """A body in chunks."""

    def __init__(self, head: bytes, reply_buffer: ReplyBuffer) -> None:
        """`head`: the response's, with the empty line: the parser takes the framing from it."""
        self.whole = False
        self._reply_buffer = reply_buffer
        self._failure: RpcFailed | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(head)

    def feed(self, data: bytes) -> None:
        # A chunk's announced length is never allocated; the region bounds what has really come.
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise self._failure or protocol_error(f"in a chunked body: {error}") from error

    def end(self) -> None:
        raise reset("the connection ended within a chunked body")

    # -- the parser's calls; it wraps what they raise

    def on_message_begin(self) -> None:
        if self.whole:
            self._failure = protocol_error("a second response without a request")
            raise self._failure

    def on_body(self, data: bytes) -> None:
        try:
            self._reply_buffer.append(data)
        except RpcFailed as error:
            self._failure = error
            raise

    def on_message_complete(self) -> None:
        self.whole = True


class BodyUntilEnd:
    """A body that ends with its connection."""

    def __init__(self, reply_buffer: ReplyBuffer) -> None:
        self.whole = False
        self._reply_buffer = reply_buffer

    def feed(self, data: bytes) -> None:
        self._reply_buffer.append(data)

    def end(self) -> None:
        self.whole = True
