"""The HTTP client: kept connections, what becomes of requests whose connection breaks, and waits between attempts."""

from __future__ import annotations

import socketserver
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import ClassVar

import pytest

from sockd.base.http_client.connection import BROKEN
from sockd.base.http_client.pool import Answer, ConnectionPool, TooLong
from sockd.base.http_client.retries import Again, GaveUp, Retries, Stopped
from tests.support.servers.closing_server import ClosingServer

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Scripted(socketserver.StreamRequestHandler):
    """Sends the next answer of `answers` for each request, and closes the connection at an empty one."""

    answers: ClassVar[list[bytes]] = []
    connections = 0

    def handle(self) -> None:
        type(self).connections += 1
        while self.rfile.readline():
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            answer = self.answers.pop(0)
            if not answer:
                return
            self.wfile.write(answer)


@contextmanager
def server(*answers: bytes) -> Iterator[str]:
    """A server that gives these answers, one for each request."""
    Scripted.answers, Scripted.connections = list(answers), 0
    with ClosingServer(Scripted) as running:
        yield f"http://127.0.0.1:{running.port}"


def get(pool: ConnectionPool, limit_bytes: int = 100) -> Answer:
    return pool.exchange("GET", "/", {"Host": pool.host}, b"", limit_bytes=limit_bytes, deadline_s=20)


def test_exchanges_one_after_another_share_a_connection() -> None:
    with server(OK, OK, OK) as url, closing(ConnectionPool(url, connect_s=5)) as pool:
        assert [get(pool).body for _ in range(3)] == [b"ok"] * 3
        assert Scripted.connections == 1


def test_a_request_under_which_a_kept_connection_closed_is_repeated_if_it_may_be() -> None:
    with server(OK, b"", OK) as url, closing(ConnectionPool(url, connect_s=5, repeats=True)) as pool:
        assert not get(pool).is_repeated
        assert get(pool).is_repeated
    with server(OK, b"", OK) as url, closing(ConnectionPool(url, connect_s=5)) as pool:
        get(pool)
        with pytest.raises(ConnectionError):
            get(pool)


def test_a_request_on_a_new_connection_that_closes_is_not_repeated() -> None:
    with server(b"", OK) as url, closing(ConnectionPool(url, connect_s=5, repeats=True)) as pool:
        with pytest.raises(ConnectionError):
            get(pool)
        assert get(pool).body == b"ok"


def test_a_body_above_the_limit_is_refused_and_its_connection_not_used_again() -> None:
    with server(OK, OK) as url, closing(ConnectionPool(url, connect_s=5)) as pool:
        with pytest.raises(TooLong):
            get(pool, limit_bytes=1)
        assert get(pool).body == b"ok"
        assert Scripted.connections == 2


def test_a_closed_pool_connects_no_more() -> None:
    with server(OK) as url:
        pool = ConnectionPool(url, connect_s=5)
        get(pool)
        pool.close()
        with pytest.raises(BROKEN, match="closed"):
            get(pool)


def test_attempts_end_with_an_answer_or_with_the_last_reason() -> None:
    retries = Retries(3, 0.001)
    numbers: list[int] = []

    def attempt(number: int) -> str:
        numbers.append(number)
        raise Again("busy") if number == 1 else ConnectionResetError(104, "Connection reset by peer")

    with pytest.raises(GaveUp, match="Connection reset by peer"):
        retries.run(attempt)
    assert numbers == [1, 2, 3]
    assert retries.run(lambda number: "answer") == "answer"


def test_a_wait_doubles_unless_the_server_asks_for_one_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    retries = Retries(5, 0.001)
    monkeypatch.setattr(retries._stopped, "wait", waits.append)
    for failures, asked_s in ((1, 7), (1, 100_000), (1, None), (2, None), (20, None)):
        retries.pause(failures, asked_s)
    assert waits == [7, 30.0, 0.001, 0.002, 30.0]


def test_stopped_retries_attempt_nothing_and_wait_for_nothing() -> None:
    retries = Retries(5, 30)
    retries.stop()
    with pytest.raises(Stopped):
        retries.run(lambda number: number)
    with pytest.raises(Stopped):
        retries.pause(1)
