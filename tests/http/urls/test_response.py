"""What functions return, as HTTP answers; and what they return to break out of one."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.http.urls.response import HEADERS_BYTES, BadReply, Reply, lines, reply

JSON = [("content-type", "application/json")]
LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+: [\t\x20-\x7e\x80-\xff]*")


def returned(value: object) -> Reply:
    return reply(json.dumps(value).encode())


@pytest.mark.parametrize("value", [None, 3, True, [1, 2], {}, {"body": "x"}, {"headers": 7, "cookies": {}}])
def test_json_is_sent_as_it_is(value: object) -> None:
    assert returned(value) == Reply(200, JSON, json.dumps(value).encode())


def test_a_string_is_its_text() -> None:
    assert returned('Grüße "x"') == Reply(200, JSON, 'Grüße "x"'.encode())


def test_an_answer_in_full() -> None:
    answer = {
        "statusCode": 201,
        "headers": {"Content-Type": "text/html", "X-Count": 3, "X-On": True, "X-None": None, "X-Two": ["a", "b"]},
        "cookies": ["a=1; HttpOnly", "b=2"],
        "body": "<p>é</p>",
        "isBase64Encoded": False,
        "more": {"deep": []},
    }
    fields = [
        ("content-type", "text/html"),
        ("x-count", "3"),
        ("x-on", "true"),
        ("x-two", "a"),
        ("x-two", "b"),
        ("set-cookie", "a=1; HttpOnly"),
        ("set-cookie", "b=2"),
    ]
    assert returned(answer) == Reply(201, fields, "<p>é</p>".encode())


def test_a_status_is_enough() -> None:
    assert returned({"statusCode": "404"}) == Reply(404, JSON, b"")
    nothing = dict.fromkeys(("body", "headers", "cookies", "isBase64Encoded"))
    assert returned({"statusCode": 299, **nothing}) == Reply(299, JSON, b"")
    assert returned({"statusCode": 200, "body": {"a": [1]}}).body == b'{"a": [1]}'


def test_bytes_come_in_base64() -> None:
    content = bytes(range(256))
    answer = {"statusCode": 200, "body": base64.b64encode(content).decode(), "isBase64Encoded": True}
    assert returned(answer).body == content


def test_what_is_not_the_functions_to_say_is_dropped() -> None:
    names = ["Connection", "Transfer-Encoding", "Content-Length", "Upgrade", "Keep-Alive", "Date"]
    names += ["X-Sockd-Cold", "X-Sockd-Signature", "X-Amzn-RequestId", "X-Amzn-Trace-Id"]
    assert returned({"statusCode": 200, "headers": dict.fromkeys(names, "x")}).fields == JSON


def test_beyond_latin_1_a_value_is_utf_8() -> None:
    fields = returned({"statusCode": 200, "headers": {"x": "→ü"}}).fields
    assert dict(fields)["x"].encode("latin-1").decode() == "→ü"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"statusCode": 99}, "statusCode"),
        ({"statusCode": 100}, "statusCode"),
        ({"statusCode": 600}, "statusCode"),
        ({"statusCode": "2e2"}, "statusCode"),
        ({"statusCode": "200\r\nx: y"}, "statusCode"),
        ({"statusCode": None}, "statusCode"),
        ({"statusCode": [200]}, "statusCode"),
        ({"statusCode": True}, "statusCode"),
        ({"statusCode": 200, "headers": []}, "headers"),
        ({"statusCode": 200, "headers": {"a": {"b": 1}}}, "headers"),
        ({"statusCode": 200, "headers": {"a\r\nb": "1"}}, "name of a header"),
        ({"statusCode": 200, "headers": {"a:": "1"}}, "name of a header"),
        ({"statusCode": 200, "headers": {"": "1"}}, "name of a header"),
        ({"statusCode": 200, "headers": {"ü": "1"}}, "name of a header"),
        ({"statusCode": 200, "headers": {"location": "/\r\nset-cookie: a=b"}}, "control"),
        ({"statusCode": 200, "headers": {"x": "a\nb"}}, "control"),
        ({"statusCode": 200, "headers": {"x": ["a", "b\0"]}}, "control"),
        ({"statusCode": 200, "cookies": ["a=b\r\n\r\n<script>"]}, "control"),
        ({"statusCode": 200, "cookies": "a=b"}, "cookies"),
        ({"statusCode": 200, "headers": {"x": "y" * HEADERS_BYTES}}, "bytes"),
        ({"statusCode": 200, "headers": {f"x{n}": "y" for n in range(257)}}, "there are 257"),
        ({"statusCode": 200, "headers": {"x": ["y"] * 200}, "cookies": ["a=b"] * 57}, "there are 257"),
        ({"statusCode": 200, "headers": {"x": "y" * 10_000_000}}, "its JSON may have"),
        ({"statusCode": 200, "cookies": ["y" * 1000] * 70}, "bytes"),
        ({"statusCode": 200, "body": "not base64!", "isBase64Encoded": True}, "base64"),
        ({"statusCode": 200, "isBase64Encoded": "yes"}, "isBase64Encoded"),
    ],
)
def test_an_answer_that_cannot_be_one(answer: Any, words: str) -> None:
    with pytest.raises(BadReply, match=words):
        returned(answer)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'"open',
        b'{"statusCode": 200} trailing',
        b'{"a":' * 100_000,
        b'"\xff"',
        b'"half \\ud83d"',
        b'"half \\ude00"',
    ],
)
def test_what_is_no_json(body: bytes) -> None:
    with pytest.raises(BadReply):
        reply(body)


TEXTS = st.text(max_size=12) | st.sampled_from(["a\r\nb: c", "\n", "\0", "x" * 300, "Set-Cookie", "é", "\ud800"])
SCALARS = st.none() | st.booleans() | st.integers() | TEXTS
ANSWERS = st.fixed_dictionaries(
    {"statusCode": st.integers(200, 599) | SCALARS},
    optional={
        "headers": st.dictionaries(TEXTS, SCALARS | st.lists(SCALARS, max_size=3), max_size=4) | SCALARS,
        "cookies": st.lists(TEXTS, max_size=3) | SCALARS,
        "body": SCALARS,
        "isBase64Encoded": SCALARS,
    },
)


@given(ANSWERS)
def test_no_answer_ends_a_header_or_begins_another(answer: dict[str, Any]) -> None:
    try:
        status, fields, body = returned(answer)
    except BadReply:
        return
    assert 200 <= status <= 599
    assert isinstance(body, bytes)
    written = lines(fields).encode("latin-1").split(b"\r\n")
    assert written.pop() == b""
    assert len(written) == len(fields)
    assert all(LINE.fullmatch(line) for line in written)
    assert sum(line.startswith(b"set-cookie: ") for line in written) >= len(answer.get("cookies") or ())
