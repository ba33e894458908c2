"""The S3 store with answers that fail, are slow, end early, or are wrong; each is a typed error after bounded attempts."""

from __future__ import annotations

import logging
import socket
import socketserver
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.s3.client import Client
from benchmarks.s3.process import S3Process
from sockd.base.errors import BadConfig, StoreFull, StoreUnavailable, Tampered
from sockd.base.sigv4.canonical import Credentials
from sockd.images.chunks.chunk import Chunk, encrypt
from sockd.images.chunks.s3_connections import Patience
from sockd.images.chunks.s3_store import S3Store
from sockd.images.chunks.store_settings import StoreSettings, open_store
from tests.images.chunks.conftest import QUICK
from tests.support.servers.closing_server import ClosingServer

SECRET = "a-secret-that-nobody-may-read"


@pytest.fixture
def stored(s3_store: S3Store) -> tuple[Chunk, bytes]:
    chunk, data = encrypt(b"plain" * 10_000, bytes(32))
    s3_store.put("r1", chunk.name, data)
    return chunk, data


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 500},
        {"status": 503},
        {"truncate_after": 100},
        {"truncate_after": 100, "reset": True},
        {"die_after_headers": True},
        {"die_after_headers": True, "reset": True},
        {"wrong_length": 10},
    ],
    ids=str,
)
def test_a_failure_that_passes_is_not_seen(
    s3_store: S3Store, s3_client: Client, s3_bucket: str, stored: tuple[Chunk, bytes], fault: dict[str, Any]
) -> None:
    s3_client.inject(s3_bucket, method="GET", times=2, **fault)
    assert s3_store.get("r1", stored[0].name) == stored[1]
    assert len([each for each in s3_client.requests() if each["fault"] is not None]) == 2


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"status": 500}, "answers 500 InternalError .3 attempts"),
        ({"status": 503}, "answers 503 SlowDown"),
        ({"truncate_after": 100}, "ended early"),
        ({"truncate_after": 100, "reset": True}, "reset|ended early"),
        ({"wrong_length": 10}, "ended early"),
    ],
    ids=str,
)
def test_a_failure_that_stays_is_a_typed_error(
    s3_store: S3Store, s3_client: Client, s3_bucket: str, stored: tuple[Chunk, bytes], fault: dict[str, Any], why: str
) -> None:
    s3_client.inject(s3_bucket, **fault)
    before = s3_store.requests
    with pytest.raises(
        StoreUnavailable, match=rf"\(images\.store\) s3://{s3_bucket}/images/ is unavailable: .*({why})"
    ):
        s3_store.get("r1", stored[0].name)
    assert s3_store.requests - before <= QUICK.attempts + 1  # one more for a connection that was kept
    with pytest.raises(StoreUnavailable):
        list(s3_store.names("r1"))


@pytest.mark.parametrize("fault", [{"delay_s": 30}, {"bandwidth_bytes_s": 100}], ids=str)
def test_a_slow_store_is_given_up_at_the_deadline(
    s3: S3Process,
    s3_client: Client,
    s3_bucket: str,
    s3_store: S3Store,
    stored: tuple[Chunk, bytes],
    fault: dict[str, Any],
) -> None:
    s3_client.inject(s3_bucket, method="GET", **fault)
    patience = Patience(connect_s=1.0, attempt_s=0.2, attempts=2, pause_s=0.001)
    with (
        closing(S3Store(s3.url, s3_bucket, "images", s3.credentials, patience=patience)) as store,
        pytest.raises(StoreUnavailable, match="does not answer in time"),
    ):
        store.get("r1", stored[0].name)


def test_an_unreachable_store_is_named_with_the_reason() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with (
            closing(S3Store(url, "bucket", "", Credentials("key", SECRET), patience=QUICK)) as store,
            pytest.raises(StoreUnavailable, match="s3://bucket/ is unavailable: Connection refused"),
        ):
            store.has("r1", bytes(32))


def test_a_changed_chunk_is_tampered_and_a_changed_transfer_is_repeated(
    s3_store: S3Store, s3_client: Client, s3_bucket: str, stored: tuple[Chunk, bytes]
) -> None:
    s3_client.inject(s3_bucket, method="GET", wrong_length=-10, times=1)
    assert s3_store.get("r1", stored[0].name) == stored[1]
    s3_client.put(s3_bucket, f"images/roots/r1/{stored[0].name.hex()}", b"other" + stored[1][5:])
    with pytest.raises(Tampered):
        s3_store.get("r1", stored[0].name)
    s3_client.put(s3_bucket, f"images/roots/r1/{stored[0].name.hex()}", bytes(600_000))
    with pytest.raises(Tampered, match="longer than a chunk"):
        s3_store.get("r1", stored[0].name)


