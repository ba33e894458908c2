"""Answers of services' programs, as they are read: whole, in pieces, without a length, broken."""

from __future__ import annotations

import pytest

from sockd.base.errors import ServiceAnswerLost
from sockd.functions.services.http_relay import HEAD_BYTES, AnswerReader

SWITCHES = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\nX-Own: a\r\n\r\n"


def read(data: bytes, *, step: int, has_body: bool = True, ends: bool = False) -> AnswerReader:
    """What is read of bytes that come in steps. Args: ends: the connection ends behind them."""
    answer = AnswerReader(has_body=has_body)
    for start in range(0, len(data), step):
        answer.feed(data[start : start + step])
    if ends:
        answer.feed(b"")
    return answer


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize(
    "framed",
    [
        b"Content-Length: 5\r\n\r\nhello",
        b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\nX-Trailer: 1\r\n\r\n",
    ],
)
def test_an_answer_is_complete_with_its_last_byte(framed: bytes, step: int) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    answer = read(early + b"HTTP/1.1 201 Created\r\nX-Own: a\r\n" + framed, step=step)
    assert answer.is_complete and answer.status == 201 and b"".join(answer.pieces) == b"hello"
    assert (b"x-own", b"a") in answer.headers and not any(name == b"link" for name, _ in answer.headers)


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    data = b"HTTP/1.1 200 OK\r\n\r\nhello"
    assert not read(data, step=4).is_complete
    assert read(data, step=4, ends=True).is_complete


@pytest.mark.parametrize(
    "data", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell"]
)
def test_an_answer_that_ends_early_is_lost(data: bytes) -> None:
    with pytest.raises(ServiceAnswerLost, match="before the end"):
        read(data, step=100, ends=True)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP"),
        (SWITCHES, "another protocol"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * HEAD_BYTES, "longer than"),
    ],
)
def test_what_is_no_answer_of_http_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(ServiceAnswerLost, match=words):
        read(data, step=1 << 20)


@pytest.mark.parametrize("step", [1, 1000])
def test_an_answer_that_switches_as_was_asked_gives_what_follows_it(step: int) -> None:
    answer, data = AnswerReader(has_body=True, may_switch=True), SWITCHES + b"the other protocol"
    while data and not answer.status:
        answer.feed(data[:step])
        data = data[step:]
    assert answer.status == 101 and (b"x-own", b"a") in answer.headers
    assert answer.early + data == b"the other protocol"


def test_one_that_does_not_switch_is_an_answer_as_any() -> None:
    answer = AnswerReader(has_body=True, may_switch=True)
    answer.feed(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
    assert (answer.status, answer.is_complete, answer.pieces) == (403, True, [b"no"])


@pytest.mark.parametrize(("status", "has_body"), [(200, False), (204, True), (304, True)])
def test_an_answer_that_has_no_body_is_complete_with_its_head(status: int, has_body: bool) -> None:
    data = b"HTTP/1.1 %d Words\r\nContent-Length: 5\r\n\r\n" % status
    assert read(data, step=100, has_body=has_body).is_complete
