"""The least HTTP that a server in a benchmark speaks: GET, one request a connection."""

import os
import socket
from collections.abc import Callable


def serve(answer: Callable[[str], bytes]) -> None:
    """Answer for ever. Args: answer: of a path."""
    with socket.create_server(("127.0.0.1", int(os.environ["PORT"])), backlog=64) as listener:
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                words = lines.readline().split()
                while lines.readline().strip():
                    pass
                if len(words) == 3:
                    body = answer(words[1].decode())
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
