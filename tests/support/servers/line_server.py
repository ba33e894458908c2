"""A service that speaks neither HTTP nor gRPC: a TCP server with a few fixed questions.

GET key\\n       value\\n                     a line
FRAME key\\n     u32 big endian, value       a length and so many bytes
RAW n\\n         n bytes                     as many as both know
BYE\\n           bye, and the end            everything up to the end
"""

from __future__ import annotations

import contextlib
import socketserver
import struct
from collections.abc import Mapping
from typing import Any

from tests.support.servers.closing_server import ClosingServer


def raw(count: int) -> bytes:
    """What RAW answers."""
    return (bytes(range(256)) * (count // 256 + 1))[:count]


class LineServer(ClosingServer):
    """The service, in this process. A context manager; `url` is tcp://host:port."""

    def __init__(self, values: Mapping[str, bytes], port: int = 0) -> None:
        super().__init__(_Handler, port)
        self.values = dict(values)
        self.connections = 0
        """How many were made."""

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)


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
