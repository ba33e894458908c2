"""Requests as events of payload format 2.0."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import parse_qs, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.http.server.messages.fields import HOP_BY_HOP
from sockd.http.urls.event import UrlRequest, event

ID = "abcdefghijklmnopqrstuvwxyz234567"
NAMES = st.sampled_from([b"accept", b"cookie", b"x-a", b"x-b", b"content-type", b"te", b"upgrade", b"x-forwarded-for"])
VALUES = st.binary(max_size=30).map(lambda value: value.translate(None, b"\r\n\0"))


def request(headers: list[tuple[bytes, bytes]] | None = None, **changes: Any) -> UrlRequest:
    plain = UrlRequest(
        url_id=ID,
        domain=f"{ID}.lambda-url.localhost",
        method="POST",
        path="/a%20b/c",
        query="",
        version="1.1",
        headers=headers or [],
        source_ip="127.0.0.1",
        server_port=5000,
        request_id="2b5ad9c8-5a6e-4c09-8b0b-d1f9d4a52c7b",
        time_s=1583348638.390,
    )
    return plain._replace(**changes)


def made(asked: UrlRequest, body: bytes = b"") -> Any:
    return json.loads(event(asked, body))


def test_the_event_of_the_documentation() -> None:
    headers = [
        (b"host", b"localhost:5000"),
        (b"header1", b"value1"),
        (b"header2", b"value1"),
        (b"header2", b"value2"),
        (b"cookie", b"cookie1=1; cookie2=2"),
        (b"user-agent", b"agent"),
        (b"content-type", b"text/plain"),
        (b"connection", b"close, X-Private"),
        (b"x-private", b"1"),
    ]
    query = "parameter1=value1&parameter1=value2&parameter2=value&empty=&%C3%BC=a+b"
    assert made(request(headers, query=query), b"Hello from client!") == {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": "/a%20b/c",
        "rawQueryString": query,
        "cookies": ["cookie1=1", "cookie2=2"],
        "headers": {
            "host": "localhost:5000",
            "header1": "value1",
            "header2": "value1,value2",
            "cookie": "cookie1=1; cookie2=2",
            "user-agent": "agent",
            "content-type": "text/plain",
            "x-forwarded-for": "127.0.0.1",
            "x-forwarded-proto": "http",
            "x-forwarded-port": "5000",
        },
        "queryStringParameters": {"parameter1": "value1,value2", "parameter2": "value", "empty": "", "ü": "a b"},
        "requestContext": {
            "accountId": "anonymous",
            "apiId": ID,
            "domainName": f"{ID}.lambda-url.localhost",
            "domainPrefix": ID,
            "http": {
                "method": "POST",
                "path": "/a%20b/c",
                "protocol": "HTTP/1.1",
                "sourceIp": "127.0.0.1",
                "userAgent": "agent",
            },
            "requestId": "2b5ad9c8-5a6e-4c09-8b0b-d1f9d4a52c7b",
            "routeKey": "$default",
            "stage": "$default",
            "time": "04/Mar/2020:19:03:58 +0000",
            "timeEpoch": 1583348638390,
        },
        "body": "Hello from client!",
        "isBase64Encoded": False,
    }


def test_what_is_not_there_is_not_reported() -> None:
    assert made(request()).keys() & {"cookies", "queryStringParameters", "body"} == set()


def test_who_signed_is_reported_and_the_signature_is_not() -> None:
    reported = made(request([(b"authorization", b"AWS4 secret"), (b"x-amz-date", b"now")], access_key="AKID"))
    assert reported["headers"]["x-amz-date"] == "now"
    assert "authorization" not in reported["headers"]
    assert reported["requestContext"]["accountId"] == "000000000000"
    assert reported["requestContext"]["authorizer"]["iam"]["accessKey"] == "AKID"
    assert "authorization" in made(request([(b"authorization", b"Bearer mine")]))["headers"]


@pytest.mark.parametrize(
    ("content_type", "body", "is_text"),
    [
        (b"text/html", "Grüße\0".encode(), True),
        (b"application/JSON; charset=utf-8", b"{}", True),
        (b"application/problem+xml", b"<a/>", True),
        (b"application/x-www-form-urlencoded", b"a=b", True),
        (b"text/javascript", b"1", True),
        (b"text/plain", b"\xff", False),
        (b"application/octet-stream", b"abc", False),
        (b"", b"abc", False),
    ],
)
def test_a_body_is_text_if_it_is_and_says_so(content_type: bytes, body: bytes, is_text: bool) -> None:
    reported = made(request([(b"content-type", content_type)]), body)
    assert reported["isBase64Encoded"] is not is_text
    assert (reported["body"].encode() if is_text else base64.b64decode(reported["body"])) == body


@given(st.lists(st.tuples(NAMES, VALUES), max_size=12), st.binary(max_size=50), st.text(max_size=20))
def test_any_request_makes_an_event_that_loses_nothing(
    headers: list[tuple[bytes, bytes]], body: bytes, value: str
) -> None:
    query = f"q={quote_plus(value, errors='replace')}&flag"
    asked = request(headers, query=query)
    reported = made(asked, body)
    assert reported["rawQueryString"] == query
    assert reported["queryStringParameters"]["q"] == parse_qs(query, keep_blank_values=True)["q"][0]
    assert not reported["headers"].keys() & HOP_BY_HOP
    for name, _ in headers:
        values = [each.decode("latin-1") for other, each in headers if other == name]
        if name.decode() not in HOP_BY_HOP and name != b"cookie":
            assert reported["headers"][name.decode()] == ",".join(values)
    content = reported.get("body", "")
    assert (base64.b64decode(content) if reported["isBase64Encoded"] else content.encode()) == body
