"""Apps and iterators as handlers, with a daemon's end of the channel beside them: what they get, what frames they send."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.validate import validator

import pytest

from sockd.isolation.sandbox.frame_decoder import FrameDecoder
from sockd_zygote import protocol
from sockd_zygote.handlers.app_kinds import kind_of, open_app
from sockd_zygote.handlers.apps import App, Request
from sockd_zygote.handlers.handler_server import pour
from sockd_zygote.messages.errors import NotHttp
from sockd_zygote.messages.outlet import Outlet
from sockd_zygote.messages.pieces import Pieces
from sockd_zygote.protocol import CHUNK, GONE, HEAD, ProtocolError

NUMBER = 7
HTTP: dict[str, Any] = {
    "method": "GET",
    "root_path": "/run/f",
    "raw_path": "/a%20b",
    "query": "q=1",
    "headers": [["host", "localhost"], ["x-a", "1"], ["x-a", "2"], ["x_b", "3"], ["proxy", "4"]],
    "client": ["127.0.0.1", 5],
    "server": ["127.0.0.1", 80],
}


class Daemon:
    """The other end of a channel."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        self.outlet = Outlet(self.theirs.fileno(), NUMBER)

    def say(self, kind: int, number: int = NUMBER) -> None:
        self._ours.sendall(protocol.encode_frame(kind, number))

    def frames(self) -> list[tuple[int, bytes]]:
        """All that has been sent."""
        self.theirs.shutdown(socket.SHUT_WR)
        decoder = FrameDecoder({HEAD: protocol.HEAD_MAX_BYTES, CHUNK: protocol.CHUNK_MAX_BYTES})
        while data := self._ours.recv(1 << 20):
            decoder.feed(data)
        found = []
        while (frame := decoder.next_frame()) is not None:
            assert frame[1] == NUMBER
            found.append((frame[0], frame[2]))
        return found

    def answer(self) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """What has been sent, put together."""
        (kind, head), *chunks = self.frames()
        assert kind == HEAD and all(kind == CHUNK for kind, _ in chunks)
        return (*protocol.decode_head(head), b"".join(data for _, data in chunks))

    def close(self) -> None:
        self._ours.close()
        self.theirs.close()


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    daemon = Daemon()
    yield daemon
    daemon.close()


def ask(app: Any, kind: str, daemon: Daemon, body: bytes = b"", **http: Any) -> None:
    opened = open_app(app, kind)
    assert isinstance(opened, App)
    with contextlib.closing(opened):
        opened.call(body, bytes(16), 0, {"http": {**HTTP, **http}}).pour(daemon.outlet)


# -- WSGI


def hello(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [environ["PATH_INFO"].encode(), b"|", body]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("method", "body"), [("GET", b""), ("POST", b"body")])
def test_the_adapter_is_wsgi(daemon: Daemon, method: str, body: bytes) -> None:
    ask(validator(hello), "wsgi", daemon, body, method=method)
    assert daemon.answer() == (200, [(b"content-type", b"text/plain")], b"/a b|" + body)


def test_headers_are_variables_but_for_those_that_would_be_taken_for_others(daemon: Daemon) -> None:
    seen: dict[str, Any] = {}

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        seen.update(environ)
        return hello(environ, start_response)

    ask(app, "wsgi", daemon)
    assert seen["HTTP_X_A"] == "1, 2" and not {"HTTP_X_B", "HTTP_PROXY"} & set(seen)
    assert (seen["SCRIPT_NAME"], seen["QUERY_STRING"], seen["REMOTE_PORT"]) == ("/run/f", "q=1", "5")


def test_the_pieces_of_a_list_go_out_as_one(daemon: Daemon) -> None:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [])
        return [b"x"] * 1000

    ask(app, "wsgi", daemon)
    assert daemon.frames()[1:] == [(CHUNK, b"x" * 1000)]


def test_write_sends_at_once_and_close_is_always_called(daemon: Daemon) -> None:
    closed = []

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            yield b"two"
            raise KeyError("three")

        def close(self) -> None:
            closed.append(1)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Body:
        start_response("200 OK", [])(b"one")
        return Body()

    with pytest.raises(KeyError):
        ask(app, "wsgi", daemon)
    assert closed == [1] and daemon.answer()[2] == b"onetwo"


def test_an_error_may_replace_a_head_that_was_not_sent(daemon: Daemon) -> None:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [])
        try:
            raise ValueError("no")
        except ValueError as error:
            start_response("500 Oh", [("a", "b")], (type(error), error, error.__traceback__))
        return [b"sorry"]

    ask(app, "wsgi", daemon)
    assert daemon.answer() == (500, [(b"a", b"b")], b"sorry")


