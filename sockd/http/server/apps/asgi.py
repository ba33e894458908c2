"""ASGI on our connections, for the management API, which uses Starlette.

One application task per request, from the end of the head on; bodies and answers may be streamed. Invocations do not use it.
Knows nothing of management."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

from sockd.http.server.connection import Connection
from sockd.http.server.exchange import Exchange
from sockd.http.server.messages.fields import raw_field
from sockd.http.server.messages.head import Head
from sockd.http.server.states import OVER, STREAM_BODY, Payload, Stage

_BUFFERED_BYTES = 64 * 1024
"""The most bytes that are buffered of a body that the application is slow to read."""
ENDLESS = "sockd.endless"
"""An extension of the scope: a function that marks the answer as endless."""
_VERSIONS = {"version": "3.0", "spec_version": "2.3"}


class AsgiApplication:
    """An ASGI application as an `HttpServer` serves it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def open(self, connection: Connection, head: Head, state: Mapping[str, object] | None = None) -> Exchange:
        """As `Application.open`. Args: state: what the request's handler finds in `request.state`."""
        return AsgiExchange(connection, head, self._app, state or {})


class AsgiExchange(Exchange):
    """One request to it."""

    def __init__(self, connection: Connection, head: Head, app: ASGIApp, state: Mapping[str, object]) -> None:
        super().__init__(connection, head)
        self.payload = STREAM_BODY[self.payload]
        self._app = app
        self._scope = _scope(head, connection, state)
        self._scope["extensions"] = {ENDLESS: self._mark_endless}
        self._body = bytearray()
        self._changed = asyncio.Event()
        """The body, or whether there is a client."""
        self._last_read = False
        """The application has the whole body."""
        self._start: Message = {}
        """The head of the answer, which waits for the first part of its body."""
        self._chunked = False

    def on_body(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > _BUFFERED_BYTES:
            self.connection.pause_reading()
        self._changed.set()

    def on_whole(self) -> None:
        self._changed.set()

    def on_lost(self) -> None:
        super().on_lost()
        self._changed.set()

    def _mark_endless(self) -> None:
        self.endless = True

    async def run(self) -> None:
        await self._app(self._scope, self._receive, self._send)

    async def _receive(self) -> Message:
        self.ask_for_body()
        while not (self.stage in OVER or self._body or (self.payload is Payload.WHOLE and not self._last_read)):
            self._changed.clear()
            await self._changed.wait()
        if self.stage in OVER:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        self._last_read = self.payload is Payload.WHOLE
        self.connection.resume_reading()
        return {"type": "http.request", "body": body, "more_body": not self._last_read}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        await self.connection.writable()
        if self.stage in OVER:
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        head = b"" if self.stage is Stage.ANSWERING else self._answer_head()
        if self.head.method == b"HEAD":
            body = b""
        elif self._chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        self.connection.write(head, body)
        if not more:
            self.connection.finish(self)
            self._changed.set()

    def _answer_head(self) -> bytes:
        headers = self._start["headers"]
        self._chunked = not any(name == b"content-length" for name, _ in headers)
        lines = [raw_field(name, value) for name, value in headers]
        if self._chunked:
            lines.append("transfer-encoding: chunked\r\n")
        return f"{self.begin(self._start['status'], ''.join(lines))}\r\n".encode("latin-1")


def _scope(head: Head, connection: Connection, state: Mapping[str, object]) -> Scope:
    path, query = head.path_and_query()
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": _VERSIONS,
        "http_version": head.version,
        "method": head.method.decode(),
        "scheme": "http",
        "path": unquote(path.decode("latin-1")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": head.headers,
        "client": _address(connection, "peername"),
        "server": _address(connection, "sockname"),
        "state": dict(state),
    }
    return scope


def _address(connection: Connection, name: str) -> tuple[str, int] | None:
    """Host and port of one end; a Unix socket has none."""
    address = connection.transport.get_extra_info(name)
    return address[:2] if isinstance(address, tuple) else None
