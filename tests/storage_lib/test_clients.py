"""Clients of boto3 that a function makes itself: the same responses as without an initscript, some of them without a request."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore.client
import pytest
from boto3.s3.transfer import TransferConfig
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.storage_lib.conftest import S3, Observer
from tests.storage_lib.engine_end import EngineEnd

DATA = b"an object" * 1000
GET = ("s3.GetObject", "bkt", "a b/c+d")
KEY = GET[2]


@pytest.fixture
def session() -> boto3.Session:
    return boto3.Session()


@pytest.fixture
def network(storage: Any, s3: S3, session: boto3.Session) -> Any:
    """A client that nothing is served to."""
    s3.put(KEY, DATA)
    client = session.client("s3")
    yield client
    client.close()


@pytest.fixture
def client(
    storage: Any, network: Any, session: boto3.Session, engine: EngineEnd, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """One of a function that has an initscript, which has fetched the object."""
    creator = botocore.client.ClientCreator
    monkeypatch.setattr(creator, "create_client", creator.create_client)
    from sockd_storage import clients

    clients.attend(botocore.client, dict(os.environ))
    engine.sent(1, *GET)
    engine.message(1, DATA, *GET, headers=headers_of(network.get_object(Bucket="bkt", Key=KEY)))
    client = session.client("s3")
    yield client
    client.close()
    sys.modules.pop("sockd_storage.clients")


def headers_of(response: dict[str, Any]) -> dict[str, str]:
    headers: dict[str, str] = response["ResponseMetadata"]["HTTPHeaders"]
    return headers


def reported(response: dict[str, Any]) -> dict[str, Any]:
    """All of a response; its body is read."""
    with response["Body"] as body:
        return {**response, "Body": [type(body), body.read()]}


def test_an_object_is_the_response_that_the_network_gives(client: Any, network: Any, s3: S3) -> None:
    expected = reported(network.get_object(Bucket="bkt", Key=KEY))
    s3.client.forget_requests()
    found = reported(client.get_object(Bucket="bkt", Key=KEY))
    for response in (expected, found):  # of two requests
        response["ResponseMetadata"].pop("RequestId", None)
        for name in ("date", "x-amz-request-id"):
            headers_of(response).pop(name, None)
    assert found == expected and found["Body"][1] == DATA
    assert s3.requests("GET") == []


def test_resources_and_streams_read_it_too(client: Any, session: boto3.Session, s3: S3) -> None:
    resource = session.resource("s3")
    s3.client.forget_requests()
    chunks = list(resource.Object("bkt", KEY).get()["Body"].iter_chunks(1000))
    assert b"".join(chunks) == DATA and len(chunks) == 9
    assert s3.requests("GET") == []
    resource.meta.client.close()


def test_the_head_of_an_object_is_served(client: Any, network: Any, s3: S3, engine: EngineEnd) -> None:
    expected = network.head_object(Bucket="bkt", Key=KEY)
    engine.message(2, json.dumps(headers_of(expected)).encode(), "s3.HeadObject", "bkt", KEY)
    s3.client.forget_requests()
    assert client.head_object(Bucket="bkt", Key=KEY) == expected
    assert s3.requests("HEAD") == []


@pytest.mark.parametrize(
    "more",
    [
        {"Range": "bytes=-2", "IfNoneMatch": "x"},
        {"IfNoneMatch": '"another"'},
        {"ResponseContentType": "text/plain"},
        {"ExpectedBucketOwner": "123456789012"},
    ],
)
def test_a_request_that_says_more_is_sent(client: Any, s3: S3, more: dict[str, str]) -> None:
    s3.client.forget_requests()
    client.get_object(Bucket="bkt", Key=KEY, **more)["Body"].close()
    assert len(s3.requests("GET")) == 1
    assert reported(client.get_object(Bucket="bkt", Key=KEY))["Body"][1] == DATA
    assert len(s3.requests("GET")) == 1


def test_the_head_of_an_object_is_in_the_reply_to_its_get(client: Any, network: Any, s3: S3, tmp_path: Path) -> None:
    """Once; the object stays for its own read."""
    expected = network.head_object(Bucket="bkt", Key=KEY)
    s3.client.forget_requests()
    found = client.head_object(Bucket="bkt", Key=KEY)
    headers = headers_of(expected)
    assert {name: found[name] for name in ("ContentLength", "ETag", "LastModified", "ContentType")} == {
        name: expected[name] for name in ("ContentLength", "ETag", "LastModified", "ContentType")
    }
    assert headers_of(found).keys() >= headers.keys() - {"date"} and s3.client.requests() == []
    assert reported(client.get_object(Bucket="bkt", Key=KEY))["Body"][1] == DATA
    assert s3.client.requests() == []
    assert client.head_object(Bucket="bkt", Key=KEY)["ETag"] == expected["ETag"]
    assert len(s3.requests("HEAD")) == 1


def test_a_second_head_is_sent(client: Any, s3: S3, tmp_path: Path) -> None:
    s3.client.forget_requests()
    for number in range(3):
        client.head_object(Bucket="bkt", Key=KEY)
        assert len(s3.requests("HEAD")) == number
    client.download_file("bkt", KEY, str(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == DATA
    assert (len(s3.requests("HEAD")), s3.requests("GET")) == (3, [])


def test_download_file_uses_a_head_and_a_get(
    client: Any, network: Any, s3: S3, engine: EngineEnd, tmp_path: Path
) -> None:
    head = headers_of(network.head_object(Bucket="bkt", Key=KEY))
    engine.message(2, json.dumps(head).encode(), "s3.HeadObject", "bkt", KEY)
    s3.client.forget_requests()
    client.download_file("bkt", KEY, str(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == DATA
    assert s3.client.requests() == []


def test_a_large_file_is_put_together_of_ranges(
    client: Any, network: Any, s3: S3, engine: EngineEnd, tmp_path: Path
) -> None:
    head = network.head_object(Bucket="bkt", Key=KEY)
    engine.message(2, json.dumps(headers_of(head)).encode(), "s3.HeadObject", "bkt", KEY)
    for number, span in enumerate(("bytes=0-3999", "bytes=4000-7999", "bytes=8000-"), 3):
        part = network.get_object(Bucket="bkt", Key=KEY, Range=span, IfMatch=head["ETag"])
        engine.message(number, part["Body"].read(), *GET, span, status=206, headers=headers_of(part))
    s3.client.forget_requests()
    parts = TransferConfig(multipart_threshold=5000, multipart_chunksize=4000)
    client.download_file("bkt", KEY, str(tmp_path / "file"), Config=parts)
    assert (tmp_path / "file").read_bytes() == DATA
    assert s3.client.requests() == []


def test_ranges_are_slices_of_a_whole_object_each_byte_once(
    client: Any, s3: S3, engine: EngineEnd, tmp_path: Path
) -> None:
    parts = TransferConfig(multipart_threshold=5000, multipart_chunksize=4000)
    s3.client.forget_requests()
    client.download_file("bkt", KEY, str(tmp_path / "file"), Config=parts)
    assert (tmp_path / "file").read_bytes() == DATA
    assert s3.client.requests() == []
    for wanted, expected in (("bytes=8990-", DATA[8990:]), ("bytes=-10", DATA[-10:])):
        reply = client.get_object(Bucket="bkt", Key=KEY, Range=wanted)
        assert (reply["Body"].read(), reply["ContentRange"]) == (expected, "bytes 8990-8999/9000")
    assert len(s3.requests("GET")) == 2


def test_a_slice_is_the_response_that_the_network_gives(client: Any, network: Any, s3: S3) -> None:
    for asked in ({"Range": "bytes=5-9"}, {"Range": "bytes=4000-99999"}):
        responses = [reported(each.get_object(Bucket="bkt", Key=KEY, **asked)) for each in (network, client)]
        for response in responses:
            response["ResponseMetadata"].pop("RequestId", None)
            for name in ("date", "x-amz-request-id"):
                headers_of(response).pop(name, None)
        assert responses[0] == responses[1]
    assert len(s3.requests("GET")) == 3, "with that of the fixture"


def test_slices_are_checked_after_a_write(client: Any, s3: S3, engine: EngineEnd, observer: Observer) -> None:
    assert client.get_object(Bucket="bkt", Key=KEY, Range="bytes=0-1")["Body"].read() == DATA[:2]
    observer.has_written = True
    s3.client.put("bkt", KEY, b"0123456789")
    engine.checked(1, same=False)
    assert client.get_object(Bucket="bkt", Key=KEY, Range="bytes=2-3")["Body"].read() == b"23"


def test_a_part_of_another_version_is_sent_for(client: Any, s3: S3, engine: EngineEnd) -> None:
    headers = {"etag": '"another"', "content-length": "2", "content-range": f"bytes 0-1/{len(DATA)}"}
    engine.message(2, b"??", *GET, "bytes=0-1", status=206, headers=headers)
    etag = client.head_object(Bucket="bkt", Key=KEY)["ETag"]
    s3.client.forget_requests()
    assert client.get_object(Bucket="bkt", Key=KEY, Range="bytes=0-1", IfMatch=etag)["Body"].read() == DATA[:2]
    assert len(s3.requests("GET")) == 1


def test_another_key_or_none_is_the_networks_to_judge(client: Any, s3: S3, session: boto3.Session) -> None:
    own = s3.server.env()
    keys = {name.lower(): own[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    strangers = [
        session.client("s3", aws_access_key_id="stranger", aws_secret_access_key="x"),
        session.client("s3", **keys, aws_session_token="of another role"),
        session.client("s3", config=Config(signature_version=UNSIGNED)),
        session.client("s3", endpoint_url=s3.server.url.replace("127.0.0.1", "localhost")),
    ]
    s3.client.forget_requests()
    for number, stranger in enumerate(strangers, 1):
        try:
            assert reported(stranger.get_object(Bucket="bkt", Key=KEY))["Body"][1] == DATA
        except ClientError:
            pass
        stranger.close()
        assert len(s3.requests("GET")) == number
    assert reported(client.get_object(Bucket="bkt", Key=KEY))["Body"][1] == DATA
    assert len(s3.requests("GET")) == len(strangers)


def test_after_a_write_the_engine_is_asked_first(client: Any, s3: S3, engine: EngineEnd, observer: Observer) -> None:
    observer.has_written = True
    s3.client.put("bkt", KEY, b"new")
    engine.checked(1, same=False)
    s3.client.forget_requests()
    assert reported(client.get_object(Bucket="bkt", Key=KEY))["Body"][1] == b"new"
    assert len(s3.requests("GET")) == 1


def test_each_read_after_a_write_is_checked_anew(client: Any, s3: S3, engine: EngineEnd, observer: Observer) -> None:
    """The head and its object are of one reply."""
    observer.has_written = True
    engine.checked(1, same=True)
    assert client.head_object(Bucket="bkt", Key=KEY)["ContentLength"] == len(DATA)
    s3.client.put("bkt", KEY, b"new")
    engine.checked(1, same=False)
    assert reported(client.get_object(Bucket="bkt", Key=KEY))["Body"][1] == b"new"


def test_each_read_is_asked_to_the_trace_once(
    client: Any, storage: Any, s3: S3, engine: EngineEnd, function: Callable[[str], Any]
) -> None:
    s3.put("other", b"2")
    client.get_object(Bucket="bkt", Key=KEY)["Body"].read()
    client.get_object(Bucket="bkt", Key="other")["Body"].read()
    with pytest.raises(ClientError):
        client.get_object(Bucket="bkt", Key="absent")
    client.put_object(Bucket="bkt", Key="written", Body=b"3")
    assert storage.download_stream("bkt", "other") == b"2"
    assert [(rpc[2], served) for rpc, served in engine.reads()] == [
        (KEY, "region"),
        ("other", "network"),
        ("absent", "network"),
        ("other", "network"),
    ]


@pytest.mark.parametrize(
    ("variables", "url", "found"),
    [
        ({"AWS_ENDPOINT_URL_S3": "http://s3.local:9000/"}, "http://s3.local:9000/bkt/a%20b", ("bkt", "a b")),
        ({"AWS_ENDPOINT_URL": "http://s3.local:9000"}, "http://bkt.s3.local:9000/a/b", ("bkt", "a/b")),
        ({"AWS_REGION": "eu-west-1"}, "https://bkt.s3.eu-west-1.amazonaws.com/a", ("bkt", "a")),
        ({}, "https://bkt.s3.amazonaws.com//a", ("bkt", "/a")),
        ({}, "https://bkt.s3.amazonaws.com/a?versionId=1", None),
        ({}, "https://bkt.s3.amazonaws.com/", None),
        ({}, "https://s3.us-east-1.amazonaws.com/bkt", None),
        ({}, "http://bkt.s3.amazonaws.com/a", None),
        ({}, "https://bkt.s3.eu-west-1.amazonaws.com/a", None),
        ({}, "https://bkt.s3-accelerate.amazonaws.com/a", None),
    ],
)
def test_objects_by_their_urls(
    storage: Any, variables: dict[str, str], url: str, found: tuple[str, str] | None
) -> None:
    from sockd_storage.clients import Known

    assert Known(variables).object_of(url) == found
