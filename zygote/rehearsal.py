"""A first request, played through by a spare before there is one: the pages that it copies are not copied again.

Runs the very code of a real INIT and INVOKE on a function of our own and a socketpair. What it leaves behind is what the
real ones set anyway.
"""

from __future__ import annotations

import json
import marshal
import socket
import sys

from zygote import entry, handler_server, protocol
from zygote.import_timer import ImportTimer

SOURCE = "import json\n\ndef handler(event, context):\n    return {'event': event, 'id': context.aws_request_id}\n"
BYTECODE = entry.UNCHECKED + bytes(8) + marshal.dumps(compile(SOURCE, "/var/task/rehearsal.py", "exec"))
INIT = json.dumps(
    {
        "name": "rehearsal",
        "version": "0",
        "handler": "rehearsal:handler",
        "entry_file": "",
        "code": "/var/task",
        "paths": [],
        "pth": [],
        "storage": "own",
        "env": {"AWS_LAMBDA_FUNCTION_NAME": "rehearsal", "_HANDLER": "rehearsal:handler"},
        "memory_mb": 128,
        "open_files": 1 << 30,  # as many as there may be: lowering could not be taken back
        "max_answer_bytes": 1 << 20,
    }
).encode()
INVOKE = protocol.encode_frame(
    protocol.INVOKE, 1, protocol.INVOCATION.pack(bytes(16), 10**9), b'{"a": [1, 2.5, true, null], "b": "text"}'
)


def rehearse() -> None:
    """Become the function, answer one request, forget it."""
    near, far = socket.socketpair()
    with far:
        far.sendall(INVOKE)
        far.shutdown(socket.SHUT_WR)
        channel = handler_server.Channel(near.detach())
        timer = ImportTimer()
        timer.start()
        entry.execute("rehearsal", "/var/task", "rehearsal.py", BYTECODE)
        handler = handler_server.initialize(channel, 0, json.loads(INIT))
        if handler is not None:
            handler_server.answer_requests(channel, handler, 1 << 20, timer)
        channel.close()
        timer.stop()
    sys.modules.pop("rehearsal", None)
