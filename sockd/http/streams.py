"""Streamed answers: lines of JSON, or events. Owns the work that makes them until it has ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sockd.base.notes import Note, Progress
from sockd.base.request_ids import new_request_id, request_id_text
from sockd.http.server.apps.asgi import ENDLESS
from sockd.http.server.messages.answers import failure


class Stream(StreamingResponse):
    """Pieces from an iterator, which is closed in the end however that comes."""

    def __init__(
        self,
        pieces: AsyncGenerator[bytes],
        media_type: str,
        headers: Mapping[str, str] | None = None,
        *,
        endless: bool = False,
    ) -> None:
        """Args: endless: the pieces come until the worker or the client ends them, so that the last one is not waited for."""
        super().__init__(pieces, 200, headers, media_type)
        self._pieces = pieces
        self._endless = endless

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._endless and (mark := scope.get("extensions", {}).get(ENDLESS)) is not None:
            mark()
        async with contextlib.aclosing(self._pieces):
            try:
                await super().__call__(scope, receive, send)
            except asyncio.CancelledError:
                # The server's drain is over and it waits for nothing but the end of this task: end the stream in order.
                await send({"type": "http.response.body", "body": b"", "more_body": False})


class Lines(Stream):
    """Lines of JSON."""

    def __init__(self, lines: AsyncGenerator[bytes], *, endless: bool = False) -> None:
        super().__init__(lines, "application/x-ndjson", endless=endless)


class Work:
    """A response that runs something and tells its progress; a client that leaves cancels it.

    Owns the work, and what the work needs, until it has ended."""

    def __init__(self, work: Callable[[Progress], Awaitable[object]], owned: contextlib.ExitStack) -> None:
        self._work = work
        self._owned = owned
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def tell(self, **line: object) -> None:
        """Send a line, while the work is being done."""
        self._queue.put_nowait(msgspec.json.encode(line) + b"\n")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._owned:  # a task that is cancelled before its first step runs nothing, not even a `with`
            task = asyncio.create_task(self._run())
            try:
                await Lines(self._lines())(scope, receive, send)
            finally:
                task.cancel()
                await asyncio.wait([task])

    async def _run(self) -> None:
        put = self._queue.put_nowait
        try:
            with self._owned:
                result = await self._work(self._progress)
            self.tell(result=result)
        except Exception as error:
            answer = failure(error, request_id_text(new_request_id()))
            put(b'{"status":%d,"error":%s}\n' % (answer.status, answer.body))
        finally:
            put(None)

    def _progress(self, text: str) -> None:
        self.tell(progress=str(text), **({"note": True} if isinstance(text, Note) else {}))

    async def _lines(self) -> AsyncGenerator[bytes]:
        while (line := await self._queue.get()) is not None:
            yield line
