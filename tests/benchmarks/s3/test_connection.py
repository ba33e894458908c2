"""HTTP as a hand-written client speaks it: one connection, ranges, preconditions, and what must be refused."""

from __future__ import annotations

import base64
import hashlib
import zlib

import pytest

from benchmarks.s3.chunks import UNSIGNED_TRAILER
from benchmarks.s3.client import Client, Refused
from tests.benchmarks.s3.raw import Raw


def test_one_connection_serves_request_after_request(raw: Raw, bucket: str, client: Client) -> None:
    assert raw.put(f"/{bucket}/key", b"hello").status == 200
    whole = raw.get(f"/{bucket}/key")
    part = raw.get(f"/{bucket}/key", headers={"Range": "bytes=1-3", "If-Match": whole.headers["etag"]})
    assert (whole.status, whole.body, whole.headers["accept-ranges"]) == (200, b"hello", "bytes")
    assert (part.status, part.body, part.headers["content-range"]) == (206, b"ell", "bytes 1-3/5")
    assert part.headers["etag"] == whole.headers["etag"] == f'"{hashlib.md5(b"hello").hexdigest()}"'
    other = raw.get(f"/{bucket}/key", headers={"Range": "bytes=1-3", "If-Match": '"other"'})
    assert (other.status, other.code) == (412, "PreconditionFailed")
    assert raw.get(f"/{bucket}/key", headers={"If-None-Match": whole.headers["etag"]}).status == 304
    assert raw.get(f"/{bucket}/never").code == "NoSuchKey"
    assert raw.get(f"/{bucket}/key").body == b"hello"
    assert len({each["connection"] for each in client.requests()[-6:]}) == 1


@pytest.mark.parametrize(
    ("text", "status", "body", "content_range"),
    [
        ("bytes=0-0", 206, b"h", "bytes 0-0/5"),
        ("bytes=3-", 206, b"lo", "bytes 3-4/5"),
        ("bytes=3-99", 206, b"lo", "bytes 3-4/5"),
        ("bytes=-2", 206, b"lo", "bytes 3-4/5"),
        ("bytes=-99", 206, b"hello", "bytes 0-4/5"),
        ("bytes=5-", 416, None, "bytes */5"),
        ("bytes=-0", 416, None, "bytes */5"),
        ("bytes=3-1", 200, b"hello", None),
        ("bytes=0-1,3-4", 200, b"hello", None),
        ("lines=0-1", 200, b"hello", None),
        ("bytes=-", 200, b"hello", None),
    ],
)
def test_ranges(raw: Raw, bucket: str, text: str, status: int, body: bytes | None, content_range: str | None) -> None:
    raw.put(f"/{bucket}/key", b"hello")
    answer = raw.get(f"/{bucket}/key", headers={"Range": text})
    assert (answer.status, answer.headers.get("content-range")) == (status, content_range)
    if body is None:
        assert answer.code == "InvalidRange"
    else:
        assert answer.body == body


def test_an_empty_object_has_no_range(raw: Raw, bucket: str) -> None:
    raw.put(f"/{bucket}/empty", b"")
    answer = raw.get(f"/{bucket}/empty", headers={"Range": "bytes=0-"})
    assert (answer.status, answer.headers["content-range"]) == (416, "bytes */0")
    whole = raw.get(f"/{bucket}/empty")
    assert (whole.status, whole.body) == (200, b"")


def test_a_head_tells_the_length_and_sends_nothing(raw: Raw, bucket: str) -> None:
    raw.put(f"/{bucket}/key", b"hello")
    head = raw.exchange(raw.signed("HEAD", f"/{bucket}/key"))
    assert (head.status, head.headers["content-length"]) == (200, "5")
    missing = raw.exchange(raw.signed("HEAD", f"/{bucket}/never"))
    assert missing.status == 404
    assert raw.get(f"/{bucket}/key").body == b"hello"


def test_requests_may_come_together(raw: Raw, bucket: str) -> None:
    raw.put(f"/{bucket}/key", b"hello")
    raw.socket.sendall(raw.signed("GET", f"/{bucket}/key") * 3)
    assert [raw.receive().body for _ in range(3)] == [b"hello"] * 3


def test_a_large_object_comes_whole(raw: Raw, bucket: str) -> None:
    data = bytes(range(256)) * 20_000
    assert raw.put(f"/{bucket}/key", data).status == 200
    assert raw.get(f"/{bucket}/key").body == data


def test_the_client_is_asked_to_go_on_before_it_sends(raw: Raw, bucket: str) -> None:
    expecting = {"Content-Length": "5", "Expect": "100-continue"}
    raw.socket.sendall(raw.signed("PUT", f"/{bucket}/key", payload=b"hello", unsigned=expecting))
    assert raw.receive().status == 100
    assert raw.exchange(b"hello").status == 200


def test_who_is_refused_is_not_asked_to_go_on(raw: Raw, bucket: str) -> None:
    expecting = {"Content-Length": "5", "Expect": "100-continue", "x-amz-acl": "private"}
    answer = raw.exchange(raw.signed("PUT", f"/{bucket}/key", payload=b"hello", unsigned=expecting))
    assert (answer.status, answer.code, answer.headers["connection"]) == (403, "AccessDenied", "close")
    assert raw.at_end()


def test_a_refused_body_does_not_end_the_connection(raw: Raw, bucket: str) -> None:
    data = b"x" * 300_000
    assert raw.put("/never-a-bucket/key", data).code == "NoSuchBucket"
    assert raw.put(f"/{bucket}/key", data).status == 200


