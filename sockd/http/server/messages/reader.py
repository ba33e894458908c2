"""Bytes to heads and bodies: httptools (llhttp), bounded in what it may take.

The base of `Connection`, because the parser calls methods of one object. Owns the parser. Knows nothing of answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import httptools

from sockd.http.server.limits import ConnectionLimits
from sockd.http.server.messages.head import Head, Headers, WebSocketHead, in_origin_form
from sockd.http.server.messages.refusals import (
    BODY_TOO_LARGE,
    HEAD_TOO_LARGE,
    MALFORMED,
    NO_ROOM,
    NO_SUCH_CODING,
    NO_SUCH_VERSION,
    Refusal,
)
from sockd.http.server.states import BODY_WHOLE, BYTES_CAME, HEAD_READ, IN_BODY, PART_READ, REQUEST_BEGUN, Input

# A member of an enumeration that is asked of its class costs as much as a call, and these are asked for each request.
_BODY_AWAITED, _BODY = Input.BODY_AWAITED, Input.BODY
_SPOKEN = ("1.1", "1.0")
_log = logging.getLogger("sockd.http")


class _Refused(Exception):
    """Leaves the parser from inside of a callback."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


class RequestReader:
    """Feeds the parser, and turns its callbacks into methods of subclasses: a head, parts of a body, and its end."""

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float]) -> None:
        """Args: clock: monotonic, in seconds."""
        self.limits = limits
        self.input = Input.CONNECTED
        self._clock = clock
        self.since_s = clock()
        """Since when the connection waits for what it reads now."""
        self._parser = self._new_parser()
        self._target = b""
        self._headers: Headers = []
        self._chunk_bytes = 0
        self._head_bytes = 0
        """Bytes of the chunks that hold nothing but the head which is being read."""
        self._head_slack_bytes = 0
        """The chunk before those: the head may have begun in it."""
        self._plain_head: bytes | None = None
        self._kind = Head
        """What the next head is; another one where it is read again."""

    def on_head(self, head: Head, *, keep_alive: bool) -> None:
        """A request has begun."""
        raise NotImplementedError

    def on_body(self, data: bytes) -> None:
        """A part of its body."""
        raise NotImplementedError

    def on_whole(self, *, in_parts: bool) -> None:
        """Handle the end of a request that is complete. Args: in_parts: its body came in more than one chunk."""
        raise NotImplementedError

    def feed(self, data: bytes) -> Refusal | None:
        """Read a chunk; returns why no more may be read, if so."""
        before, self.input = self.input, BYTES_CAME[self.input]
        self._chunk_s = self._clock()
        if self.input is not before:
            self.since_s = self._chunk_s  # also for the blank lines that may precede a request
        self._chunk_bytes = len(data)
        if self.input is not _BODY_AWAITED:
            self._head_bytes += self._chunk_bytes
        rest: bytes | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            return _refusal(error)
        if rest is not None:
            return self._feed_plain(rest)
        if self.input is _BODY:
            self.input = PART_READ[self.input]
        elif self._head_bytes > self.limits.head_bytes and self.input is not _BODY_AWAITED:
            return HEAD_TOO_LARGE
        return None

    def _feed_plain(self, rest: bytes) -> Refusal | None:
        """The parser stops behind a head that asks for another protocol, and would drop the body (Java's HttpClient sends
        one with `Upgrade: h2c`). The request is read again as the plain one that it also is: the application may answer it, or
        switch to a WebSocket if that was asked for."""
        if self._plain_head is None:
            return MALFORMED  # CONNECT
        data, self._plain_head = self._plain_head + rest, None
        self._parser = self._new_parser()
        return self.feed(data)

    def close_reader(self) -> None:
        """Let go of the parser, which holds this object."""
        del self._parser

    def refuse_body(self) -> None:
        """For `on_body`: no more of this."""
        raise _Refused(BODY_TOO_LARGE)

    def refuse_pipeline(self) -> None:
        """For `on_head`: no room for one more request behind others."""
        raise _Refused(NO_ROOM)

    # -- the parser's calls

    def on_message_begin(self) -> None:
        self.input = REQUEST_BEGUN[self.input]
        self.since_s = self._chunk_s
        self._target = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"transfer-encoding" and self._is_coded(value):
            raise _Refused(NO_SUCH_CODING)
        self._headers.append((name, value))
        if len(self._headers) > self.limits.headers:  # each costs several times its bytes
            raise _Refused(HEAD_TOO_LARGE)

    def _is_coded(self, value: bytes) -> bool:
        """Whether a body would be read that is compressed inside of its chunks. (Lists that do not end in chunked the parser
        refuses: the body of those has no end.)"""
        *others, last = (coding.strip().lower() for coding in value.split(b","))
        return last == b"chunked" and bool(others or any(name == b"transfer-encoding" for name, _ in self._headers))

    def on_headers_complete(self) -> None:
        parser, limit_bytes = self._parser, self.limits.head_bytes
        if self._target[:1] != b"/":
            self._target, self._headers = in_origin_form(self._target, self._headers)
        head = self._kind(parser.get_method(), self._target, parser.get_http_version(), self._headers)
        if head.version not in _SPOKEN:
            raise _Refused(NO_SUCH_VERSION)
        # Exact only where it matters: chunks may hold more than this head.
        if self._head_bytes + self._head_slack_bytes > limit_bytes and head.size_bytes() > limit_bytes:
            raise _Refused(HEAD_TOO_LARGE)
        if parser.should_upgrade():
            self._plain_head = head.without_upgrade() if head.method != b"CONNECT" else None
            self._kind = WebSocketHead if head.may_become_websocket() else Head
            return
        self._kind = Head
        self._headers = []  # trailers are not the head's
        # Without a header that names it, which our answers do not have, an HTTP/1.0 client knows no keep-alive.
        keep_alive = head.version == "1.1" and parser.should_keep_alive()
        self.on_head(head, keep_alive=keep_alive)
        self.input = HEAD_READ[self.input]
        self.since_s = self._chunk_s

    def on_message_complete(self) -> None:
        if self.input not in IN_BODY:
            return  # an upgrade: it is still to be read
        in_parts = self.input is _BODY_AWAITED
        self.input = BODY_WHOLE[self.input]
        self._head_bytes, self._head_slack_bytes = 0, self._chunk_bytes
        self.on_whole(in_parts=in_parts)

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # After `Connection: close` anything may follow; it must not turn the answer into a 400.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser


def _refusal(error: httptools.HttpParserError) -> Refusal:
    """What an error of the parser's, or an exception of our own while a request was being read, is for the client."""
    if not isinstance(error, httptools.HttpParserCallbackError):
        return MALFORMED
    cause = error.__context__
    if isinstance(cause, _Refused):
        return cause.refusal
    if not isinstance(cause, httptools.HttpParserInvalidURLError):
        _log.error("a request could not be read", exc_info=cause)  # a bug of ours
    return MALFORMED
