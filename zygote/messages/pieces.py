"""What a handler's iterator yields, as an answer: each piece is sent when it is made.

    bytes                as they are                              application/octet-stream
    str                  in UTF-8                                 text/plain
    anything else        as JSON, with a line's end               application/x-ndjson

The first piece decides the type, unless it is {"statusCode": ..., "headers": {...}, "cookies": [...]}, AWS's way to say
status and headers of an answer that streams: then that is the head and no piece of the body.
"""

from __future__ import annotations

from sockd_zygote.messages.event_json import encode_answer
from sockd_zygote.messages.outlet import ClientGone, Outlet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HEAD_KEYS = frozenset({"statusCode", "headers", "cookies"})


class Pieces:
    """An iterator, or an async one, that a handler has returned."""

    def __init__(self, pieces: Any, run: Callable[[Any], Any] | None) -> None:
        """Args: run: runs a coroutine; only for async ones."""
        self._pieces = pieces
        self._run = run
        self._begun = False

    def pour(self, outlet: Outlet) -> None:
        """Send all of them, or those until the client goes; then the generator is closed. Raises: whatever it raises."""
        if hasattr(type(self._pieces), "__anext__"):
            assert self._run is not None
            self._run(self._pour_async(outlet))
        else:
            self._pour(outlet)

    def _pour(self, outlet: Outlet) -> None:
        try:
            for piece in self._pieces:
                self._send(outlet, piece)
            self._end(outlet)
        except ClientGone:
            if not outlet.gone:  # it is the function's own
                raise
        finally:
            if hasattr(self._pieces, "close"):
                self._pieces.close()

    async def _pour_async(self, outlet: Outlet) -> None:
        import asyncio

        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        assert task is not None

        def look() -> None:
            outlet.look()
            if outlet.gone:
                loop.remove_reader(outlet.channel)
                task.cancel()  # it may be waiting for something that never comes

        loop.add_reader(outlet.channel, look)
        try:
            async for piece in self._pieces:
                self._send(outlet, piece)
            self._end(outlet)
        except (ClientGone, asyncio.CancelledError):
            if not outlet.gone:
                raise
        finally:
            loop.remove_reader(outlet.channel)
            if hasattr(self._pieces, "aclose"):
                await self._pieces.aclose()

    def _send(self, outlet: Outlet, piece: Any) -> None:
        if not self._begun:
            self._begun = True
            if type(piece) is dict and "statusCode" in piece and piece.keys() <= HEAD_KEYS:
                outlet.head(*read_head(piece))
                outlet.flush()
                return
            outlet.head(200, [("content-type", content_type(piece))])
        outlet.chunk(as_bytes(piece))

    def _end(self, outlet: Outlet) -> None:
        if not self._begun:
            outlet.head(200, [("content-type", content_type(b""))])
        outlet.flush()


def read_head(piece: dict) -> tuple[object, list[tuple[str, object]]]:
    """Status and headers; a header's value may be a list of them."""
    headers: list[tuple[str, object]] = []
    for name, value in dict(piece.get("headers") or {}).items():
        headers += [(str(name), each if isinstance(each, str) else str(each)) for each in as_list(value)]
    headers += [("set-cookie", str(cookie)) for cookie in piece.get("cookies") or ()]
    return piece["statusCode"], headers


def as_list(value: Any) -> list:
    return value if isinstance(value, list) else [value]


def content_type(piece: object) -> str:
    """What a first piece says of the whole."""
    if isinstance(piece, (bytes, bytearray, memoryview)):
        return "application/octet-stream"
    return "text/plain; charset=utf-8" if isinstance(piece, str) else "application/x-ndjson"


def as_bytes(piece: Any) -> bytes:
    """One piece as it goes out. Raises: MarshalError, UnicodeEncodeError."""
    if isinstance(piece, (bytes, bytearray, memoryview)):
        return bytes(piece)
    return piece.encode() if isinstance(piece, str) else encode_answer(piece) + b"\n"
