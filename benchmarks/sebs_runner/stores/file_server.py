"""What 120 downloads: a file of the size that its URL stands for, on loopback instead of on somebody's web server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random

from benchmarks.sebs_runner.made_inputs.jpeg import jpeg

SIZES = {"test": 230_000, "small": 6_700_000, "large": 98_000_000}
"""As the bench's `input.py` says of its URLs."""


@dataclass(frozen=True, slots=True)
class ServedFile:
    """The file and where it is."""

    url: str
    data: bytes


@contextlib.contextmanager
def serving(size: str, name: str) -> Iterator[ServedFile]:
    """A file under this name, while the context lasts; its bytes are the same every time."""
    count = SIZES[size]
    data = jpeg(800, 1200, count, seed=120) if size == "test" else Random(120).randbytes(count)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == f"/{name}" else 404)
            body = data if self.path == f"/{name}" else b""
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield ServedFile(f"http://127.0.0.1:{server.server_port}/{name}", data)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
