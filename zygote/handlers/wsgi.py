"""WSGI (PEP 3333): a request as an environ, an answer as an iterable of bytes."""

from __future__ import annotations

import io
import sys

from sockd_zygote.handlers.apps import App, PromisedLength, Request
from sockd_zygote.messages.outlet import Outlet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

UNPREFIXED = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}


class Wsgi(App):
    """A WSGI app."""

    def answer(self, request: Request, outlet: Outlet) -> None:
        response = Response(request, outlet)
        pieces = self.app(environ(request), response.start)
        try:
            # Those of a list are all there: one of them need not wait for the next to be made.
            for piece in (joined(pieces),) if type(pieces) in (list, tuple) else pieces:
                if piece:
                    response.write(piece)
            response.end(is_closed_then=hasattr(pieces, "close"))
        finally:
            if hasattr(pieces, "close"):
                pieces.close()


class Response:
    """What an app does with start_response and the `write` that this returns."""

    def __init__(self, request: Request, outlet: Outlet) -> None:
        self._outlet = outlet
        self._length = PromisedLength(request)
        self._started = False

    def start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None, /) -> Callable[[bytes], None]:
        """start_response. Raises: AssertionError, as PEP 3333 says, when it is called again without an error; that error,
        when the head is out already; ValueError: HTTP has no such status or header."""
        if exc_info is not None:
            try:
                if self._outlet.begun:
                    raise exc_info[1].with_traceback(exc_info[2])
            finally:
                exc_info = None  # its frames hold this one
        elif self._started:
            raise AssertionError("start_response was called twice, the second time without exc_info")
        code = status[:3]
        if not (code.isascii() and code.isdigit() and status[3:4] in ("", " ")):
            raise ValueError(f"status {status!r:.80} is not like '200 OK'")
        self._outlet.head(int(code), headers)
        self._length.promise(int(code), headers)
        self._started = True
        return self.write

    def write(self, data: bytes, /) -> None:
        """Send a part of the body at once."""
        self._check()
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(not_bytes(data))
        self._length.give(len(data))
        self._outlet.chunk(data)

    def end(self, *, is_closed_then: bool) -> None:
        """The app has given all. Args: is_closed_then: it has a close() to be called, which may take its time or raise.

        Raises: AssertionError: it has given none; RuntimeError: too little."""
        self._check()
        self._length.check()
        if is_closed_then:
            self._outlet.complete()
        else:
            self._outlet.flush()

    def _check(self) -> None:
        if not self._started:
            raise AssertionError("the app gave a body before it called start_response")


def joined(pieces: list[bytes] | tuple[bytes, ...]) -> bytes:
    """All of a body. Raises: TypeError."""
    try:
        return b"".join(pieces)
    except TypeError:
        wrong = next((piece for piece in pieces if not isinstance(piece, (bytes, bytearray, memoryview))), None)
        raise TypeError(not_bytes(wrong)) from None


def not_bytes(piece: object) -> str:
    """Why a piece of a body is refused."""
    how = ": encode it, as in [text.encode()]" if isinstance(piece, str) else ""
    return f"a WSGI app's body is made of bytes, and this app gave {type(piece).__name__}{how}"


def environ(request: Request) -> dict[str, Any]:
    """PEP 3333's dictionary, complete."""
    known: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": request.root_path,
        "PATH_INFO": request.path_bytes().decode("latin-1"),
        "QUERY_STRING": request.query,
        "CONTENT_TYPE": "",
        "CONTENT_LENGTH": str(len(request.body)) if request.body else "",
        "SERVER_NAME": str(request.server[0]),
        "SERVER_PORT": str(request.server[1]),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": str(request.client[0]),
        "REMOTE_PORT": str(request.client[1]),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": request.scheme,
        "wsgi.input": io.BytesIO(request.body),
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": False,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for name, value in request.headers:
        if "_" in name or name == "proxy":
            continue  # would be taken for another header, or for the variable HTTP_PROXY that HTTP clients obey
        key = UNPREFIXED.get(name) or f"HTTP_{name.upper().replace('-', '_')}"
        if key in known and key.startswith("HTTP_"):
            value = f"{known[key]}{'; ' if name == 'cookie' else ', '}{value}"
        known[key] = value
    return known
