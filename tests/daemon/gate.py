"""Where functions wait until the test lets them on. Owns a port and the connections of those who wait."""

from __future__ import annotations

import select
import socket

from tests.daemon.running import DEADLINE_S


class Gate:
    """Where functions wait until the test lets them on: a TCP port on loopback that they connect to.

    In a function: `from gate import wait` beside its code (`CODE`), then `wait(event["gate"], "who")`."""

    CODE = (
        "import socket\n"
        "def wait(port, who=''):\n"
        "    with socket.create_connection(('127.0.0.1', port)) as s:\n"
        "        s.sendall(who.encode() + b'\\n')\n"
        "        return s.recv(100).decode()\n"
    )

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self._held: list[socket.socket] = []

    def arrived(self, deadline_s: float = DEADLINE_S) -> str:
        """Wait until one more function stands here; who it said it is. Raises: TimeoutError."""
        self._listener.settimeout(deadline_s)
        connection, _ = self._listener.accept()
        connection.settimeout(deadline_s)
        self._held.append(connection)
        name = b""
        while not name.endswith(b"\n"):
            more = connection.recv(100)
            if not more:
                break
            name += more
        return name.decode().strip()

    def nobody_comes(self) -> bool:
        """True when no function stands in front of the gate unseen, now."""
        return not select.select([self._listener], [], [], 0)[0]

    def gone(self, deadline_s: float = DEADLINE_S) -> bool:
        """True when the function that came first ends its connection, dead or alive, before the deadline."""
        self._held[0].settimeout(deadline_s)
        try:
            return self._held[0].recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def open(self, word: str = "go", *, most: int | None = None) -> None:
        """Let everyone on who has arrived, or so many of them, those first who came first."""
        count = len(self._held) if most is None else most
        going, self._held = self._held[:count], self._held[count:]
        for connection in going:
            with connection:
                try:
                    connection.sendall(word.encode())
                except (BrokenPipeError, ConnectionResetError):
                    continue

    def close(self) -> None:
        self.open()
        self._listener.close()


WAITS = {"f.py": "from gate import wait\ndef f(event): return wait(event)", "gate.py": Gate.CODE}
"""A function that waits there; its event is the port."""
