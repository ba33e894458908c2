"""A server in a thread of this process that is gone, connections and all, when its context ends."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from types import TracebackType
from typing import Any, Self


class ClosingServer(socketserver.ThreadingTCPServer):
    """Serves loopback from `__enter__` to `__exit__`."""

    daemon_threads = False  # so that server_close joins them
    allow_reuse_address = True

    def __init__(self, handler: Any, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

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

    def process_request(self, request: Any, client_address: Any) -> None:
        request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)
