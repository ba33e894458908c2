"""A TCP port that passes everything on late: a database or another server behind a long way.

Owns its port, its connections and a thread for each direction of them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

READ_BYTES = 1 << 16


class SlowRelay:
    """Between clients of its port and the server that `connect` reaches."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self.delay_s = 0.0
        """How much later each piece of a stream arrives."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._closed = threading.Event()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the end
            while True:
                client, _ = self._listener.accept()
                pair = client, self._connect()
                self._open += pair
                for one, other in (pair, pair[::-1]):
                    self._threads.append(threading.Thread(target=self._pass_on, args=(one, other)))
                    self._threads[-1].start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # either end is gone, or all
            while data := source.recv(READ_BYTES):
                self._closed.wait(self.delay_s)
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connections and the threads."""
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for sock in self._open:
            sock.close()


@contextlib.contextmanager
def slow_relay(connect: Callable[[], socket.socket]) -> Iterator[SlowRelay]:
    """A relay for the length of a block."""
    relay = SlowRelay(connect)
    try:
        yield relay
    finally:
        relay.close()
