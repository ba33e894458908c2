"""Heads of responses: what is understood, and what is refused."""

from __future__ import annotations

import errno

import pytest

from sockd_initscripts.rpc import RpcFailed
from sockd_initscripts.rpc.http1.http_head import Head, parse_head


def head(*lines: str) -> Head:
    return parse_head("\r\n".join(("HTTP/1.1 200 OK", *lines)).encode("latin-1"))


def test_names_are_lower_case_and_values_trimmed() -> None:
    assert head('ETag: \t"x" ', "X-Ü-: no".replace("Ü", "U")).headers == {"etag": '"x"', "x-u-": "no"}


def test_repeated_headers_are_joined() -> None:
    assert head("a: 1", "A: 2").headers == {"a": "1, 2"}


@pytest.mark.parametrize(
    ("lines", "length"),
    [((), None), (("content-length: 0",), 0), (("content-length: 00012",), 12), (("content-length: 7",) * 2, 7)],
)
def test_length(lines: tuple[str, ...], length: int | None) -> None:
    assert head(*lines).length == length


@pytest.mark.parametrize(
    ("first", "lines", "kept"),
    [
        ("HTTP/1.1 200 OK", "", True),
        ("HTTP/1.1 200 OK", "\r\nConnection: Close", False),
        ("HTTP/1.1 200", "\r\nconnection: x, close", False),
        ("HTTP/1.0 200 OK", "", False),
        ("HTTP/1.0 200 OK", "\r\nConnection: keep-alive", True),
    ],
)
def test_whether_the_connection_may_be_kept(first: str, lines: str, kept: bool) -> None:
    assert parse_head((first + lines).encode()).keep_alive is kept


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/2 200 OK",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 2000 OK",
        b"HTTP/1.1 099 OK",
        b"HTTP/1.1 200 \x00",
        b"ICY 200 OK",
        b"HTTP/1.1 200 OK\r\nno colon",
        b"HTTP/1.1 200 OK\r\n: empty",
        b"HTTP/1.1 200 OK\r\nspace : x",
        b"HTTP/1.1 200 OK\r\na: b\r\n folded: c",
        b"HTTP/1.1 200 OK\r\na: b\nc: d",
        b"HTTP/1.1 200 OK\r\na: b\rc: d",
        b"HTTP/1.1 200 OK\r\na: \x00",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1",
        b"HTTP/1.1 200 OK\r\ncontent-length: +1",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1_0",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0x10",
        b"HTTP/1.1 200 OK\r\ncontent-length:",
        b"HTTP/1.1 200 OK\r\ncontent-length: \xb2",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9999999999999999",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked",
    ],
)
def test_what_two_readers_could_understand_differently_is_refused(data: bytes) -> None:
    with pytest.raises(RpcFailed) as failure:
        parse_head(data)
    assert (failure.value.errno, failure.value.reason) == (errno.EPROTO, "protocol")
