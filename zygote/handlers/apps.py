"""Web apps as handlers: what is common to both kinds.

Imported for an entry point that may be an app, and for no other.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from sockd_zygote import protocol
from sockd_zygote.handlers.handler import Handler
from sockd_zygote.messages.errors import NotHttp
from sockd_zygote.messages.outlet import Outlet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class App(Handler):
    """A handler whose requests are HTTP's."""

    kind = protocol.APP

    def __init__(self, app: Any) -> None:
        self.app = app

    def call(self, event: bytes, request: bytes, deadline_ns: int, metadata: dict | None = None) -> Exchange:
        """Raises: NotHttp."""
        http = (metadata or {}).get("http")
        if http is None:
            raise NotHttp("the handler is a web app: call it over HTTP, at /run/NAME or its function URL")
        return Exchange(self, Request(http, event))

    def answer(self, request: Request, outlet: Outlet) -> None:
        """One request. Raises: whatever the app raises."""
        raise NotImplementedError


class Exchange:
    """One request that an app is to answer."""

    def __init__(self, app: App, request: Request) -> None:
        self._app = app
        self._request = request

    def pour(self, outlet: Outlet) -> None:
        try:
            self._app.answer(self._request, outlet)
        except Exception:
            if not outlet.gone:  # then it is how the app was stopped
                raise


class Request:
    """An HTTP request as the APIs tell of it."""

    def __init__(self, http: dict, body: bytes) -> None:
        self.method: str = http["method"]
        self.root_path: str = http["root_path"]
        """What is above the app, as in WSGI's SCRIPT_NAME: decoded."""
        self.raw_path: str = http["raw_path"]
        """Below it, undecoded; begins with a slash."""
        self.query: str = http["query"]
        self.headers: list[list[str]] = http["headers"]
        """Names in lower case; Latin-1, which is whatever bytes came."""
        client = http.get("client") or ["", 0]
        self.client: list = client if isinstance(client, list) else [client, 0]
        self.server: list = http.get("server") or ["localhost", 80]
        self.scheme: str = http.get("scheme", "http")
        self.body = body

    def path_bytes(self) -> bytes:
        """The path below the app, decoded."""
        return unquote_to_bytes(self.raw_path.encode("latin-1"))


class PromisedLength:
    """What is missing of the body that an app's Content-Length promises, as the body is given. Without one, nothing is."""

    _missing = 0

    def __init__(self, request: Request) -> None:
        self._is_head = request.method == "HEAD"

    def promise(self, status: int, headers: list[tuple[str, str]]) -> None:
        """By a head that the outlet has taken; a later one replaces it."""
        lengths = {value for name, value in headers if name.lower() == "content-length"}
        length = lengths.pop() if len(lengths) == 1 else ""
        has_body = not self._is_head and status not in protocol.BODILESS
        is_length = length.isdecimal() and len(length) <= protocol.LENGTH_MAX_DIGITS
        self._missing = int(length) if has_body and is_length else 0

    def give(self, size: int) -> None:
        """A part of the body."""
        self._missing -= size

    def check(self) -> None:
        """The app has given all. Raises: RuntimeError: that is too little."""
        if self._missing > 0:
            raise RuntimeError(f"the body that the app gave is {self._missing} bytes shorter than its Content-Length")
