"""The loop of a handler sandbox, alone in an ordinary process: we are the daemon at the other end of the channel."""

from __future__ import annotations

import array
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zygote import fork_server, protocol
from zygote.protocol import (
    CHUNK,
    FAILED,
    GONE,
    HEAD,
    INIT,
    INVOCATION,
    INVOKE,
    MODULES,
    PRIMED,
    READY,
    RESULT,
    TIMES,
)

REPOSITORY = Path(__file__).parents[2]
MAX_ANSWER_BYTES = 1000

PROGRAM = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from zygote import __main__, _native, fork_server
fork_server.CHANNEL_FD = int(sys.argv[1])
_native.serve = lambda control: int(sys.argv[2])
__main__.run()
"""


class Server:
    """A handler server in a process of its own, and the daemon's half of its channel."""

    def __init__(self, code: Path, *, warm: bool) -> None:
        self.code = code
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
        self._decoder = protocol.FrameDecoder(1 << 24)

    def send(self, kind: int, number: int, *parts: bytes) -> None:
        self._ours.sendall(protocol.encode_frame(kind, number, *parts))

    def send_raw(self, data: bytes) -> None:
        self._ours.sendall(data)

    def send_with(self, fds: list[int], kind: int, number: int, *parts: bytes) -> None:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        self._ours.sendmsg([protocol.encode_frame(kind, number, *parts)], [rights])

    def init(self, source: str, *fds: int, **changes: Any) -> None:
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


LINKED = """
import fcntl, os, sys
fd = int(os.environ["SOCKD_INITSCRIPT_FD"])
closes_on_exec = fcntl.fcntl(fd, fcntl.F_GETFD)
def handler(event):
    os.write(fd, event.encode())
    return closes_on_exec
"""
VARIABLE = "import os\ndef handler(event): return os.environ.get('SOCKD_INITSCRIPT_FD')\n"


@pytest.fixture
def link() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a link: the engine's, and what is passed on."""
    engine, app = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    engine.settimeout(10)
    with engine, app:
        yield engine, app


def test_a_function_finds_its_link_and_keeps_it_for_one_request(
    server: Server, link: tuple[socket.socket, socket.socket]
) -> None:
    engine, app = link
    server.init(LINKED, app.fileno())
    app.close()
    server.expect(READY, 3)
    server.invoke(1, "hello")
    assert server.answer(1) == 1
    assert engine.recv(100) == b"hello"
    assert engine.recv(100) == b""  # closed, though the sandbox lives
    server.invoke(2, "again")
    assert server.answer(2, FAILED)["errorType"] == "OSError"


def test_the_link_is_gone_even_if_the_first_answer_is_an_error(
    server: Server, link: tuple[socket.socket, socket.socket]
) -> None:
    engine, app = link
    server.init("import os\ndef handler(event): return {}[os.environ.get('SOCKD_INITSCRIPT_FD')]\n", app.fileno())
    app.close()
    server.invoke(1)
    server.expect(READY, 3)
    assert server.answer(1, FAILED)["errorMessage"].strip("'").isdigit()
    assert engine.recv(100) == b""
    server.invoke(2)
    assert server.answer(2, FAILED)["errorMessage"] == "None"


def test_without_a_link_there_is_no_variable(server: Server) -> None:
    server.init(VARIABLE)
    server.invoke(1)
    server.expect(READY, 3)
    assert server.answer(1) is None


def test_the_library_that_took_the_link_lets_go_of_it(
    server: Server, link: tuple[socket.socket, socket.socket]
) -> None:
    (server.code / "sockd_initscript.py").write_text("def expire(): print('expired')\n")
    server.init("import sockd_initscript\ndef handler(event): print('called')\n", link[1].fileno())
    server.invoke(1)
    server.invoke(2)
    server.expect(READY, 3)
    server.answer(1)
    server.answer(2)
    assert server.end() == (0, b"called\nexpired\ncalled\n")


@pytest.mark.parametrize(
    "oddity", ["os.close(int(os.environ['SOCKD_INITSCRIPT_FD']))", "sys.modules['sockd_initscript'] = 5"]
)
def test_a_function_that_meddles_with_its_link_is_answered_all_the_same(
    server: Server, link: tuple[socket.socket, socket.socket], oddity: str
) -> None:
    server.init(f"import os, sys\n{oddity}\ndef handler(event): return event\n", link[1].fileno())
    server.invoke(1, "one")
    server.invoke(2, "two")
    server.expect(READY, 3)
    assert server.answer(1) == "one"
    assert server.answer(2) == "two"


@pytest.mark.parametrize("count", [2, 3, 9])
def test_more_than_one_descriptor_beside_init_ends_it(
    server: Server, link: tuple[socket.socket, socket.socket], count: int
) -> None:
    engine, app = link
    server.init(ECHO, *[app.fileno()] * count)
    app.close()
    assert server.receive() is None
    assert server.end()[0] == 1
    assert engine.recv(100) == b""


