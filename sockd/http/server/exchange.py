"""One request and its answer: the interface between a connection and an application.

The connection parses, keeps the order, and runs the exchange in its turn; the application's subclass receives the body and
answers. Owns its task. Knows nothing of sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from sockd.base.errors import BuffersFull, Draining, RequestTooLarge, SockdError
from sockd.base.invoke_request import InvokeRequest
from sockd.base.telemetry import Ending, Invocation
from sockd.http.server.bounds.buffers import Buffer
from sockd.http.server.messages.answers import Answer, failure, success
from sockd.http.server.messages.body import Body
from sockd.http.server.messages.head import Head
from sockd.http.server.states import ABANDONED, BEGUN, Payload, Stage
from sockd.http.server.transport import Transport
from sockd.http.server.tunnel import Tunnel

# A member of an enumeration that is asked of its class costs as much as a call, and these are asked for each request.
_LOST = Stage.LOST
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}


class Server(Protocol):
    """The server, as an answer's head needs it."""

    @property
    def fields(self) -> str:
        """Header lines of each answer, its date among them."""


class Client(Protocol):
    """The connection of an exchange: it reads and writes, and is notified when the exchange was answered and when it has
    ended."""

    transport: Transport
    """Knows both addresses."""

    @property
    def server(self) -> Server: ...

    def write(self, head: bytes, body: bytes) -> None:
        """Send both at once."""

    async def writable(self) -> None:
        """Wait until the peer has read most of what was written."""

    def pause_reading(self) -> None:
        """Take no more of the body for now."""

    def resume_reading(self) -> None:
        """Go on reading."""

    def switch(self) -> Tunnel:
        """Go on as a stream of bytes, which the exchange reads and writes until it has ended."""

    def body_dropped(self) -> None:
        """The exchange has let go of its body to be answered with an error."""

    def looks_gone(self) -> bool:
        """Whether the client will send no more."""

    def finish(self, exchange: Exchange) -> None:
        """Remove an exchange that was answered."""

    def ended(self, exchange: Exchange) -> None:
        """Remove an exchange that has run to its end, whether it was answered or not."""


class Concluding(Protocol):
    """The receiver of an invocation's outcome."""

    def conclude(self, ending: Ending) -> None: ...


class Exchange:
    """The base of what an application makes of each request, as soon as its head has been read."""

    # Defaults stand in the class, because most never change and each that is set costs every request.
    payload = Payload.COLLECTED
    stage = Stage.WAITING
    keep_alive = True
    endless = False
    """The answer goes on until the server or the client ends it."""
    body_asked_for = False
    discarded_bytes = 0
    """Bytes of the body that were dropped."""
    task: asyncio.Task[None] | None = None
    """In which it `run`s, if it does."""
    end: Callable[[], object] | None = None
    """Cancels what the exchange waits for without calling `sink`, if that is not a task."""
    sink: Concluding | None = None
    """Gets the outcome of what the exchange waits for."""
    request: InvokeRequest | None = None
    """What it asked the worker for, once it has, if something is `held`."""
    held: Buffer | None = None
    """What is counted of its body."""
    max_body_bytes = 0
    """The most bytes of the body that the exchange may hold; the bytes of one read are not counted."""
    when_gone: Callable[[], None] | None = None
    """Called as soon as the client looks `gone`, for an answer that takes long."""

    def __init__(self, connection: Client, head: Head) -> None:
        self.connection = connection
        self.head = head

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        raise NotImplementedError

    def on_whole(self) -> None:
        """There is no more of the body."""

    def refuse(self, error: SockdError) -> None:
        """Let go of the body, and answer with this error when its turn comes. Only before `start`."""
        raise NotImplementedError

    def give_way(self) -> bool:
        """Answer with a 503 instead, and let go of the body now, if nothing has been run yet."""
        if self.stage is Stage.ANSWERED or self.held is None:
            return False
        if self.stage is Stage.WAITING:
            self.refuse(BuffersFull())
        elif self.task is not None and self.request is not None and not self.request.entered:
            self.task.cancel(BuffersFull())  # it waits for its turn
        else:
            return False
        self.release()
        self.connection.body_dropped()
        return True

    def release(self) -> None:
        """Its body is not in memory any more, or soon will not be."""
        if self.held is not None:
            self.held.close()
            self.held = self.request = None

    def gone(self) -> bool:
        """Whether the client has disconnected, or seems to have."""
        return self.stage is _LOST or self.connection.looks_gone()

    def on_lost(self) -> None:
        """The client has gone, or its request broke off."""
        before, self.stage = self.stage, ABANDONED[self.stage]
        if before is Stage.WAITING:
            self.release()
        self.on_gone()

    def on_gone(self) -> None:
        """The client has gone, or has shut down its sending half."""
        if self.when_gone is not None:
            tell, self.when_gone = self.when_gone, None
            tell()

    def start(self) -> None:
        """Begin to answer, not at once. Called once, when everything before it on the connection is answered; who does not
        `run` tells the connection of its end (`Connection.ended`)."""
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self.run()
        finally:
            self.connection.ended(self)

    async def run(self) -> None:
        """Answer, if the client is not lost."""
        raise NotImplementedError

    def cancel(self) -> None:
        """The server stops, and waits for the task, if there is one: answer now or never."""
        if self.task is not None:
            self.task.cancel()

    def ask_for_body(self) -> None:
        """Tell a client that waits with its body to send it; only once, and not before its turn."""
        if not self.body_asked_for:
            self.body_asked_for = True
            if self.head.expects_continue():
                self.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n", b"")

    def begin(self, status: int, fields: str) -> str:
        """The answer's head but for the empty line behind it; `fields` are lines, each with its end."""
        self.stage = BEGUN[self.stage]
        end = "" if self.keep_alive else "connection: close\r\n"
        line = (
            _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n"
        )  # RFC 9112, 4: the phrase may be missing, its space not
        return f"{line}{self.connection.server.fields}{fields}{end}"

    def answer(self, answer: Answer) -> None:
        """Give a whole answer."""
        if self.stage is _LOST:
            return
        body = answer.body
        head = f"{self.begin(answer.status, answer.fields)}content-length: {len(body)}\r\n\r\n".encode("latin-1")
        self.connection.write(head, body if self.head.method != b"HEAD" else b"")
        self.connection.finish(self)


class BodyExchange(Exchange):
    """An exchange that collects its body, up to `max_body_bytes`."""

    body: bytes | Body = b""
    """Bytes, as long as it came in one piece."""

    def on_body(self, data: bytes) -> None:
        body = self.body
        if (body.size if isinstance(body, Body) else len(body)) + len(data) > self.max_body_bytes:
            self.refuse(RequestTooLarge(f"the payload has more than {self.max_body_bytes} bytes, the limit"))
        elif isinstance(body, Body):
            body.add(data)
        else:
            self.body = Body(body, data) if body else data


def answer_of(ending: Ending, request_id: str) -> Answer:
    """The answer for an invocation's outcome."""
    if isinstance(ending, Invocation):
        return success(ending, request_id)
    if isinstance(ending, asyncio.CancelledError):
        # The server cancels when its drain is over, and it waits for nothing but the end of this request: better an
        # answer than a connection that closes without one.
        ending = why_cancelled(ending, "the worker stopped before the function had answered")
    return failure(ending, request_id)


def why_cancelled(cancelled: asyncio.CancelledError, draining: str) -> SockdError:
    """What a request that was cancelled is answered with. Args: draining: what to say if the server stops."""
    why = cancelled.args[0] if cancelled.args else None
    return why if isinstance(why, SockdError) else Draining(draining)
