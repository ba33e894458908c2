"""Lists that a function asks boto3 for: what its initscript has asked for with the same parameters, and nothing else."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.storage_lib.conftest import S3, Observer
from tests.storage_lib.engine_end import EngineEnd
from tests.storage_lib.test_clients import KEY, client, headers_of, network, session

__all__ = ["client", "network", "session"]
LIST = "s3.ListObjectsV2"


def listed(response: dict[str, Any]) -> dict[str, Any]:
    """A LIST without what differs between two of the same."""
    response["ResponseMetadata"].pop("RequestId", None)
    for name in ("date", "x-amz-request-id"):
        headers_of(response).pop(name, None)
    return response


def fetch_list(s3: S3, engine: EngineEnd, number: int, prefix: str) -> None:
    """The script has made a LIST: the engine does not have its keys encoded."""
    answer = s3.client.list_page("bkt", prefix)
    engine.message(number, answer.body, LIST, "bkt", prefix, headers=answer.headers)


def test_a_list_is_the_response_that_the_network_gives(
    client: Any, network: Any, s3: S3, engine: EngineEnd, observer: Observer
) -> None:
    for key in ("d/plain", "d/a b+c%20d", "d/<&>\"'", "d/ä/€"):
        s3.put(key, b"1")
    for number, prefix in enumerate(("d/", "d/a b", "none"), 5):
        expected = listed(network.list_objects_v2(Bucket="bkt", Prefix=prefix))
        fetch_list(s3, engine, number, prefix)
        s3.client.forget_requests()
        assert listed(client.list_objects_v2(Bucket="bkt", Prefix=prefix)) == expected
        assert s3.requests("GET") == []
        assert expected["KeyCount"] == {"d/": 4, "d/a b": 1, "none": 0}[prefix]


def test_a_list_whose_keys_xml_cannot_hold_is_sent(client: Any, s3: S3, engine: EngineEnd) -> None:
    s3.put("control/\x01", b"1")
    fetch_list(s3, engine, 5, "control/")
    found = client.list_objects_v2(Bucket="bkt", Prefix="control/")
    assert [entry["Key"] for entry in found["Contents"]] == ["control/\x01"]


def test_each_page_of_a_list_is_served(client: Any, s3: S3, engine: EngineEnd) -> None:
    engine.message(5, page("a", more="t+1"), LIST, "bkt", "", headers={"content-type": "application/xml"})
    engine.message(6, page("b"), LIST, "bkt", "", "t+1", headers={"content-type": "application/xml"})
    s3.client.forget_requests()
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="bkt")
    assert [entry["Key"] for each in pages for entry in each["Contents"]] == ["a", "b"]
    assert s3.requests("GET") == []


def page(*keys: str, more: str = "") -> bytes:
    entries = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    token = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    return f"<ListBucketResult>{token}{entries}</ListBucketResult>".encode()


PAGES: list[tuple[dict[str, Any], list[str]]] = [
    ({"Delimiter": "/"}, ["", "/", "", ""]),
    ({"Delimiter": "a+b "}, ["", "a+b ", "", ""]),
    ({"MaxKeys": 2}, ["", "", "2", ""]),
    ({"MaxKeys": 1}, ["", "", "1", ""]),
    ({"StartAfter": "d/a b+c%20d"}, ["", "", "", "d/a b+c%20d"]),
    ({"Delimiter": "/", "MaxKeys": 2, "StartAfter": "d/<&>\"'"}, ["", "/", "2", "d/<&>\"'"]),
]


def fetch_page(network: Any, engine: EngineEnd, number: int, asked: dict[str, Any], words: list[str]) -> None:
    """The script has asked for a page: what S3 says to it without encoding."""
    seen: dict[str, Any] = {}

    def leave_out_encoding(params: dict[str, Any], **_: Any) -> None:
        params["query_string"].pop("encoding-type", None)

    network.meta.events.register("before-call.s3.ListObjectsV2", leave_out_encoding)
    network.meta.events.register("before-parse.s3.ListObjectsV2", lambda response_dict, **_: seen.update(response_dict))
    network.list_objects_v2(Bucket="bkt", **asked)
    network.meta.events.unregister("before-call.s3.ListObjectsV2", leave_out_encoding)
    headers = {name.lower(): value for name, value in seen["headers"].items()}
    engine.message(number, seen["body"], LIST, "bkt", asked.get("Prefix", ""), *words, headers=headers)


def test_a_page_is_served_to_the_request_with_the_very_same_parameters(
    client: Any, network: Any, s3: S3, engine: EngineEnd, observer: Observer
) -> None:
    for key in ("d/plain", "d/a b+c%20d", "d/<&>\"'", "d/ä/€", "d/ä/f", "e/a"):
        s3.put(key, b"1")
    expected = [listed(network.list_objects_v2(Bucket="bkt", Prefix="d/", **asked)) for asked, _ in PAGES]
    for number, (asked, words) in enumerate(PAGES, 5):
        fetch_page(network, engine, number, {"Prefix": "d/", **asked}, words)
    s3.client.forget_requests()
    for (asked, _), response in reversed(list(zip(PAGES, expected, strict=True))):
        assert listed(client.list_objects_v2(Bucket="bkt", Prefix="d/", **asked)) == response
    assert s3.requests("GET") == []


OTHERS: list[dict[str, Any]] = [
    {"Delimiter": "/"},
    {"MaxKeys": 3},
    {"Delimiter": "/", "MaxKeys": 2},
    {"Delimiter": "/", "MaxKeys": 3, "StartAfter": "a"},
    {"Delimiter": "/", "MaxKeys": 3, "ContinuationToken": "YQ=="},
    {"Delimiter": "/", "MaxKeys": 3, "Prefix": "d"},
    {"Delimiter": "", "MaxKeys": 3},
    {"Delimiter": "/", "MaxKeys": 3, "FetchOwner": True},
]


@pytest.mark.parametrize("asked", OTHERS)
def test_a_page_is_served_to_no_other_request(
    client: Any, network: Any, s3: S3, engine: EngineEnd, asked: dict[str, Any]
) -> None:
    fetch_page(network, engine, 5, {"Delimiter": "/", "MaxKeys": 3}, ["", "/", "3", ""])
    s3.client.forget_requests()
    with contextlib.suppress(Exception):  # the server may know no such token
        client.list_objects_v2(Bucket="bkt", **asked)
    assert len(s3.requests("GET")) == 1


@pytest.mark.parametrize("more", [{"Delimiter": "/"}, {"MaxKeys": 1}, {"StartAfter": "a"}, {"FetchOwner": True}])
def test_a_list_that_says_more_is_sent(client: Any, s3: S3, engine: EngineEnd, more: dict[str, Any]) -> None:
    fetch_list(s3, engine, 5, "")
    s3.client.forget_requests()
    client.list_objects_v2(Bucket="bkt", **more)
    assert len(s3.requests("GET")) == 1


@pytest.mark.parametrize("same", [True, False])
def test_a_list_is_checked_after_a_write(
    client: Any, s3: S3, engine: EngineEnd, observer: Observer, same: bool
) -> None:
    fetch_list(s3, engine, 5, "a")
    observer.has_written = True
    engine.checked(5, same=same)
    s3.client.forget_requests()
    assert [entry["Key"] for entry in client.list_objects_v2(Bucket="bkt", Prefix="a")["Contents"]] == [KEY]
    assert len(s3.requests("GET")) == (0 if same else 1)
    assert engine.reads() == [([LIST, "bkt", "a"], "region" if same else "network")]