def test_the_storage_library_is_ours_when_the_function_says_so(server: Server) -> None:
    package = server.code / "function"
    package.mkdir()
    (package / "storage.py").write_text("raise AssertionError\n")
    (package / "function.py").write_text("from . import storage\ndef handler(event): return storage.__file__\n")
    server.init("", handler="function.function:handler", storage="sockd")
    server.invoke(1)
    server.expect(READY, 3)
    assert server.answer(1) == str(REPOSITORY / "storage_lib" / "storage.py")


def test_and_the_packages_own_when_it_does_not(server: Server) -> None:
    (server.code / "storage.py").write_text("OWN = 1\n")
    server.init("import storage\ndef handler(event): return storage.OWN\n")
    server.invoke(1)
    server.expect(READY, 3)
    assert server.answer(1) == 1


COUNTS = """
def handler(event, context):
    for number in range(event):
        yield f"{number} "
    if event == 3:
        raise ValueError("three")
"""


def streamed(server: Server, number: int, kind: int = RESULT) -> bytes:
    """The body of an answer in pieces, which ends with a frame of this kind."""
    head = server.expect(HEAD, number)
    assert protocol.decode_head(head) == (200, [(b"content-type", b"text/plain; charset=utf-8")])
    body = b""
    while (frame := server.receive()) is not None and frame[:2] == (CHUNK, number):
        body += frame[2]
    if frame is not None and frame[0] == MODULES:
        frame = server.receive()
    assert frame is not None and frame[:2] == (kind, number), frame
    assert (len(frame[2]) == TIMES.size) == (kind == RESULT)
    return body


def test_a_generator_is_a_head_chunks_and_an_empty_result(server: Server) -> None:
    server.init(COUNTS)
    server.expect(READY, 3)
    for number in (10, 11):
        server.invoke(number, 2)
        assert streamed(server, number) == b"0 1 "
    server.invoke(12, 3)
    assert streamed(server, 12, FAILED) == b"0 1 2 "
    server.invoke(13, 1)
    assert streamed(server, 13) == b"0 "
    assert server.end() == (0, b"")


def test_word_of_a_client_that_had_all_is_ignored(server: Server) -> None:
    server.init(COUNTS)
    server.expect(READY, 3)
    server.invoke(10, 1)
    streamed(server, 10)
    server.send(GONE, 10)
    server.invoke(11, 1)
    assert streamed(server, 11) == b"0 "


def test_an_endless_generator_ends_when_its_client_has_gone(server: Server) -> None:
    server.init("import itertools\ndef handler(event): return map(str, itertools.count())\n")
    server.expect(READY, 3)
    server.invoke(10)
    server.expect(HEAD, 10)
    server.send(GONE, 10)
    while (frame := server.receive()) is not None and frame[0] == CHUNK:
        continue
    assert frame is not None and frame[0] == MODULES
    server.expect(RESULT, 10)


TOLD = """
import os
def handler(event, context):
    c = context.client_context
    return [event, os.environ.get("_X_AMZN_TRACE_ID"), context.invoked_function_arn[-2:], c and (c.custom, c.client.app_title)]
"""


def test_details_are_told_for_one_request(server: Server) -> None:
    server.init(TOLD)
    server.expect(READY, 3)
    details = json.dumps(
        {"trace": "Root=1", "arn": "x:y", "client_context": {"custom": 1, "client": {"app_title": "t"}}}
    )
    server.send(INVOKE, 10, INVOCATION.pack(bytes(16), 10**9, len(details)), details.encode(), b"7")
    assert server.answer(10) == [7, "Root=1", ":y", [1, "t"]]
    server.invoke(11, 8)
    assert server.answer(11) == [8, None, ":f", None]


@pytest.mark.parametrize(("app", "kind"), [("", b""), ("maybe", b""), ("auto", protocol.APP), ("wsgi", protocol.APP)])
def test_ready_says_whether_the_handler_is_an_app(server: Server, app: str, kind: bytes) -> None:
    server.init("def handler(event, context): return event\n", app=app)
    assert server.expect(READY, 3)[TIMES.size :] == kind


@pytest.mark.parametrize("name", ["f", "app"])
def test_openlambda_s_file_has_a_function_or_an_app(server: Server, name: str) -> None:
    server.init(f"def {name}(environ, start_response): pass\n", app="maybe", handler="f:f")
    assert server.expect(READY, 3)[TIMES.size :] == protocol.APP


def test_a_file_with_neither_is_told(server: Server) -> None:
    server.init("x = 1\n", app="maybe", handler="f:f")
    assert server.answer(3, FAILED)["errorType"] == "Runtime.HandlerNotFound"


def test_an_app_answers_over_its_channel(server: Server) -> None:
    server.init(
        "def app(environ, start):\n    start('200 OK', [])\n    return [environ['wsgi.input'].read()]\n",
        app="wsgi",
        handler="f:app",
    )
    server.expect(READY, 3)
    http = {"method": "GET", "root_path": "", "raw_path": "/", "query": "", "headers": []}
    details = json.dumps({"http": http}).encode()
    server.send(INVOKE, 10, INVOCATION.pack(bytes(16), 10**9, len(details)), details, b"not JSON")
    server.expect(HEAD, 10)
    assert server.expect(CHUNK, 10) == b"not JSON"
