"""The listener: takes connections and gives each a thread.

Threads, because sending a body is a system call that runs for milliseconds without the interpreter's lock: eight clients at once
get all that the machine has, and one gets its first byte without a trip through an event loop.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time

from benchmarks.s3.connection import Connection, ServerContext

BACKLOG = 1024
MAX_CONNECTIONS = 512
"""More wait in the listener's queue."""
STOP_DEADLINE_S = 2.0
"""For threads that are in the middle of something when the server ends."""


class Server:
    """Owns the listener and the threads. `serve` takes connections until `stop` is called, from another thread or a signal.

    Args:
        address: host and port; port 0 takes a free one."""

    def __init__(self, context: ServerContext, address: tuple[str, int]) -> None:
        self._context = context
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family, backlog=BACKLOG)
        self._places = threading.Semaphore(MAX_CONNECTIONS)
        self._open: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def serve(self) -> None:
        """Until `stop`; then cut the connections, and let their threads write what became of them. Raises OSError."""
        try:
            for number in itertools.count(1):
                self._places.acquire()
                if self._context.stopping.is_set():
                    return
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve_client, args=(client, number), daemon=True)
                with self._lock:
                    self._open[client] = thread
                thread.start()
        except OSError:
            if not self._context.stopping.is_set():
                raise
        finally:
            self._listener.close()
            self._cut()

    def stop(self) -> None:
        """Make `serve` return. Takes no lock that it may have: a signal's handler calls this in its thread."""
        self._context.stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._places.release()

    def _cut(self) -> None:
        with self._lock:
            clients = dict(self._open)
            for client in clients:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
        deadline_s = time.monotonic() + STOP_DEADLINE_S
        for thread in clients.values():
            thread.join(max(deadline_s - time.monotonic(), 0))

    def _serve_client(self, client: socket.socket, number: int) -> None:
        try:
            Connection(self._context, client, number).serve()
        finally:
            with self._lock:
                self._open.pop(client, None)
                client.close()
            self._places.release()
