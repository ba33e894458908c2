"""The handler of `warm` as a user would write it without sockd: FastAPI on uvicorn.

    python -m benchmarks.peers.fastapi_server WORKERS

Prints its port when it is about to listen.
"""

from __future__ import annotations

import socket
import sys
from typing import Annotated, Any

import uvicorn
from fastapi import Body, FastAPI

app = FastAPI()


@app.post("/run/{name}")
async def run(name: str, event: Annotated[Any, Body()]) -> Any:
    """Answer with the request's own body."""
    return event


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.set_inheritable(True)
    # uvicorn takes a descriptor for a Unix socket's, so it would not set this: each answer would wait 40 ms for an ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(listener.getsockname()[1], flush=True)
    uvicorn.run(
        "benchmarks.peers.fastapi_server:app",
        fd=listener.fileno(),
        workers=int(sys.argv[1]),
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
