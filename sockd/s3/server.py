"""The listener: takes connections and gives each a thread.

Threads, because a body is one system call that runs for milliseconds without the interpreter's lock: eight clients at once
get all that the machine has, and one gets its first byte without a trip through an event loop.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from sockd.s3.connection import Connection, House

BACKLOG = 1024
MAX_CONNECTIONS = 512
"""More wait in the listener's queue."""


class Server:
    """Owns the listener and the threads. `serve` takes connections until `stop` is called, from another thread or a signal.

    Args:
        address: host and port; port 0 takes a free one."""

    def __init__(self, house: House, address: tuple[str, int]) -> None:
        self._house = house
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family, backlog=BACKLOG)
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def serve(self) -> None:
        """Until `stop`. Raises OSError when the listener fails otherwise."""
        number = 0
        while not self._house.stopping.is_set():
            self._places.acquire()
            try:
                client, _ = self._listener.accept()
            except OSError:
                self._places.release()
                if self._house.stopping.is_set():
                    return
                raise
            number += 1
            with self._lock:
                self._open.add(client)
            threading.Thread(target=self._serve_client, args=(client, number), daemon=True).start()

    def stop(self) -> None:
        """Take no more connections and cut those that there are."""
        self._house.stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()
        with self._lock:
            for client in self._open:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

    def _serve_client(self, client: socket.socket, number: int) -> None:
        try:
            Connection(self._house, client, number).serve()
        finally:
            with self._lock:
                self._open.discard(client)
            client.close()
            self._places.release()
