"""boto3 as it comes, with its defaults, against the server."""

from __future__ import annotations

import contextlib
import io
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import boto3
import pytest
import urllib3.util
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

from benchmarks.s3.client import Client
from benchmarks.s3.process import S3Process
from tests.benchmarks.s3.boto import boto_client

MIB = 1 << 20
KEYS = [
    "plain",
    "with space+plus%25percent",
    "a//b/../c/./d",
    "../../../etc/passwd",
    "/leading",
    "trailing/",
    "ünïcödé/日本語/😀",
    "&<>\"'\r\n\t",
    "k" * 1024,
    ".lock",
    "bucket.json",
]


def code_of(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


@pytest.mark.parametrize("key", KEYS, ids=lambda key: repr(key)[:30])
def test_any_key_can_be_stored_listed_read_and_deleted(boto: Any, bucket: str, key: str) -> None:
    boto.put_object(Bucket=bucket, Key=key, Body=key.encode())
    assert boto.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()
    assert [each["Key"] for each in boto.list_objects_v2(Bucket=bucket)["Contents"]] == [key]
    boto.delete_object(Bucket=bucket, Key=key)
    with pytest.raises(ClientError) as error:
        boto.head_object(Bucket=bucket, Key=key)
    assert code_of(error) == "404"


def test_a_large_file_goes_up_in_parts_and_comes_down_in_parallel_ranges(
    boto: Any, bucket: str, client: Client, tmp_path: Path
) -> None:
    data = os.urandom(20 * MIB + 12345)
    (tmp_path / "up").write_bytes(data)
    boto.upload_file(str(tmp_path / "up"), bucket, "large")
    client.inject(bucket, method="GET", delay_s=0.3)  # for all to be under way before the first has ended
    boto.download_file(bucket, "large", str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == data
    uploads = [each for each in client.requests() if each["method"] == "PUT" and "partNumber" in each["query"]]
    downloads = [each for each in client.requests() if each["method"] == "GET"]
    assert [each["received_bytes"] for each in sorted(uploads, key=lambda each: str(each["query"]))] == [
        8 * MIB,
        8 * MIB,
        4 * MIB + 12345,
    ]
    assert {each["status"] for each in downloads} == {206}
    assert len({each["connection"] for each in downloads}) > 1


def test_a_stream_goes_up(boto: Any, bucket: str) -> None:
    data = os.urandom(9 * MIB)
    boto.upload_fileobj(io.BytesIO(data), bucket, "stream", Config=TransferConfig(multipart_threshold=5 * MIB))
    result = io.BytesIO()
    boto.download_fileobj(bucket, "stream", result)
    assert result.getvalue() == data
    assert boto.head_object(Bucket=bucket, Key="stream")["ETag"].endswith('-2"')


def test_an_upload_does_not_wait_to_be_asked_to_go_on(boto: Any, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # botocore asks with Expect: 100-continue, and sends without an answer after 1 s; here it has more patience.
    reported: list[bool] = []
    wait = urllib3.util.wait_for_read

    def wait_longer(sock: Any, timeout: float) -> bool:
        reported.append(wait(sock, 15))
        return reported[-1]

    monkeypatch.setattr(urllib3.util, "wait_for_read", wait_longer)
    boto.put_object(Bucket=bucket, Key="key", Body=io.BytesIO(b"x" * 4096))
    assert reported == [True]


def test_listing_pages_and_groups(boto: Any, bucket: str) -> None:
    keys = [f"a/{number}" for number in range(5)] + ["b", "c/d/e", "c/f", "g"]
    for key in keys:
        boto.put_object(Bucket=bucket, Key=key, Body=b"")
    pages = list(boto.get_paginator("list_objects_v2").paginate(Bucket=bucket, PaginationConfig={"PageSize": 2}))
    assert [[each["Key"] for each in page["Contents"]] for page in pages] == [
        ["a/0", "a/1"],
        ["a/2", "a/3"],
        ["a/4", "b"],
        ["c/d/e", "c/f"],
        ["g"],
    ]
    pages = list(
        boto.get_paginator("list_objects_v2").paginate(Bucket=bucket, Delimiter="/", PaginationConfig={"PageSize": 1})
    )
    assert [
        (page.get("CommonPrefixes") or page["Contents"])[0].get("Prefix") or page["Contents"][0]["Key"]
        for page in pages
    ] == ["a/", "b", "c/", "g"]
    page = boto.list_objects_v2(Bucket=bucket, Prefix="c/", Delimiter="/", FetchOwner=True)
    assert [each["Prefix"] for each in page["CommonPrefixes"]] == ["c/d/"]
    assert [each["Key"] for each in page["Contents"]] == ["c/f"]
    assert boto.list_objects_v2(Bucket=bucket, StartAfter="c/d/e")["KeyCount"] == 2
    assert boto.list_objects_v2(Bucket=bucket, Prefix="none")["KeyCount"] == 0
    first = boto.list_objects(Bucket=bucket, MaxKeys=2)
    rest = boto.list_objects(Bucket=bucket, Marker=first["Contents"][-1]["Key"])
    assert [each["Key"] for each in first["Contents"] + rest["Contents"]] == keys


def test_attributes_come_back(boto: Any, bucket: str) -> None:
    boto.put_object(
        Bucket=bucket,
        Key="key",
        Body=b"hello",
        ContentType="text/plain",
        CacheControl="no-cache",
        Metadata={"colour": "green"},
    )
    head = boto.head_object(Bucket=bucket, Key="key")
    assert head["ETag"] == '"5d41402abc4b2a76b9719d911017c592"'
    assert (head["ContentLength"], head["ContentType"], head["CacheControl"]) == (5, "text/plain", "no-cache")
    assert head["Metadata"] == {"colour": "green"}
    assert abs(head["LastModified"].timestamp() - time.time()) < 60


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
def test_checksums_are_verified_kept_and_given_back(boto: Any, bucket: str, algorithm: str) -> None:
    boto.put_object(Bucket=bucket, Key="key", Body=b"hello", ChecksumAlgorithm=algorithm)
    answer = boto.get_object(Bucket=bucket, Key="key")
    assert answer[f"Checksum{algorithm}"]
    assert answer["Body"].read() == b"hello"  # and botocore compares
    assert f"Checksum{algorithm}" not in boto.get_object(Bucket=bucket, Key="key", Range="bytes=1-2")
    with pytest.raises(ClientError) as error:
        boto.put_object(
            Bucket=bucket, Key="key", Body=b"other", **{f"Checksum{algorithm}": answer[f"Checksum{algorithm}"]}
        )
    assert code_of(error) == "BadDigest"
    assert boto.get_object(Bucket=bucket, Key="key")["Body"].read() == b"hello"


def test_several_objects_are_deleted_at_once(boto: Any, bucket: str) -> None:
    for key in "abc":
        boto.put_object(Bucket=bucket, Key=key, Body=b"")
    gone = boto.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "a"}, {"Key": "c"}, {"Key": "never"}]})
    assert [each["Key"] for each in gone["Deleted"]] == ["a", "c", "never"]
    assert [each["Key"] for each in boto.list_objects_v2(Bucket=bucket)["Contents"]] == ["b"]


