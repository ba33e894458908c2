"""The loop of a handler sandbox, alone in an ordinary process: we are the daemon at the other end of the channel."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zygote import protocol
from zygote.protocol import FAILED, INIT, INVOCATION, INVOKE, MODULES, PRIMED, READY, RESULT, TIMES

REPOSITORY = Path(__file__).parents[2]
MAX_ANSWER_BYTES = 1000

PROGRAM = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from zygote import __main__, confinement, fork_server
confinement.CHANNEL_FD = int(sys.argv[1])
__main__.run_sandbox(fork_server.Child("sandbox", int(sys.argv[1]), sys.argv[2] == "warm"))
"""


class Server:
    """A handler server in a process of its own, and the daemon's half of its channel."""

    def __init__(self, code: Path, *, warm: bool) -> None:
        self.code = code
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(10)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", PROGRAM, str(theirs.fileno()), "warm" if warm else "cold"],
                pass_fds=[theirs.fileno()],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        self._decoder = protocol.FrameDecoder(1 << 24)

    def send(self, kind: int, number: int, *parts: bytes) -> None:
        self._ours.sendall(protocol.encode_frame(kind, number, *parts))

    def send_raw(self, data: bytes) -> None:
        self._ours.sendall(data)

    def init(self, source: str, **changes: Any) -> None:
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
            "max_answer_bytes": MAX_ANSWER_BYTES,
            **changes,
        }
        self.send(INIT, 3, json.dumps(function).encode())

    def invoke(self, number: int, event: object = None) -> None:
        self.send(INVOKE, number, INVOCATION.pack(bytes(range(16)), 10**9), json.dumps(event).encode())

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


