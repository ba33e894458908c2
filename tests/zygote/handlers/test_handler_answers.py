"""What a handler sandbox sends back: one answer, pieces of a generator, an app's; and what it says before them."""

from __future__ import annotations

import json

import pytest

from sockd_zygote import protocol
from sockd_zygote.protocol import CHUNK, FAILED, GONE, HEAD, INVOCATION, INVOKE, MODULES, READY, RESULT, TIMES
from tests.zygote.handler_process import MAX_ANSWER_BYTES, Server


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


def test_an_asynchronous_handler_fails_with_its_own_frames_alone(server: Server) -> None:
    server.init("async def handler(event):\n    raise LookupError('gone')\n")
    server.expect(READY, 3)
    server.invoke(1)
    server.expect(MODULES, 1)
    [frame] = server.answer(1, FAILED)["stackTrace"]
    assert "raise LookupError('gone')" in frame


def test_what_was_printed_is_out_before_the_answer(server: Server) -> None:
    server.init("import sys\ndef handler(event):\n    sys.stdout.write('no newline')\n")
    server.invoke(1)
    server.expect(READY, 3)
    server.answer(1)
    assert server.process.stdout is not None
    assert server.process.stdout.read1(100) == b"no newline"  # type: ignore[attr-defined]


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


def test_bytes_are_the_whole_answer_as_they_are(server: Server) -> None:
    server.init("def handler(event): return bytes(event)\n")
    server.expect(READY, 3)
    for number, size in ((1, 3), (2, 0)):
        server.invoke(number, size)
        head = server.expect(HEAD, number)
        assert protocol.decode_head(head) == (200, [(b"content-type", b"application/octet-stream")])
        if size:
            server.expect(CHUNK, number)
        if number == 1:
            server.expect(MODULES, number)
        server.expect(RESULT, number)


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


@pytest.mark.parametrize(("app", "kind"), [("", b""), ("maybe", b""), ("auto", protocol.APP), ("wsgi", protocol.APP)])
def test_ready_says_whether_the_handler_is_an_app(server: Server, app: str, kind: bytes) -> None:
    server.init("def handler(event, context): return event\n", app=app)
    assert server.expect(READY, 3)[TIMES.size :] == kind


@pytest.mark.parametrize("name", ["f", "app"])
def test_openlambda_s_file_has_a_function_or_an_app(server: Server, name: str) -> None:
    server.init(f"def {name}(environ, start_response): pass\n", app="maybe", handler="f:f")
    assert server.expect(READY, 3)[TIMES.size :] == protocol.APP


def test_main_has_a_handler_or_an_app(server: Server) -> None:
    (server.code / "main.py").write_text("def app(environ, start_response): pass\n")
    server.init("", app="maybe", handler="main:handler")
    assert server.expect(READY, 3)[TIMES.size :] == protocol.APP


@pytest.mark.parametrize(("source", "handler"), [("x = 1\n", "f:f"), ("app = print\n", "f:handler")])
def test_a_file_with_neither_is_reported(server: Server, source: str, handler: str) -> None:
    server.init(source, app="maybe", handler=handler)
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