def test_a_copy_is_an_object_of_its_own(boto: Any, bucket: str) -> None:
    boto.put_object(Bucket=bucket, Key="from here", Body=b"hello", Metadata={"a": "b"})
    boto.copy_object(Bucket=bucket, Key="to", CopySource={"Bucket": bucket, "Key": "from here"})
    boto.delete_object(Bucket=bucket, Key="from here")
    copied = boto.get_object(Bucket=bucket, Key="to")
    assert copied["Body"].read() == b"hello"
    assert copied["Metadata"] == {"a": "b"}


def test_conditions_hold(boto: Any, bucket: str) -> None:
    etag = boto.put_object(Bucket=bucket, Key="key", Body=b"hello")["ETag"]
    assert boto.get_object(Bucket=bucket, Key="key", IfMatch=etag, Range="bytes=1-3")["Body"].read() == b"ell"
    with pytest.raises(ClientError) as error:
        boto.get_object(Bucket=bucket, Key="key", IfMatch='"other"')
    assert code_of(error) == "PreconditionFailed"
    with pytest.raises(ClientError) as error:
        boto.get_object(Bucket=bucket, Key="key", IfNoneMatch=etag)
    assert code_of(error) == "304"
    with pytest.raises(ClientError) as error:
        boto.put_object(Bucket=bucket, Key="key", Body=b"again", IfNoneMatch="*")
    assert code_of(error) == "PreconditionFailed"
    boto.put_object(Bucket=bucket, Key="key", Body=b"again", IfMatch=etag)
    with pytest.raises(ClientError) as error:
        boto.put_object(Bucket=bucket, Key="key", Body=b"thrice", IfMatch=etag)
    assert code_of(error) == "PreconditionFailed"


