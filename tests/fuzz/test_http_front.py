"""The HTTP front over a real socket: requests that have one meaning get their answers, all others a refusal."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sockd.base.config import HttpConfig
from sockd.http.front import Front
from sockd.http.server.listening.sockets import bind_tcp
from sockd.http.server.server import HttpServer
from sockd.linux.event_loop import EventLoop
from tests.fuzz.fuzzing import encoded, fuzz, values
from tests.http.fake_worker import FakeWorker

PLAIN = b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
Answer = tuple[int, bytes]


class FrontServer:
    """A server without sandboxes, on a loop that runs only while somebody talks to it."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        self.raised: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.raised.append(context))
        self.worker = FakeWorker()
        self.server = HttpServer(Front(self.worker, HttpConfig(listen="127.0.0.1:0")), bind_tcp("127.0.0.1:0"))
        self.loop.run_until_complete(self.server.start())

    def talk(self, pieces: list[bytes]) -> list[Answer]:
        """The answers to these bytes, sent piece by piece, and to the end of file behind them."""
        return self.loop.run_until_complete(self._talk(pieces))

    async def _talk(self, pieces: list[bytes]) -> list[Answer]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = b""
        async with asyncio.timeout(5):
            try:
                for piece in pieces:
                    if not writer.is_closing():
                        writer.write(piece)
                    await asyncio.sleep(0)
                if not writer.is_closing():
                    writer.write_eof()
                while chunk := await reader.read(1 << 16):
                    data += chunk
            except ConnectionError:  # it refused, and what was sent behind that was answered with a reset
                pass
            finally:
                writer.transport.abort()
        return list(answers_in(data))

    def close(self) -> None:
        self.loop.run_until_complete(self.server.aclose(0))
        self.loop.close()


def answers_in(data: bytes) -> Iterator[Answer]:
    """Every answer, whole; anything else fails."""
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert end and version == "HTTP/1.1", head
        if status.startswith("1"):
            continue
        names = [line.partition(":")[0].lower() for line in lines]
        assert names.count("content-length") == 1 and "transfer-encoding" not in names, head
        length = int(lines[names.index("content-length")].partition(":")[2])
        assert len(data) >= length, (head, data)
        yield int(status), data[:length]
        data = data[length:]


@pytest.fixture
def api(caplog: pytest.LogCaptureFixture) -> Iterator[FrontServer]:
    caplog.set_level(logging.ERROR)
    api = FrontServer()
    yield api
    api.close()
    assert not caplog.records, "an error of ours was logged"


# -- requests with one meaning

tokens = st.text(st.sampled_from("abcXYZ019-_!#$%&'*+.^`|~"), min_size=1, max_size=12)
field_values = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=20)
OURS = {"host", "content-length", "transfer-encoding", "connection", "expect", "upgrade", "te", "trailer", "keep-alive"}
OURS |= {"proxy-connection"}
headers = st.lists(st.tuples(tokens.filter(lambda name: name.lower() not in OURS), field_values), max_size=4)
bodies = values().map(lambda value: json.dumps(value, allow_nan=True).encode())


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The same bytes in pieces."""
    at = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(at)]


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A request, and the event in it."""
    body = draw(bodies)
    lines = [b"POST /run/echo HTTP/1.1", draw(st.sampled_from([b"Host: localhost", b"hOST:127.0.0.1:5000  "]))]
    lines += [f"{name}:{value}".encode("latin-1") for name, value in draw(headers)]
    places = draw(st.lists(st.integers(0, 1 << 16), max_size=4))
    if draw(st.booleans()):
        lines.append(b"Content-Length: %d" % len(body))
        payload = body
    else:
        lines.append(b"Transfer-Encoding: chunked")
        extension = draw(st.sampled_from([b"", b";a=b", b';name="v;\\"x"']))
        chunks = [b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in cut(body, places)]
        payload = (
            b"".join(chunks) + b"0\r\n" + draw(st.sampled_from([b"", b"x-trailer: content-length: 5\r\n"])) + b"\r\n"
        )
    return b"\r\n".join(lines) + b"\r\n\r\n" + payload, body