def test_a_body_that_is_not_what_was_signed_is_not_stored(raw: Raw, bucket: str) -> None:
    length = {"Content-Length": "5"}
    answer = raw.exchange(raw.signed("PUT", f"/{bucket}/key", payload=b"hello", unsigned=length) + b"hallo")
    assert (answer.status, answer.code) == (400, "XAmzContentSHA256Mismatch")
    assert raw.get(f"/{bucket}/key").code == "NoSuchKey"
    assert raw.get(f"/{bucket}", "list-type=2").body.count(b"<Key>") == 0


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Content-MD5": base64.b64encode(hashlib.md5(b"other").digest()).decode()}, "BadDigest"),
        ({"Content-MD5": "short"}, "InvalidDigest"),
        ({"x-amz-checksum-crc32": base64.b64encode(bytes(4)).decode()}, "BadDigest"),
        ({"x-amz-checksum-sha256": "?"}, "BadDigest"),
        ({"x-amz-server-side-encryption-customer-algorithm": "AES256"}, "NotImplemented"),
        ({"x-amz-meta-much": "x" * 2048}, "MetadataTooLarge"),
    ],
)
def test_an_upload_that_does_not_keep_its_word_is_refused(
    raw: Raw, bucket: str, headers: dict[str, str], code: str
) -> None:
    assert raw.put(f"/{bucket}/key", b"hello", headers).code == code
    assert raw.get(f"/{bucket}/key").code == "NoSuchKey"


def trailing_checksum(data: bytes, checksum: bytes) -> bytes:
    trailer = b"x-amz-checksum-crc32:" + base64.b64encode(checksum)
    half = len(data) // 2
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (data[:half], data[half:]) if part)
    return chunks + b"0\r\n" + trailer + b"\r\n\r\n"


@pytest.mark.parametrize("outer", ["length", "chunks"])
def test_a_body_with_a_trailing_checksum(raw: Raw, bucket: str, outer: str) -> None:
    data = b"hello" * 20_000

    def send(checksum: bytes, decoded_length: int = len(data)) -> tuple[int, bytes]:
        body = trailing_checksum(data, checksum)
        headers = {
            "Content-Encoding": "aws-chunked",
            "x-amz-decoded-content-length": str(decoded_length),
            "x-amz-trailer": "x-amz-checksum-crc32",
        }
        if outer == "chunks":
            framing = {"Transfer-Encoding": "chunked"}
            body = b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (9, body[:9], len(body) - 9, body[9:])
        else:
            framing = {"Content-Length": str(len(body))}
        head = raw.signed("PUT", f"/{bucket}/key", headers=headers, payload=UNSIGNED_TRAILER, unsigned=framing)
        answer = raw.exchange(head + body)
        return answer.status, answer.body

    right = zlib.crc32(data).to_bytes(4, "big")
    assert send(right) == (200, b"")
    answer = raw.get(f"/{bucket}/key")
    assert answer.body == data
    assert "content-encoding" not in answer.headers
    assert b"BadDigest" in send(bytes(4))[1]
    assert b"IncompleteBody" in send(right, len(data) + 1)[1]
    assert raw.get(f"/{bucket}/key").body == data


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n folded: line\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : h\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET relative HTTP/1.1\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"x" * 70_000,
    ],
    ids=lambda data: repr(data[:50]),
)
def test_what_is_not_http_ends_the_connection(raw: Raw, data: bytes) -> None:
    answer = raw.exchange(data)
    assert (answer.status, answer.code) == (400, "BadRequest")
    assert raw.at_end()


def test_anonymous_requests_are_refused_whatever_they_ask(raw: Raw, bucket: str, client: Client) -> None:
    client.put(bucket, "key", b"hello")
    host = f" HTTP/1.1\r\nHost: {raw.host}\r\n"
    for line in ("GET /", f"GET /{bucket}", f"GET /{bucket}/key", f"DELETE /{bucket}/key", f"HEAD /{bucket}/never"):
        answer = raw.exchange(f"{line}{host}\r\n".encode())
        assert answer.status == 403
    put = raw.exchange(f"PUT /{bucket}/key{host}Content-Length: 5\r\n\r\nhallo".encode())
    assert (put.status, put.code) == (403, "AccessDenied")
    assert client.get(bucket, "key") == b"hello"


def test_a_path_that_is_no_text_is_refused(raw: Raw, bucket: str) -> None:
    assert raw.get(f"/{bucket}/%ff").code == "InvalidURI"
    assert raw.get(f"/{bucket}/" + "k" * 1025).code == "KeyTooLongError"
    assert raw.get("/../etc").code == "NoSuchBucket"
    assert raw.exchange(raw.signed("PUT", "/..")).code == "InvalidBucketName"


def test_the_log_tells_when_and_what(raw: Raw, bucket: str, client: Client) -> None:
    raw.put(f"/{bucket}/key", b"hello")
    raw.get(f"/{bucket}/key", headers={"Range": "bytes=1-2"})
    put, get = client.requests()[-2:]
    assert (put["method"], put["path"], put["status"], put["received_bytes"]) == ("PUT", f"/{bucket}/key", 200, 5)
    assert (get["method"], get["range"], get["status"], get["bytes"]) == ("GET", "bytes=1-2", 206, 2)
    assert put["start_ns"] <= put["first_byte_ns"] <= put["end_ns"] <= get["start_ns"]


def test_the_small_client_pages_and_names_errors(bucket: str, client: Client) -> None:
    keys = [f"{number:04}" for number in range(1005)]
    for key in keys:
        client.put(bucket, key, b"")
    assert list(client.list(bucket)) == keys
    assert list(client.list(bucket, "0007")) == ["0007"]
    with pytest.raises(Refused, match="404 NoSuchKey"):
        client.get(bucket, "never")
    client.make_bucket(bucket, exist_ok=True)
    reply = client.get_range(bucket, "0000", 0, 0) if client.put(bucket, "0000", b"ab") else None
    assert reply and reply.body == b"a"
