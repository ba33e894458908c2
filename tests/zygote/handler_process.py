"""A handler server alone in an ordinary process, and the daemon's half of its channel."""

from __future__ import annotations

import array
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from sockd.isolation.sandbox.frame_decoder import FrameDecoder
from sockd_zygote import fork_server, protocol
from sockd_zygote.protocol import CODE, INIT, INVOCATION, INVOKE, MODULES, RESULT, TIMES

REPOSITORY = Path(__file__).parents[2]
MAX_ANSWER_BYTES = 1000

PROGRAM = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from sockd_zygote import __main__, _native, fork_server
from sockd_zygote.handlers import import_hooks
import_hooks.watch_imports()
fork_server.CHANNEL_FD = int(sys.argv[1])
_native.serve = lambda control: int(sys.argv[2])
__main__.run()
"""


class Server:
    """A handler server in a process of its own, and the daemon's half of its channel."""

    def __init__(self, code: Path, *, warm: bool) -> None:
        self.code = code
        self.warm = warm
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(10)
        with theirs:
            role = fork_server.SPARE if warm else fork_server.SANDBOX
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", PROGRAM, str(theirs.fileno()), str(role)],
                pass_fds=[theirs.fileno()],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        self._decoder = FrameDecoder(dict.fromkeys(protocol.FRAME_NAMES, 1 << 24))

    def send(self, kind: int, number: int, *parts: bytes) -> None:
        self._ours.sendall(protocol.encode_frame(kind, number, *parts))

    def send_raw(self, data: bytes) -> None:
        self._ours.sendall(data)

    def send_with(self, fds: list[int], kind: int, number: int, *parts: bytes) -> None:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        self._ours.sendmsg([protocol.encode_frame(kind, number, *parts)], [rights])

    def init(self, source: str, *fds: int, mounted: bool = True, **changes: Any) -> None:
        """Args: mounted: say so to a spare, which waits for that."""
        (self.code / "f.py").write_text(source)
        function = {
            "name": "f",
            "version": "1",
            "memory_mb": 1,
            "handler": "f:handler",
            "entry_file": "",
            "open_files": 100,
            "code": str(self.code),
            "env": {"OWN": "1"},
            "paths": [],
            "pth": [],
            "storage": "own",
            "max_answer_bytes": MAX_ANSWER_BYTES,
            **changes,
        }
        body = protocol.encode_init(function)
        if fds:
            self.send_with(list(fds), INIT, 3, body)
        else:
            self.send(INIT, 3, body)
        if self.warm and mounted:
            self.send(CODE, 0)

    def invoke(self, number: int, event: object = None) -> None:
        self.send(INVOKE, number, INVOCATION.pack(bytes(range(16)), 10**9, 0), json.dumps(event).encode())

    def receive(self) -> tuple[int, int, bytes] | None:
        """The next frame; None when the server has closed the channel."""
        while (frame := self._decoder.next_frame()) is None:
            data = self._ours.recv(1 << 16)
            if not data:
                return None
            self._decoder.feed(data)
        return frame

    def expect(self, kind: int, number: int) -> bytes:
        frame = self.receive()
        assert frame is not None and frame[:2] == (kind, number), frame
        return frame[2]

    def answer(self, number: int, kind: int = RESULT) -> Any:
        """The JSON of the next frame, after its times; the first answer has MODULES before it."""
        frame = self.receive()
        if frame is not None and frame[0] == MODULES:
            frame = self.receive()
        assert frame is not None and frame[:2] == (kind, number), frame
        body = frame[2]
        started, ended = TIMES.unpack_from(body)
        assert 0 < started <= ended
        return json.loads(body[TIMES.size :])

    def hang_up(self) -> None:
        self._ours.close()

    def end(self) -> tuple[int, bytes]:
        """Close the channel; the exit status and what was printed."""
        self.hang_up()
        out, _ = self.process.communicate(timeout=10)
        return self.process.returncode, out

    def close(self) -> None:
        self._ours.close()
        self.process.kill()
        self.process.communicate()


ECHO = "def handler(event): return event\n"
