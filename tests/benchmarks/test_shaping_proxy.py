"""The slower line: no byte changed, none too soon."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import boto3
import pytest

from benchmarks.peers.shaping_proxy import shaping_proxy
from benchmarks.s3.client import Client
from benchmarks.s3.process import S3Process


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Process]:
    with S3Process() as process, process.client() as client:
        client.make_bucket("bucket")
        yield process


@pytest.fixture(scope="module")
def url(s3: S3Process) -> Iterator[str]:
    with shaping_proxy(s3.url, first_byte_ms=30, bandwidth_mb=20) as url:
        yield url


def test_the_first_byte_and_the_last_are_as_late_as_they_must(s3: S3Process, url: str) -> None:
    data = os.urandom(2_000_000)
    with Client(url, s3.credentials, admin_token=s3.admin_token) as client:
        begun = time.monotonic()
        client.put("bucket", "large", data)
        assert time.monotonic() - begun >= 0.130
        begun = time.monotonic()
        assert client.get("bucket", "large") == data
        assert time.monotonic() - begun >= 0.130
        begun = time.monotonic()
        assert client.get_range("bucket", "large", 1, 2).body == data[1:3]
        assert time.monotonic() - begun >= 0.030
        assert len({each["connection"] for each in client.requests()[-2:]}) == 1


def test_boto3_goes_through_it_with_its_signature(s3: S3Process, url: str) -> None:
    boto = boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id=s3.access_key,
        aws_secret_access_key=s3.secret_key,
        region_name="us-east-1",
    )
    with contextlib.closing(boto):
        took = []
        for _ in range(3):
            begun = time.monotonic()
            boto.put_object(Bucket="bucket", Key="key", Body=b"hello")
            took.append(time.monotonic() - begun)
        assert min(took) < 1  # it got 100 Continue, and did not wait for that in vain
        assert boto.head_object(Bucket="bucket", Key="key")["ContentLength"] == 5
        boto.delete_object(Bucket="bucket", Key="key")
        with pytest.raises(boto.exceptions.NoSuchKey):
            boto.get_object(Bucket="bucket", Key="key")


def test_a_cut_answer_stays_cut(s3: S3Process, url: str) -> None:
    with s3.client() as admin, Client(url, s3.credentials) as client:
        admin.put("bucket", "cut", b"hello")
        admin.inject("bucket/cut", truncate_after=2)
        with pytest.raises(http.client.IncompleteRead) as error:
            client.get("bucket", "cut")
        assert error.value.partial == b"he"


@contextlib.contextmanager
def server(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """One connection's worth: sends each answer when something has come, then closes. (URL, what came)."""
    listener = socket.create_server(("127.0.0.1", 0))
    came: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            for answer in answers:
                came.append(connection.recv(1 << 16))
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", came
    finally:
        thread.join()
        listener.close()


def connect(url: str) -> socket.socket:
    address = urlsplit(url)
    assert address.hostname and address.port
    return socket.create_connection((address.hostname, address.port), 10)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nTrailer: t\r\n\r\n"
WITHOUT_BODY = b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"
TO_THE_END = b"HTTP/1.1 200 OK\r\n\r\nuntil the server closes"
REQUEST = b"GET / HTTP/1.1\r\nHost: anything\r\n\r\n"


def test_every_way_to_end_a_body_is_understood() -> None:
    answers = (CHUNKED, WITHOUT_BODY, TO_THE_END)
    with (
        server(*answers) as (upstream, came),
        shaping_proxy(upstream, first_byte_ms=0, bandwidth_mb=0) as url,
        connect(url) as client,
    ):
        for answer in answers:
            client.sendall(REQUEST)
            found = b""
            while len(found) < len(answer):
                found += client.recv(1 << 16)
            assert found == answer
        assert client.recv(1) == b""
    assert came == [REQUEST] * 3


def test_a_client_learns_at_once_that_the_server_has_closed() -> None:
    with server(WITHOUT_BODY) as (upstream, _), shaping_proxy(upstream) as url, connect(url) as client:
        client.sendall(REQUEST)
        found = b""
        while data := client.recv(1 << 16):
            found += data
        assert found == WITHOUT_BODY