def test_multipart_is_strict(boto: Any, bucket: str) -> None:
    upload = boto.create_multipart_upload(Bucket=bucket, Key="key")["UploadId"]
    names = {"Bucket": bucket, "Key": "key", "UploadId": upload}
    tags = {number: boto.upload_part(**names, PartNumber=number, Body=b"tiny")["ETag"] for number in (1, 2)}

    def complete(*parts: tuple[int, str]) -> None:
        wanted = [{"PartNumber": number, "ETag": etag} for number, etag in parts]
        boto.complete_multipart_upload(**names, MultipartUpload={"Parts": wanted})

    for parts, code in (
        (((1, tags[1]), (2, tags[2])), "EntityTooSmall"),
        (((2, tags[2]), (1, tags[1])), "InvalidPartOrder"),
        (((1, '"other"'),), "InvalidPart"),
        (((3, tags[1]),), "InvalidPart"),
    ):
        with pytest.raises(ClientError) as error:
            complete(*parts)
        assert code_of(error) == code
    assert [part["PartNumber"] for part in boto.list_parts(**names)["Parts"]] == [1, 2]
    assert [each["UploadId"] for each in boto.list_multipart_uploads(Bucket=bucket)["Uploads"]] == [upload]
    complete((2, tags[2]))
    assert boto.get_object(Bucket=bucket, Key="key")["Body"].read() == b"tiny"
    with pytest.raises(ClientError) as error:
        boto.abort_multipart_upload(**names)
    assert code_of(error) == "NoSuchUpload"


def test_buckets_come_and_go(boto: Any, bucket: str) -> None:
    assert bucket in [each["Name"] for each in boto.list_buckets()["Buckets"]]
    boto.head_bucket(Bucket=bucket)
    boto.put_object(Bucket=bucket, Key="key", Body=b"")
    with pytest.raises(ClientError) as error:
        boto.delete_bucket(Bucket=bucket)
    assert code_of(error) == "BucketNotEmpty"
    with pytest.raises(ClientError) as error:
        boto.create_bucket(Bucket=bucket)
    assert code_of(error) == "BucketAlreadyOwnedByYou"
    boto.delete_object(Bucket=bucket, Key="key")
    boto.delete_bucket(Bucket=bucket)
    for call in (boto.get_object, boto.delete_object):
        with pytest.raises(ClientError) as error:
            call(Bucket=bucket, Key="key")
        assert code_of(error) == "NoSuchBucket"


def test_errors_have_names(boto: Any, bucket: str) -> None:
    with pytest.raises(ClientError) as error:
        boto.get_object(Bucket=bucket, Key="never")
    assert code_of(error) == "NoSuchKey"
    with pytest.raises(ClientError) as error:
        boto.put_bucket_policy(Bucket=bucket, Policy="{}")
    assert code_of(error) == "NotImplemented"


@pytest.mark.parametrize("version", [{}, {"signature_version": "s3v4"}])
def test_presigned_urls_work_until_they_expire(
    s3: S3Process, session: boto3.Session, bucket: str, version: dict[str, str]
) -> None:
    with contextlib.closing(boto_client(session, s3, **version)) as boto:
        names = {"Bucket": bucket, "Key": "a key/ü"}
        request = urllib.request.Request(boto.generate_presigned_url("put_object", names), b"hello", method="PUT")
        request.add_header("Content-Type", "")
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200
        url = boto.generate_presigned_url("get_object", names | {"ResponseContentType": "text/x-odd"})
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert answer.read() == b"hello"
            assert answer.headers["Content-Type"] == "text/x-odd"
        refused = {
            url.replace("a%20key", "a%20kez"): "SignatureDoesNotMatch",
            url.replace("odd", "even"): "SignatureDoesNotMatch",
            s3.url + f"/{bucket}/a%20key/%C3%BC": "AccessDenied",
        }
    for wrong, code in refused.items():
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(wrong, timeout=10)
        with error.value:
            assert error.value.code in (400, 403)
            assert code.encode() in error.value.read()


def test_a_wrong_secret_is_refused(s3: S3Process, session: boto3.Session, bucket: str) -> None:
    with contextlib.closing(boto_client(session, s3, "wrong")) as boto:
        with pytest.raises(ClientError) as error:
            boto.list_objects_v2(Bucket=bucket)
        assert code_of(error) == "SignatureDoesNotMatch"
        with pytest.raises(ClientError) as error:
            boto.put_object(Bucket=bucket, Key="key", Body=b"x" * 100_000)
        assert code_of(error) == "SignatureDoesNotMatch"
