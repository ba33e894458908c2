"""The benchmarks' HTTP client, against the in-process server that `warm` uses as its peer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.harness.client import AnswerParser, BadAnswer, Client, closed_loop, request
from benchmarks.harness.load import Load, drive, drive_by_python
from benchmarks.harness.results import Result
from benchmarks.warm import Server, add_functions, in_process_server

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer-Timing: queue;dur=0.5, exec;dur=1.25\r\n\r\n{}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with in_process_server() as running:
        yield running


def test_an_answer_in_pieces_is_one_answer() -> None:
    parser = AnswerParser()
    pieces = [parser.feed(ANSWER[index : index + 1]) for index in range(len(ANSWER))]
    assert pieces[:-1] == [None] * (len(ANSWER) - 1)
    assert pieces[-1] is not None
    assert pieces[-1][0] == 200
    assert pieces[-1][2] == b"{}"


def test_two_answers_do_not_mix() -> None:
    parser = AnswerParser()
    assert parser.feed(ANSWER) == parser.feed(ANSWER)


def test_the_end_of_the_stream_is_an_error() -> None:
    with pytest.raises(BadAnswer, match="closed the connection"):
        AnswerParser().feed(b"")


def test_an_answer_without_length_is_an_error() -> None:
    with pytest.raises(BadAnswer, match="Content-Length"):
        AnswerParser().feed(b"HTTP/1.1 200 OK\r\n\r\n")


def test_one_connection_serves_many_requests(server: Server) -> None:
    with Client(server.host, server.port) as client:
        answers = [client.invoke("echo", b'{"n": %d}' % number) for number in range(3)]
    assert [answer.body for answer in answers] == [b'{"n": 0}', b'{"n": 1}', b'{"n": 2}']
    assert not answers[0].cold
    assert answers[0].phases_ms() == {"queue": 0.0, "setup": 0.0, "init": 0.0, "exec": 0.0}


@pytest.mark.parametrize(("concurrency", "count"), [(1, 5), (3, 10), (10, 3), (2, 0)])
def test_a_closed_loop_answers_every_request_once(server: Server, concurrency: int, count: int) -> None:
    requests = [request("echo", b"%d" % number) for number in range(count)]
    bodies = [answer.body for answer in closed_loop(server.host, server.port, concurrency, requests)]
    assert sorted(bodies) == sorted(b"%d" % number for number in range(count))


def test_load_is_counted(server: Server) -> None:
    load = drive(server.host, server.port, [request("echo", b"{}"), request("echo", b"[1]")], concurrency=2, seconds=1)
    assert load.requests > 0
    assert load.p50_ms <= load.p99_ms


def test_load_by_the_python_client_has_percentiles_of_each_function(server: Server) -> None:
    requests = [request("popular", b"1"), request("popular", b"2"), request("rare", b"3")]
    load = drive_by_python(server.host, server.port, requests, concurrency=2, seconds=0.2)
    assert set(load.functions) == {"popular", "rare"}
    assert all(0 < p50_ms <= p99_ms <= 60_000 for p50_ms, p99_ms in load.functions.values())
    assert min(p99_ms for _, p99_ms in load.functions.values()) <= load.p99_ms


def test_each_function_has_a_row_where_the_load_generator_tells_functions_apart() -> None:
    result = Result("warm")
    seen = [Load(1000, 2, 9, 1000, {"popular": (p50_ms, 9.0), "rare": (1.0, 2.0)}) for p50_ms in (3.0, 4.0, 5.0)]
    add_functions({"sockd": seen, "wrk": [Load(1000, 2, 9, 1000)]}, "drawn", 64, result)
    assert result.row("sockd, popular of drawn, 64 at once", "p50").p50 == 4.0
    assert result.row("sockd, rare of drawn, 64 at once", "p99").p50 == 2.0
    assert len(result.rows) == 4


def test_connections_that_go_are_replaced(server: Server) -> None:
    last = request("echo", b"1").replace(b"Content-Type", b"Connection: close\r\nContent-Type")
    answers = list(closed_loop(server.host, server.port, 2, [last, request("echo", b"2")] * 4))
    assert sorted(answer.body for answer in answers) == [b"1"] * 4 + [b"2"] * 4
    assert sum(answer.last for answer in answers) == 4
    assert drive_by_python(server.host, server.port, [last], concurrency=2, seconds=0.2).requests > 0
