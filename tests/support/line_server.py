"""A service that speaks neither HTTP nor gRPC: a TCP server with a few fixed questions.

GET key\\n       value\\n                     a line
FRAME key\\n     u32 big endian, value       a length and so many bytes
RAW n\\n         n bytes                     as many as both know
BYE\\n           bye, and the end            everything up to the end
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self


def raw(count: int) -> bytes:
    """What RAW answers."""
    return (bytes(range(256)) * (count // 256 + 1))[:count]


class LineServer(socketserver.ThreadingTCPServer):
    """The service, in this process. A context manager; `url` is tcp://host:port."""

    daemon_threads = False
    allow_reuse_address = True

    def __init__(self, values: Mapping[str, bytes], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.values = dict(values)
        self.connections = 0
        """How many were made."""
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self._thread.join()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        self.connections += 1
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        self._open.discard(request)
        super().shutdown_request(request)


class _Handler(socketserver.StreamRequestHandler):
    server: LineServer

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            while line := self.rfile.readline(1024):
                word, _, rest = line.decode().strip().partition(" ")
                if word == "BYE":
                    self.wfile.write(b"bye")
                    return
                self.wfile.write(self._answer(word, rest))

    def _answer(self, word: str, rest: str) -> bytes:
        if word == "RAW":
            return raw(int(rest))
        value = self.server.values.get(rest, b"")
        return struct.pack(">I", len(value)) + value if word == "FRAME" else value + b"\n"