def late(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
    start_response("200 OK", [])
    yield b"sent"
    error = LookupError("late")
    start_response("500 Oh", [], (LookupError, error, None))


def twice(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    start_response("200 OK", [])
    start_response("200 OK", [])
    return []


@pytest.mark.parametrize(
    ("app", "error"),
    [
        (late, LookupError),
        (twice, AssertionError),
        (lambda environ, start_response: [b"no head"], AssertionError),
        (lambda environ, start_response: [], AssertionError),
        (lambda environ, start_response: start_response("OK", []), ValueError),
        (lambda environ, start_response: start_response("200 OK", [("a b", "c")]), ValueError),
        (lambda environ, start_response: start_response("200 OK", [("a", "b\nc: d")]), ValueError),
        (lambda environ, start_response: start_response("200 OK", [("a", "b" * 70_000)]), ValueError),
        (lambda environ, start_response: start_response("200 OK", [("a", 1)]), ValueError),
        (lambda environ, start_response: start_response("101 Switching", []), ValueError),
    ],
)
def test_what_is_not_wsgi_is_an_error(daemon: Daemon, app: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        ask(app, "wsgi", daemon)


@pytest.mark.parametrize("body", [["text"], "text", [b"x", 7], iter(["text"])])
def test_a_wsgi_body_that_is_not_bytes_is_reported_in_plain_words(daemon: Daemon, body: Any) -> None:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        start_response("200 OK", [])
        return body

    words = "gave int$" if isinstance(body, list) and 7 in body else r"gave str: encode it, as in \[text.encode\(\)\]"
    with pytest.raises(TypeError, match=f"a WSGI app's body is made of bytes, and this app {words}"):
        ask(app, "wsgi", daemon)


def gives(status: str, length: str, pieces: list[bytes]) -> Callable[..., Iterator[bytes]]:
    """A WSGI app with this Content-Length."""

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        start_response(status, [("Content-Length", length)])
        return iter(pieces)

    return app


def test_a_wsgi_body_that_is_shorter_than_its_content_length_is_an_error(daemon: Daemon) -> None:
    with pytest.raises(RuntimeError, match="is 6 bytes shorter than its Content-Length"):
        ask(gives("200 OK", "10", [b"so", b"me"]), "wsgi", daemon)


@pytest.mark.parametrize(
    ("method", "status", "length", "pieces"),
    [
        ("GET", "200 OK", "4", [b"so", b"me"]),
        ("GET", "200 OK", "2", [b"so", b"me"]),
        ("HEAD", "200 OK", "4", []),
        ("GET", "304 Not Modified", "4", []),
        ("GET", "200 OK", "\u00b2", [b"no length"]),
        ("GET", "200 OK", "9" * 16, [b"no length"]),
    ],
)
def test_a_content_length_that_says_nothing_of_a_missing_body_is_no_error(
    daemon: Daemon, method: str, status: str, length: str, pieces: list[bytes]
) -> None:
    ask(gives(status, length, pieces), "wsgi", daemon, method=method)
    assert daemon.answer()[2] == b"".join(pieces)


def test_an_app_is_asked_over_http_only() -> None:
    app = open_app(hello, "wsgi")
    assert app is not None
    with pytest.raises(NotHttp):
        app.call(b"{}", bytes(16), 0, {"trace": "x"})


# -- ASGI


async def echo(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
    assert scope["type"] == "http"  # so it has no lifespan
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"a", scope["path"].encode())]})
    await send({"type": "http.response.body", "body": message["body"], "more_body": True})
    await send({"type": "http.response.body", "body": b"!"})
    assert await receive() == {"type": "http.disconnect"}


def test_the_adapter_is_asgi(daemon: Daemon) -> None:
    ask(echo, "asgi", daemon, b"body")
    assert daemon.answer() == (200, [(b"a", b"/run/f/a b")], b"body!")


def test_an_app_whose_startup_fails_is_no_handler() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    with pytest.raises(Exception, match="no database"):
        open_app(app, "asgi")


def test_startup_and_shutdown_are_the_apps(daemon: Daemon) -> None:
    heard = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            return await echo(scope, receive, send)
        for _ in range(2):
            message = await receive()
            heard.append(message["type"])
            await send({"type": f"{message['type']}.complete"})

    opened = open_app(app, "asgi")
    assert opened is not None and heard == ["lifespan.startup"]
    opened.close()
    assert heard == ["lifespan.startup", "lifespan.shutdown"]


def test_who_waits_for_the_end_learns_that_the_client_has_gone(daemon: Daemon) -> None:
    reported = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        daemon.say(GONE)
        reported.append((await receive())["type"])
        with pytest.raises(ConnectionError):
            await send({"type": "http.response.body", "body": b"y", "more_body": True})

    ask(app, "asgi", daemon)
    assert reported == ["http.disconnect"] and daemon.answer()[2] == b"x"


