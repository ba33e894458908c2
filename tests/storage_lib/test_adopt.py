"""A connection that the initscript made is the one that a library's next request goes over."""

from __future__ import annotations

import http.client
import importlib
import socket
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.storage_lib.conftest import S3


@pytest.fixture
def adopt(function: Callable[[str], ModuleType]) -> Iterator[Any]:
    """The module; what it has patched is as it was afterwards."""
    from botocore import awsrequest
    from urllib3 import connectionpool

    pools = (
        *(connectionpool.HTTPConnectionPool, connectionpool.HTTPSConnectionPool),
        *(awsrequest.AWSHTTPConnectionPool, awsrequest.AWSHTTPSConnectionPool),
    )
    before = [pool.ConnectionCls for pool in pools]
    yield function("sockd_initscript.adopt")
    for pool, connection in zip(pools, before, strict=True):
        pool.ConnectionCls = connection


@pytest.fixture
def transferred(function: Callable[[str], ModuleType]) -> Callable[..., Any]:
    """`transferred(sock, kind)`: as `get_conn` gives it."""

    def make(sock: socket.socket, kind: str = "tcp") -> Any:
        sock.setblocking(False)
        return function("sockd_initscript.connection").Connection(sock, "s3:", kind, None)

    return make


@pytest.fixture
def server(s3: S3) -> tuple[str, int]:
    parts = urlsplit(s3.server.url)
    assert parts.hostname and parts.port
    return parts.hostname, parts.port


@pytest.fixture
def relay() -> Iterator[socket.socket]:
    """The app's end of a relay whose other end answers every GET with its path."""
    ours, theirs = socket.socketpair()

    def answer() -> None:
        with theirs, theirs.makefile("rb") as requests:
            while line := requests.readline():
                while requests.readline().strip():
                    continue
                path = line.split()[1]
                theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(path), path))

    thread = threading.Thread(target=answer)
    thread.start()
    yield ours
    ours.close()
    thread.join(10)


@pytest.fixture
def client(s3: S3, adopt: Any) -> Iterator[Any]:
    import boto3

    env = s3.server.env()
    client = boto3.client(
        "s3",
        endpoint_url=s3.server.url,
        region_name="us-east-1",
        aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
    )
    yield client
    client.close()


def test_boto3_uses_it_and_goes_on_using_it(
    adopt: Any, client: Any, s3: S3, server: tuple[str, int], transferred: Callable[..., Any]
) -> None:
    s3.put("x", b"data")
    sock = socket.create_connection(server)
    adopt.botocore(transferred(sock), *server)
    for _ in range(3):
        assert client.get_object(Bucket="bkt", Key="x")["Body"].read() == b"data"
    assert adopt._offered == {server: []}
    assert len({record["connection"] for record in s3.requests("GET")}) == 1
    client.close()
    assert sock.fileno() == -1


def test_boto3_dials_when_the_server_has_closed_it(
    adopt: Any, client: Any, s3: S3, server: tuple[str, int], transferred: Callable[..., Any]
) -> None:
    s3.put("x", b"data")
    gone, there = socket.socketpair()
    there.close()
    adopt.botocore(transferred(gone), *server)
    assert client.get_object(Bucket="bkt", Key="x")["Body"].read() == b"data"
    assert gone.fileno() == -1


def test_another_hosts_connection_is_left_alone(
    adopt: Any, client: Any, s3: S3, server: tuple[str, int], transferred: Callable[..., Any], relay: socket.socket
) -> None:
    s3.put("x", b"data")
    adopt.botocore(transferred(relay), "elsewhere", server[1])
    adopt.botocore(transferred(relay, "relay"), *server)
    assert client.get_object(Bucket="bkt", Key="x")["Body"].read() == b"data"
    assert relay.fileno() >= 0


def test_a_relay_takes_the_place_of_https(
    adopt: Any, relay: socket.socket, transferred: Callable[..., Any], recwarn: pytest.WarningsRecorder
) -> None:
    urllib3 = importlib.import_module("urllib3")
    adopt.urllib3(transferred(relay, "relay"), "secure.invalid", 443)
    with urllib3.PoolManager() as pool:
        for path in ("/one", "/two"):
            assert pool.request("GET", f"https://secure.invalid{path}", retries=False).data == path.encode()
    assert [str(warning.message) for warning in recwarn] == []


def test_boto3_over_a_relay(adopt: Any, relay: socket.socket, transferred: Callable[..., Any]) -> None:
    import boto3

    adopt.botocore(transferred(relay, "relay"), "secure.invalid", 443)
    client = boto3.client(
        "s3",
        endpoint_url="https://secure.invalid",
        region_name="us-east-1",
        aws_access_key_id="k",
        aws_secret_access_key="s",
    )
    assert client.get_object(Bucket="bkt", Key="x")["Body"].read() == b"/bkt/x"
    client.close()


def test_urllib3_uses_it(
    adopt: Any, s3: S3, server: tuple[str, int], transferred: Callable[..., Any], relay: socket.socket
) -> None:
    urllib3 = importlib.import_module("urllib3")
    adopt.urllib3(transferred(relay), *server)
    with urllib3.PoolManager() as pool:
        assert pool.request("GET", f"{s3.server.url}/over-the-relay").data == b"/over-the-relay"


def test_the_standard_library_uses_it(adopt: Any, transferred: Callable[..., Any], relay: socket.socket) -> None:
    connection: http.client.HTTPConnection = adopt.http_connection(transferred(relay), "nowhere.invalid", 80)
    for path in ("/a", "/b"):
        connection.request("GET", path)
        assert connection.getresponse().read() == path.encode()
    connection.close()
