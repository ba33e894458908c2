"""One response's writes, its head joined with the first piece of its body.

uvicorn writes the two separately, which uvloop turns into two system calls and, with TCP_NODELAY, two packets. ASGI
asks for the joining too: nothing is sent before the first `http.response.body`. Owns the head until then.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class OneWrite:
    """The transport as one response sees it."""

    __slots__ = ("_cycle", "_head", "_transport", "is_closing")

    def __init__(self, cycle: RequestResponseCycle, transport: asyncio.Transport) -> None:
        self._cycle = cycle
        self._transport = transport
        self._head: bytes | None = None
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        cycle = self._cycle
        if self._head is None:
            # The first write of a started response is its head. Earlier ones are `100 Continue`; HEAD has no body.
            if cycle.response_started and cycle.scope["method"] != "HEAD":
                self._head = data
            else:
                self._transport.write(data)
            return
        if self._head:
            data = self._head + data
            self._head = b""
        self._transport.write(data)

    def close(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = b""
        self._transport.close()
