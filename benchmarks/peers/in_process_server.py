"""The peer of `warm`: uvicorn, set up as sockd's front is, answering from a raw ASGI application without any sandbox.

Its answers have the length of sockd's: the request's body, and headers of the same names. Prints its port when it listens.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
HEADERS = [
    (b"content-type", b"application/json"),
    (b"x-sockd-cold", b"0"),
    (b"x-sockd-sandbox", b"sandbox-1"),
    (b"x-amzn-requestid", b"00000000-0000-0000-0000-000000000000"),
    (b"server-timing", b"queue;dur=0.000, setup;dur=0.000, init;dur=0.000, exec;dur=0.000"),
]


async def echo(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Answer with the request's own body."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        if not message.get("more_body"):
            break
    headers = [*HEADERS, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(
        echo, loop="uvloop", http="httptools", access_log=False, log_level="warning", lifespan="off", interface="asgi3"
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