def test_a_server_without_room_is_full(
    s3_store: S3Store, s3_client: Client, s3_bucket: str, stored: tuple[Chunk, bytes]
) -> None:
    s3_client.inject(s3_bucket, method="PUT", status=507)
    with pytest.raises(StoreFull, match=f"s3://{s3_bucket}/images/ is full"):
        s3_store.put("r2", stored[0].name, stored[1])
    assert s3_store.get("r1", stored[0].name) == stored[1]


def test_a_write_whose_answer_was_lost_is_recognized(s3_store: S3Store, s3_client: Client, s3_bucket: str) -> None:
    for method in ("create", "swap"):
        s3_client.inject(s3_bucket, method="PUT", die_after_headers=True, times=1)
        if method == "create":
            assert s3_store.create_object("lease", b"mine")
        else:
            found = s3_store.get_object("lease")
            assert found
            assert s3_store.swap_object("lease", b"mine too", found.version)
    assert not s3_store.create_object("lease", b"mine again")


def test_wrong_credentials_and_buckets_are_refused_at_once(s3: S3Process, s3_bucket: str) -> None:
    with closing(S3Store(s3.url, s3_bucket, "", Credentials(s3.access_key, SECRET), patience=QUICK)) as store:
        with pytest.raises(StoreUnavailable, match="answers 403 SignatureDoesNotMatch"):
            store.get_object("roots")
        assert store.requests == 1
    with closing(S3Store(s3.url, "no-such-bucket", "", s3.credentials, patience=QUICK)) as store:
        with pytest.raises(StoreUnavailable, match="answers 404 NoSuchBucket"):
            store.get_object("roots")
        with pytest.raises(StoreUnavailable):
            store.put("r1", encrypt(b"x", bytes(32))[0].name, b"x")


def test_connections_are_kept(s3_store: S3Store, s3_client: Client, stored: tuple[Chunk, bytes]) -> None:
    s3_client.forget_requests()
    for _ in range(5):
        s3_store.get("r1", stored[0].name)
    assert len({each["connection"] for each in s3_client.requests(at_least=5)}) == 1


class OneAnswer(socketserver.StreamRequestHandler):
    """Answers one request as if the connection could be kept, and closes it."""

    def handle(self) -> None:
        while self.rfile.readline() not in (b"\r\n", b""):
            pass
        self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


def test_a_connection_that_the_server_has_closed_is_replaced() -> None:
    once = Patience(connect_s=5.0, attempt_s=20.0, attempts=1)
    with ClosingServer(OneAnswer) as server:
        store = S3Store(f"http://127.0.0.1:{server.port}", "b", "", Credentials("k", SECRET), patience=once)
        with closing(store):
            for _ in range(3):
                assert not store.has("r1", bytes(32))


def test_more_keys_than_a_page_are_all_listed(s3_store: S3Store, s3_client: Client, s3_bucket: str) -> None:
    names = {encrypt(b"%032d" % number, bytes(32))[0].name for number in range(1100)}
    for name in names:
        s3_client.put(s3_bucket, f"images/roots/r9/{name.hex()}", b"")
    assert set(s3_store.names("r9")) == names


def test_secrets_are_in_no_message_and_no_log(s3: S3Process, caplog: pytest.LogCaptureFixture) -> None:
    settings = StoreSettings(url="s3://bucket/x", endpoint=s3.url, access_key="key", secret_key=SECRET)
    assert SECRET not in repr(settings) and SECRET not in str(settings)
    caplog.set_level(logging.DEBUG)
    with closing(open_store(settings)) as store, pytest.raises(StoreUnavailable) as caught:
        store.get_object("roots")
    assert SECRET not in str(caught.value) + repr(vars(store)) + caplog.text
    with pytest.raises(BadConfig) as refused:
        open_store(StoreSettings(url="s3://bucket", endpoint=f"http://u:{SECRET}@h", access_key="k", secret_key=SECRET))
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("url", ["s3://", "s3:///x", "s3://b/x", "s3://Bucket/x", "s3://bucket-/x", "s3://bucket"])
def test_a_store_without_bucket_or_keys_is_refused(url: str) -> None:
    key = "" if url == "s3://bucket" else "key"
    with pytest.raises(BadConfig, match="s3://BUCKET/PREFIX"):
        open_store(StoreSettings(url=url, access_key=key, secret_key=SECRET))


def test_the_settings_of_a_directory_open_it(tmp_path: Path) -> None:
    (tmp_path / "chunks").mkdir()
    with closing(open_store(StoreSettings(url=str(tmp_path / "chunks")))) as store:
        store.put_object("a", b"1")
    assert (tmp_path / "chunks/objects/a").read_bytes() == b"1"
