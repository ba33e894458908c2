"""A debugger as editors have one, as small as can be: the Debug Adapter Protocol over a socket.

Owns the connection. https://microsoft.github.io/debug-adapter-protocol/
"""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Callable
from typing import Any

DEADLINE_S = 30.0


class Debugger:
    """Attached to a port of loopback."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        self._file = self._socket.makefile("rwb")
        self._numbers = itertools.count(1)

    def initialize(self, local: str, remote: str) -> None:
        """Attach, with the code here and there; breakpoints are next, then `ask("configurationDone")`."""
        self.ask("initialize", adapterID="python", pathFormat="path", linesStartAt1=True, columnsStartAt1=True)
        self.send("attach", pathMappings=[{"localRoot": local, "remoteRoot": remote}], justMyCode=True)
        self.event("initialized")

    def send(self, command: str, **arguments: Any) -> int:
        """A request; its number."""
        number = next(self._numbers)
        request = {"seq": number, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(request).encode()
        self._file.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._file.flush()
        return number

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """A request and the body of its response."""
        number = self.send(command, **arguments)
        response = self._until(lambda message: message.get("request_seq") == number)
        assert response["success"], response
        body: dict[str, Any] = response.get("body", {})
        return body

    def event(self, name: str) -> dict[str, Any]:
        """Wait for an event; its body. Others are dropped."""
        body: dict[str, Any] = self._until(lambda message: message.get("event") == name).get("body", {})
        return body

    def read(self) -> dict[str, Any] | None:
        """The next message; None: the connection has ended, perhaps in the middle of one."""
        length = 0
        while line := self._file.readline().strip():
            length = int(line.partition(b":")[2])
        text = self._file.read(length)
        message: dict[str, Any] | None = json.loads(text) if text and len(text) == length else None
        return message

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def _until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while (message := self.read()) is not None:
            if wanted(message):
                return message
        raise EOFError("the debugger's connection has ended")