@fuzz(80)
@given(st.lists(requests(), min_size=1, max_size=5), st.lists(st.integers(0, 1 << 20), max_size=12))
def test_whole_requests_are_answered_in_order_however_they_are_cut(
    api: FrontServer, sent: list[tuple[bytes, bytes]], places: list[int]
) -> None:
    answers = api.talk(cut(b"".join(request for request, _ in sent), places))
    assert answers == [(200, event) for _, event in sent]
    assert not api.raised


# -- and all others

JUNK = (
    b"\r\n\r\n", b"\0", b"GET ", b" HTTP/1.1", b"HTTP/1.0", b"Content-Length: 5\r\n", b"Content-Length: 0, 0\r\n", b"\n\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n",
    b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"Host: evil\r\n",
    b"http://a:b@c/run/echo", b"/run/%2e%2e%2f", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\n", b"*", b"\t",
)  # fmt: skip
change = st.tuples(st.integers(0, 1 << 16), st.integers(0, 6), st.sampled_from(JUNK) | st.binary(max_size=4))


def changed(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    """These bytes with some replaced by others."""
    for place, length, other in changes:
        at = place % (len(data) + 1)
        data = data[:at] + other + data[at + length :]
    return data


def chunked(rest: bytes) -> bytes:
    return b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + rest


streams = st.builds(
    changed,
    st.lists(requests().map(lambda pair: pair[0]), min_size=1, max_size=3).map(b"".join),
    st.lists(change, min_size=1, max_size=4),
)


@fuzz(200)
@example(b"GET http://[::1/run/echo HTTP/1.1\r\nHost: localhost\r\n\r\n", [])
@example(b"POST http://a:99999/run/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", [])
@example(b"POST /run/echo HTTP/1.1\r\nHost: \xff\r\nContent-Length: 2\r\n\r\n{}", [])
@example(b"POST /run/\xff%ff%00 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", [])
@example(PLAIN.replace(b"Host", b"Connection: Upgrade\r\nUpgrade: h2c\r\nHost") + PLAIN, [40, 60, 80])
@example(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n" + PLAIN, [])
@example(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [])
@example(b"POST /\r\n\r\nrun/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n[]", [])
@example(chunked(b"ffffffffffffffffff\r\n"), [])
@example(chunked(b"7fffffff\r\n{}"), [])
@example(chunked(b"2;" + b"x" * 40_000 + b"\r\n{}\r\n0\r\n\r\n"), [])
@example(chunked(b"0\r\n" + b"a: b\r\n" * 20_000 + b"\r\n"), [])
@example(PLAIN.replace(b"Content-Length: 2", b"Content-Length: 99999999999999999999"), [])
@example(PLAIN.replace(b"Content-Length: 2", b"Content-Length: " + b"0" * 5000 + b"2"), [])
@given(streams | st.binary(max_size=200), st.lists(st.integers(0, 1 << 20), max_size=6))
def test_any_other_bytes_are_refused_and_no_one_else_notices(api: FrontServer, data: bytes, places: list[int]) -> None:
    before = len(api.worker.invoked)
    answers = api.talk(cut(data, places))
    assert all(status == 200 or 400 <= status < 500 or status in (501, 505) for status, _ in answers), answers
    for status, body in answers:
        if status >= 400 and body:
            assert set(json.loads(body)) >= {"errorType", "errorMessage", "requestId"}
    assert len(api.worker.invoked) - before >= [status for status, _ in answers].count(200)
    assert api.talk([PLAIN]) == [(200, b"{}")]
    assert not api.raised and not api.server.running and not api.server.connections


@fuzz(60)
@example(encoded({"a": "\ud800"}))
@example(b"[" * 100_000)
@example(b"9" * 10_000)
@example(b"\xff")
@given(values().map(encoded) | st.binary(max_size=100))
def test_the_front_does_not_look_into_an_event(api: FrontServer, event: bytes) -> None:
    request = b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(event), event)
    assert api.talk([request]) == [(200, event or b"{}")] or not event