@pytest.fixture(params=["cold", "warm"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(tmp_path, warm=request.param == "warm")
    try:
        if request.param == "warm":
            assert server.receive() == (PRIMED, 0, b"")
        yield server
    finally:
        server.close()


ECHO = "def handler(event): return event\n"


def test_requests_are_answered_in_order(server: Server) -> None:
    server.init(ECHO)
    for number in (10, 11, 12):
        server.invoke(number, {"n": number})
    assert len(server.expect(READY, 3)) == TIMES.size
    assert json.loads(server.expect(MODULES, 10)) == []
    assert server.answer(10) == {"n": 10}
    assert [server.answer(11), server.answer(12)] == [{"n": 11}, {"n": 12}]
    assert server.end() == (0, b"")


def test_it_ends_in_peace_when_nobody_wants_it(server: Server) -> None:
    assert server.end() == (0, b"")


@pytest.mark.parametrize("cut", [1, 15, 16, 20])
def test_it_ends_in_peace_when_the_daemon_dies_in_the_middle_of_a_frame(server: Server, cut: int) -> None:
    server.send_raw(protocol.encode_frame(INIT, 1, b"{} and more")[:cut])
    assert server.end() == (0, b"")


@pytest.mark.parametrize("frame", [(INVOKE, 1, b""), (READY, 1, b""), (RESULT, 1, b"")])
def test_anything_before_init_is_an_error(server: Server, frame: tuple[int, int, bytes]) -> None:
    server.send(*frame)
    assert server.receive() is None
    assert server.end()[0] == 1


def test_anything_but_invoke_after_init_is_an_error(server: Server) -> None:
    server.init(ECHO)
    server.expect(READY, 3)
    server.init(ECHO)
    assert server.receive() is None
    assert server.end()[0] == 1


def test_garbage_is_an_error(server: Server) -> None:
    server.send_raw(b"\xff" * 16)
    assert server.receive() is None
    assert server.end()[0] == 1


def test_a_large_request_comes_in_pieces(server: Server) -> None:
    server.init("def handler(event): return len(event)\n")
    server.expect(READY, 3)
    server.invoke(1, "x" * 5_000_000)
    assert server.answer(1) == 5_000_000


def test_the_function_sees_its_environment_its_code_and_its_directory(server: Server) -> None:
    server.init("import os, sys\ndef handler(event): return os.environ['OWN'], os.getcwd(), sys.path[0]\n")
    server.invoke(1)
    server.expect(READY, 3)
    assert server.answer(1) == ["1", str(server.code), str(server.code)]


def test_the_request_id_is_the_uuid_of_the_request(server: Server) -> None:
    server.init("def handler(event, context): return context.aws_request_id\n")
    server.invoke(1)
    server.expect(READY, 3)
    assert server.answer(1) == "00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_an_init_that_raises_is_told_and_ends_it(server: Server) -> None:
    server.init("raise LookupError('at import')\n")
    server.invoke(1)
    failed = server.answer(3, FAILED)
    assert (failed["errorType"], failed["errorMessage"]) == ("LookupError", "at import")
    assert "f.py" in failed["stackTrace"][-1]
    assert server.end()[0] == 1


@pytest.mark.parametrize(("code", "status"), [("0", 0), ("3", 3), ("'text'", 1), ("None", 0), ("256 + 5", 5)])
def test_sys_exit_is_its_exit_status(server: Server, code: str, status: int) -> None:
    server.init(f"import sys\ndef handler(event):\n    print('bye')\n    sys.exit({code})\n")
    server.invoke(1)
    server.expect(READY, 3)
    assert server.receive() is None
    assert server.end() == (status, b"bye\n")


def test_exit_handlers_of_the_zygotes_packages_do_not_run(server: Server) -> None:
    server.init("import atexit, sys\natexit.register(print, 'never')\ndef handler(event): sys.exit(0)\n")
    server.invoke(1)
    server.expect(READY, 3)
    assert server.receive() is None
    assert server.end() == (0, b"")


def test_an_answer_over_the_limit_is_an_error(server: Server) -> None:
    server.init("def handler(event): return 'x' * event\n")
    server.expect(READY, 3)
    server.invoke(1, MAX_ANSWER_BYTES - 2)
    server.expect(MODULES, 1)
    assert len(server.answer(1)) == MAX_ANSWER_BYTES - 2
    server.invoke(2, MAX_ANSWER_BYTES - 1)
    failed = server.answer(2, FAILED)
    assert failed["errorType"] == "Function.ResponseSizeTooLarge"
    assert "maximum allowed payload size (1000 bytes)" in failed["errorMessage"]


def test_what_was_printed_is_out_before_the_answer(server: Server) -> None:
    server.init("import sys\ndef handler(event):\n    sys.stdout.write('no newline')\n")
    server.invoke(1)
    server.expect(READY, 3)
    server.answer(1)
    assert server.process.stdout is not None
    assert server.process.stdout.read1(100) == b"no newline"  # type: ignore[attr-defined]


def test_pth_files_and_paths_come_after_the_code(server: Server, tmp_path: Path) -> None:
    site, linked = tmp_path / "site", tmp_path / "linked"
    site.mkdir()
    linked.mkdir()
    (site / "some.pth").write_text(f"{linked}\nimport sys; sys.from_pth = 1\n")
    (linked / "there.py").write_text("x = 5\n")
    source = "import sys, there\ndef handler(event): return there.x, sys.from_pth, sys.path[:2]\n"
    server.init(source, paths=[str(site)], pth=[str(site)])
    server.invoke(1)
    server.expect(READY, 3)
    assert server.answer(1) == [5, 1, [str(tmp_path), str(site)]]


@pytest.mark.parametrize(
    "oddity",
    [
        "del sys.modules['late']",
        "sys.modules['late'] = None",
        "sys.modules['late'] = type('Proxy', (), {'__getattr__': lambda self, name: 1 / 0})()",
        "late.__spec__ = 5",
        "sys.modules[5] = 5",
    ],
)
def test_odd_modules_do_not_end_it(server: Server, oddity: str) -> None:
    (server.code / "late.py").write_text("")
    source = f"import sys\ndef handler(event):\n    if event == 'two': return event\n    import late\n    {oddity}\n"
    server.init(source + "    return event\n")
    server.invoke(1, "one")
    server.expect(READY, 3)
    server.expect(MODULES, 1)
    assert server.answer(1) == "one"
    server.invoke(2, "two")
    assert server.answer(2) == "two"
