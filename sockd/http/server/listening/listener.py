"""A listening socket: of those who knock, one is let in in each turn, and heard at once.

Owns the socket. Knows nothing of connections.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from sockd.http.server.listening.accept_queue import PLACE
from sockd.http.server.listening.turns import Turns

BACKLOG = 2048
NO_ROOM_S = 0.1
"""Until it accepts again, when there was no descriptor for one more."""

_log = logging.getLogger("sockd.http")


class Listener:
    """Listens from the start; `close` it."""

    def __init__(
        self, sock: socket.socket, turns: Turns, let_in: Callable[[socket.socket], int], make_room: Callable[[], None]
    ) -> None:
        """Args:
        sock: bound.
        let_in: takes a socket that does not block; returns how many units of a turn that was.
        make_room: ends what can be spared, as there is no descriptor left."""
        self._sock = sock
        self._turns = turns
        self._let_in = let_in
        self._make_room = make_room
        self._loop = asyncio.get_running_loop()
        self._waits = self._is_closed = False
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._look()

    def place(self) -> int:
        """That of those who have asked for nothing."""
        return PLACE

    def go_on(self) -> int:
        """Let the next one in, if there is one; returns how many units of a turn that was."""
        self._waits = False
        if self._is_closed:
            return 0
        try:
            client, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return 0
        except OSError as error:
            self._wait_for_room(error)
            return 1
        client.setblocking(False)
        units = self._let_in(client)
        self._knocked()  # mostly there is another, and a turn is a crowd's if connections wait
        return units

    def close(self) -> None:
        """Accept no connection any more."""
        self._is_closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()

    def _look(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._sock.fileno(), self._knocked)

    def _knocked(self) -> None:
        if not self._waits:
            self._waits = True
            self._turns.wait(self)

    def _wait_for_room(self, error: OSError) -> None:
        _log.error("no connection can be accepted: %s", error)
        self._loop.remove_reader(self._sock.fileno())
        self._make_room()
        self._loop.call_later(NO_ROOM_S, self._look)