async def _incomplete(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200})


async def _body_first(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.body", "body": b""})


async def _websocket(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})


async def _too_short(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
    await send({"type": "http.response.body", "body": b"some"})


@pytest.mark.parametrize("app", [_incomplete, _body_first, _websocket, _too_short])
def test_what_is_not_asgi_is_an_error(daemon: Daemon, app: Any) -> None:
    with pytest.raises(RuntimeError):
        ask(app, "asgi", daemon)


@pytest.mark.parametrize("is_whole", [True, False])
def test_an_error_behind_a_complete_answer_follows_word_of_that(daemon: Daemon, *, is_whole: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"x", "more_body": not is_whole})
        raise KeyError("after")

    opened = open_app(app, "asgi")
    assert opened is not None
    with contextlib.closing(opened), pytest.raises(KeyError):
        pour(opened.call(b"", bytes(16), 0, {"http": HTTP}), daemon.outlet.channel, NUMBER)
    assert daemon.frames()[1:] == [(CHUNK, b"x"), (CHUNK, b"")][: 1 + is_whole]


# -- which of them


class AsyncInstance:
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


class WsgiInstance:
    def __call__(self, environ: Any, start_response: Any) -> Any: ...


@functools.wraps(hello)
def wrapped(*args: Any) -> Any: ...


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        (hello, "wsgi"),
        (WsgiInstance(), "wsgi"),
        (wrapped, "wsgi"),
        (echo, "asgi"),
        (AsyncInstance(), "asgi"),
        (lambda scope, receive, send: None, "asgi"),
        (lambda event: None, ""),
        (lambda event, context: None, ""),
        (lambda event, context, extra=1: None, ""),
        (print, ""),
        (7, ""),
    ],
)
def test_an_app_is_known_by_how_it_wants_to_be_called(target: Any, kind: str) -> None:
    assert kind_of(target) == kind


# -- iterators


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def test_a_generator_is_closed_when_its_client_has_gone(daemon: Daemon) -> None:
    closed = []

    def pieces() -> Iterator[str]:
        try:
            yield "one"
            daemon.say(GONE)
            yield "two"
        finally:
            closed.append(1)

    Pieces(pieces(), None).pour(daemon.outlet)
    assert closed == [1] and daemon.answer()[2] == b"one"


def test_an_async_generator_that_waits_is_closed_too(daemon: Daemon) -> None:
    closed = []

    async def pieces() -> Any:
        try:
            yield b"one"
            daemon.say(GONE)
            await asyncio.Event().wait()
        finally:
            closed.append(1)

    Pieces(pieces(), run).pour(daemon.outlet)
    assert closed == [1] and daemon.answer()[2] == b"one"


def test_long_pieces_are_several_chunks(daemon: Daemon) -> None:
    size = protocol.CHUNK_MAX_BYTES + 1
    Pieces(iter([bytes(size), b"", "é", {"a": [1]}]), None).pour(daemon.outlet)
    (_, head), *chunks = daemon.frames()
    assert dict(protocol.decode_head(head)[1]) == {b"content-type": b"application/octet-stream"}
    assert [len(data) for _, data in chunks[:2]] == [size - 1, 1]
    assert [data for _, data in chunks[2:]] == ["é".encode(), b'{"a":[1]}\n']


def test_a_first_piece_that_is_a_head_is_not_the_body(daemon: Daemon) -> None:
    head = {"statusCode": 201, "headers": {"A": "b", "C": ["d", "e"]}, "cookies": ["f=g"]}
    Pieces(iter([head, "x"]), None).pour(daemon.outlet)
    assert daemon.answer() == (201, [(b"a", b"b"), (b"c", b"d"), (b"c", b"e"), (b"set-cookie", b"f=g")], b"x")


def test_a_first_piece_that_only_looks_like_a_head_is_the_body(daemon: Daemon) -> None:
    Pieces(iter([{"statusCode": 201, "row": 1}]), None).pour(daemon.outlet)
    assert json.loads(daemon.answer()[2]) == {"statusCode": 201, "row": 1}


@pytest.mark.parametrize("said", [(protocol.INVOKE, NUMBER), (GONE, NUMBER + 1), (protocol.INIT, NUMBER)])
def test_any_other_word_in_the_middle_is_an_error(daemon: Daemon, said: tuple[int, int]) -> None:
    daemon.say(*said)
    with pytest.raises(ProtocolError):
        Pieces(iter(["x"]), None).pour(daemon.outlet)


def test_a_request_decodes_its_path_as_bytes() -> None:
    assert Request({**HTTP, "raw_path": "/%C3%A9%2Fx"}, b"").path_bytes() == "/é/x".encode()
