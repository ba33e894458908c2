"""One request and its answer on a connection: uvicorn's own, able to answer in one piece.

uvicorn writes an answer's head and body separately, which uvloop turns into two system calls and, with TCP_NODELAY, two
packets, and searches every header for characters that ours cannot hold. The front's answers are whole when they are
sent, so they go out by one message and in one write. Streams take uvicorn's way.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

WHOLE = "sockd.response.whole"
"""The ASGI message of a whole answer: `status`, `body`, and `headers` with content-length, none from a stranger."""
_JOINED_BYTES = 64 * 1024


class Exchange(RequestResponseCycle):
    """What `Connection` makes of each request."""

    async def send(self, message: MutableMapping[str, Any]) -> None:  # type: ignore[override]
        if message["type"] != WHOLE:
            await super().send(message)  # type: ignore[arg-type]
            return
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if not self.disconnected:
            self._answer(message)

    def _answer(self, message: MutableMapping[str, Any]) -> None:
        lines = [b"%s: %s\r\n" % header for header in self.default_headers]
        lines += [b"%s: %s\r\n" % header for header in message["headers"]]
        end = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        head = STATUS_LINE[message["status"]] + b"".join(lines) + end
        body = message["body"] if self.scope["method"] != "HEAD" else b""
        if len(body) < _JOINED_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))  # one writev, without copying megabytes
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
