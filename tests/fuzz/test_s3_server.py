"""The S3 server's parsers, lightly: it is for development, but its first bytes come from any client."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.s3.process import S3Process
from tests.benchmarks.s3.raw import Raw
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.test_http_front import change, changed


@pytest.fixture
def s3() -> Iterator[S3Process]:
    with S3Process() as server, server.client() as client:
        client.make_bucket("bkt")
        client.put("bkt", "k", b"hello")
        yield server


def statuses(s3: S3Process, data: bytes) -> list[int]:
    """Return the statuses of the answers to these bytes and the end of file behind them."""
    address = urlsplit(s3.url)
    heard = b""
    with socket.create_connection((address.hostname, address.port), 5) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(1 << 16):
                heard += chunk
        except ConnectionError:
            pass
    return [int(part[:3]) for part in heard.split(b"HTTP/1.1 ")[1:] if part[:3] != b"100"]


@fuzz(60)
@example([], b"GET /bkt/k?range=%zz HTTP/1.1\r\nHost: a\r\nAuthorization: AWS4-HMAC-SHA256 Credential=\r\n\r\n")
@example([], b"GET //[/%ff?X-Amz-Expires=9e9&X-Amz-Algorithm=AWS4-HMAC-SHA256 HTTP/1.1\r\nHost: [\r\n\r\n")
@example([], b"PUT /bkt/k HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n")
@given(st.lists(change, max_size=4), st.binary(max_size=60))
def test_whatever_the_bytes_it_answers_the_next_one(
    s3: S3Process, changes: list[tuple[int, int, bytes]], more: bytes
) -> None:
    with Raw(s3) as connection:
        signed = connection.signed("GET", "/bkt/k", headers={"Range": "bytes=0-1"})
        put = connection.signed("PUT", "/bkt/new", payload=b"data", unsigned={"Content-Length": "4"}) + b"data"
        assert all(status < 500 or status == 501 for status in statuses(s3, changed(signed + put, changes) + more))
        assert connection.get("/bkt/k").body == b"hello"
