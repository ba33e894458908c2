"""A first request, played through before there is one.

In the root Zygote, again and again: the interpreter learns the way (it specializes bytecode and caches attribute lookups,
writing into pages that each child would otherwise copy for that). In a spare, once: it copies the pages that the real
first request would have to. Runs the very code of a real INIT and INVOKE on a function of our own and a socketpair, and
leaves nothing behind.
"""

from __future__ import annotations

import os
import socket
import sys

from sockd_zygote import protocol
from sockd_zygote.handlers import entry_module, handler_server

REPETITIONS = 40
"""Enough for every instruction that will be specialized (3.13 counts longest); the rest makes no difference."""

SOURCE = "import json\n\ndef handler(event, context):\n    return {'event': event, 'id': context.aws_request_id}\n"
NAME = "sockd_rehearsal"
PREPARED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rehearsed")
"""Has the function, where our packages were prepared for another interpreter."""
BYTECODE = entry_module.bytecode(SOURCE, f"{NAME}.py")
FUNCTION = {
    "name": NAME,
    "version": "0",
    "handler": f"{NAME}:handler",
    "entry_file": f"{NAME}.py",
    "paths": ["/packages/none"],  # where there are packages, imports are timed
    "pth": [],
    "storage": "own",
    "env": {},
    "memory_mb": 128,
    "open_files": 1 << 30,  # as many as there may be: lowering could not be taken back
    "max_answer_bytes": 1 << 20,
    "rehearsal": True,  # the root logger is the real function's to configure
}
INVOCATION = protocol.INVOCATION.pack(bytes(16), 10**9, 0) + b'{"a": [1, 2.5, true, null], "b": "text"}'


def rehearse_in(directory: str, times: int) -> None:
    """As `rehearse`, for a process that may write nowhere. Args: directory: has the function with its bytecode."""
    for _ in range(times):
        play(directory)


def rehearse(times: int = 1) -> None:
    """Become the function, answer one request, forget it; so many times."""
    directory = f"/tmp/{NAME}-{os.getpid()}"
    cached = entry_module.cached_path(directory, NAME)
    os.mkdir(directory)
    os.mkdir(os.path.dirname(cached))
    try:
        with open(cached, "wb") as file:
            file.write(BYTECODE)
        for _ in range(times):
            play(directory)
    finally:
        os.unlink(cached)
        os.rmdir(os.path.dirname(cached))
        os.rmdir(directory)


def play(directory: str) -> None:
    """One life of a sandbox."""
    path = sys.path[:]
    near, far = socket.socketpair()
    with near, far:
        far.sendall(protocol.encode_frame(protocol.INIT, 0, protocol.encode_init({**FUNCTION, "code": directory})))
        far.sendall(protocol.encode_frame(protocol.INVOKE, 1, INVOCATION))
        far.shutdown(socket.SHUT_WR)
        handler_server.run(near.fileno())
    sys.modules.pop(NAME, None)
    entry_module.blanks.append(entry_module.blank())
    sys.path[:] = path
    os.chdir("/")
