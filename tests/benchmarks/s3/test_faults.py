"""Answers that are slow or wrong because a rule wants it."""

from __future__ import annotations

import http.client
import threading
import urllib.error
import urllib.request

import pytest

from benchmarks.s3.client import Client, Refused
from benchmarks.s3.process import S3Process
from tests.benchmarks.s3.raw import Raw

NS = 10**9


def test_a_rule_applies_to_its_keys_and_as_often_as_it_says(bucket: str, client: Client) -> None:
    for key in ("a/1", "a/2", "b"):
        client.put(bucket, key, b"hello")
    client.inject(f"{bucket}/a/", status=503, method="GET", skip=1, times=2)
    statuses = []
    for key in ("a/1", "b", "a/2", "a/1", "a/1"):
        try:
            client.get(bucket, key)
            statuses.append(200)
        except Refused as refused:
            assert refused.code == "SlowDown"
            statuses.append(refused.status)
    assert statuses == [200, 200, 503, 503, 200]
    assert [each["fault"] is not None for each in client.requests()[-5:]] == [False, False, True, True, False]


def test_a_refused_upload_is_not_stored(bucket: str, client: Client) -> None:
    client.inject(f"{bucket}/key", status=500, times=1)
    with pytest.raises(Refused, match="500 InternalError"):
        client.put(bucket, "key", b"hello")
    with pytest.raises(Refused, match="NoSuchKey"):
        client.get(bucket, "key")


def test_the_first_byte_is_delayed(bucket: str, client: Client) -> None:
    client.put(bucket, "key", b"hello")
    client.inject(f"{bucket}/key", delay_s=0.05)
    assert client.get(bucket, "key") == b"hello"
    record = client.requests()[-1]
    assert record["first_byte_ns"] - record["start_ns"] >= 0.05 * NS


def test_a_body_takes_as_long_as_its_bandwidth_says(bucket: str, client: Client) -> None:
    data = bytes(300_000)
    client.put(bucket, "key", data)
    client.inject(f"{bucket}/key", bandwidth_bytes_s=3e6)
    assert client.get(bucket, "key") == data
    record = client.requests()[-1]
    assert record["end_ns"] - record["first_byte_ns"] >= 0.1 * NS


@pytest.mark.parametrize(
    ("rule", "part"),
    [({"truncate_after": 2}, b"he"), ({"wrong_length": 3}, b"hello"), ({"die_after_headers": True}, b"")],
)
def test_an_answer_ends_too_early(
    s3: S3Process, raw: Raw, bucket: str, client: Client, rule: dict[str, int], part: bytes
) -> None:
    client.put(bucket, "key", b"hello")
    client.inject(f"{bucket}/key", **rule)
    with pytest.raises(EOFError) as error:
        raw.get(f"/{bucket}/key")
    assert error.value.args == (part,)
    with s3.client() as other, pytest.raises(http.client.IncompleteRead):
        other.get(bucket, "key")


def test_an_answer_says_that_it_is_shorter_than_it_is(raw: Raw, bucket: str, client: Client) -> None:
    client.put(bucket, "key", b"hello")
    client.inject(f"{bucket}/key", wrong_length=-2)
    assert raw.get(f"/{bucket}/key").body == b"hel"


def test_a_large_body_is_cut_by_a_reset(raw: Raw, bucket: str, client: Client) -> None:
    client.put(bucket, "key", bytes(1_000_000))
    client.inject(f"{bucket}/key", truncate_after=500_000, reset=True)
    with pytest.raises(ConnectionResetError):
        raw.get(f"/{bucket}/key")
    assert client.requests()[-1]["bytes"] == 500_000


def test_a_bad_signature_meets_no_rule(raw: Raw, client: Client) -> None:
    client.inject(status=500)
    assert raw.exchange(raw.signed("GET", "/", unsigned={"x-amz-acl": "private"})).status == 403


@pytest.mark.parametrize(
    "rule",
    [{"delay": 1}, {"delay_s": "1"}, {"delay_s": -1}, {"status": 200}, {"times": -1}, {"bandwidth_bytes_s": 0}],
)
def test_a_rule_that_is_none_is_refused(client: Client, rule: dict[str, object]) -> None:
    with pytest.raises(Refused):
        client.inject("bucket", **rule)


def test_a_request_can_be_waited_for_while_it_is_under_way(bucket: str, s3: S3Process, client: Client) -> None:
    client.put(bucket, "key", b"hello")
    client.forget_requests()
    client.inject(f"{bucket}/key", delay_s=600)
    with Raw(s3) as raw:
        thread = threading.Thread(target=raw.socket.sendall, args=(raw.signed("GET", f"/{bucket}/key"),))
        thread.start()
        (record,) = client.requests(at_least=1)
        thread.join()
    assert (record["method"], record["end_ns"]) == ("GET", 0)


@pytest.mark.parametrize("token", ["", "Bearer ", "Bearer wrong"])
def test_the_admin_token_is_needed(s3: S3Process, token: str) -> None:
    request = urllib.request.Request(f"{s3.url}/-/requests", headers={"Authorization": token} if token else {})
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=10)
    with error.value:
        assert error.value.code == 403
