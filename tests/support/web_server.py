"""A server of HTTP in this process: one answer to each request, and the lines of those that came."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator

BODY = b'{"name": "value"}'
HEADERS = {"Content-Type": "application/json", "ETag": '"one"', "X-Own": "a"}


class Web(http.server.ThreadingHTTPServer):
    """A server that keeps the lines of its requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.lines: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Requests(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Web)
        self.server.lines.append(self.requestline)
        self.send_response(200)
        for name, value in {**HEADERS, "Content-Length": str(len(BODY))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(BODY)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@contextlib.contextmanager
def web_server() -> Iterator[Web]:
    """One that serves until the end of the block."""
    with Web() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
