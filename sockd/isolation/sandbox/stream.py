"""A streamed answer between a sandbox and its receiver.

Owns pieces that the receiver has not taken: above HELD_BYTES the sandbox is not read, and blocks. Pieces of one loop iteration
are joined, because a write to a client costs as much as a hundred small pieces. Knows nothing of frames."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sockd.base.errors import ResponseTooLarge
from sockd.base.invoke_request import Sink

HELD_BYTES = 256 * 1024
JOINED_BYTES = 64 * 1024
"""Longest piece that smaller ones are joined to."""
FLUSH_S = 1.0
"""How long a client may take for what was read of an answer that then failed."""


class Head(NamedTuple):
    """The beginning of an answer."""

    status: int
    headers: list[tuple[bytes, bytes]]


class BoundedSink(NamedTuple):
    """Who takes an answer, and how much of it."""

    sink: Sink
    max_bytes: int


class Flow(NamedTuple):
    """The two ways to slow a sandbox down, and the one to stop it."""

    pause: Callable[[], None]
    resume: Callable[[], None]
    stop: Callable[[], None]
    """Drop the rest of the answer: its client has gone."""


class Joined(Sink):
    """A sink for callers that want the answer whole."""

    def __init__(self) -> None:
        self._body = bytearray()

    async def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """There is nowhere to put it."""

    async def chunk(self, data: bytes) -> None:
        self._body += data

    def body(self) -> bytes:
        """All of it."""
        return bytes(self._body)


class Stream:
    """One answer: `push` what comes, `end`; `passed_on` waits until it has been taken."""

    is_complete = False
    """Its maker has said that it is whole: what fails from then on does not cut it, and what its reader does ends nothing."""

    was_left = False
    """Its reader went before it was whole."""

    def __init__(self, bounded: BoundedSink, head: Head, flow: Flow) -> None:
        self.sink = bounded.sink
        self._left = bounded.max_bytes
        self._flow: Flow | None = flow
        self._pieces: deque[bytes | bytearray] = deque()
        self._held = 0
        self._ended = False
        self._changed = asyncio.Event()
        self.sink.on_gone = self._stop
        self._task = asyncio.get_running_loop().create_task(self._pass_on(head))

    def push(self, data: bytes) -> None:
        """The next piece. Raises: ResponseTooLarge."""
        self._left -= len(data)
        if self._left < 0:
            raise ResponseTooLarge("Function.ResponseSizeTooLarge", "the streamed answer is over its limit")
        if self._flow is None:
            return
        last = self._pieces[-1] if self._pieces else None
        if last is None or len(last) + len(data) > JOINED_BYTES:
            self._pieces.append(data)
        elif isinstance(last, bytearray):
            last += data
        else:
            self._pieces[-1] = bytearray(last) + data
        self._held += len(data)
        if self._held > HELD_BYTES:
            self._flow.pause()
        self._changed.set()

    def end(self) -> None:
        """There is no more; the sandbox is not this stream's to slow down or stop any more."""
        if self._flow is not None:
            self._flow.resume()
            self._flow = None
        self._ended = True
        self._changed.set()

    async def passed_on(self, *, failed: bool) -> None:
        """Wait until all of it has been taken. Args: failed: it ends in an error: wait for FLUSH_S at most.

        Raises: what the sink raises."""
        self.end()
        try:
            await asyncio.wait((self._task,), timeout=FLUSH_S if failed else None)
        finally:
            self._task.cancel()
        if self._task.done() and not self._task.cancelled():
            self._task.result()

    def cut(self) -> None:
        """Let go of it."""
        self._flow = None
        self._task.cancel()

    async def _pass_on(self, head: Head) -> None:
        try:
            await self.sink.head(head.status, head.headers)
            while True:
                while self._pieces:
                    data = self._pieces.popleft()
                    self._held -= len(data)
                    if self._flow is not None and self._held <= HELD_BYTES // 2:
                        self._flow.resume()
                    await self.sink.chunk(bytes(data))
                if self._ended:
                    return
                self._changed.clear()
                await self._changed.wait()
        except Exception:
            self._stop()
            raise

    def _stop(self) -> None:
        """Drop what comes, because the client does not read any more, and tell the sandbox unless it has sent everything."""
        self._pieces.clear()
        self._task.cancel()
        if self._flow is not None:
            flow, self._flow = self._flow, None
            flow.resume()
            if not self.is_complete:
                self.was_left = True
                flow.stop()
