"""HAProxy in front of a group: one worker for each function, and no failed request while workers are replaced."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.groups.workers import DRAIN_NOTICE_S, Workers, front, worker_of
from tests.daemon.test_events import soon
from tests.support.caller import Caller
from tests.support.cases import case
from tests.support.watch import Watch

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]
NAMES = ("w1", "w2", "w3")
CALLS = 50
"""Calls through the front before a worker is replaced, and after."""


@pytest.fixture
def drain_notice_s() -> float:
    return DRAIN_NOTICE_S


@pytest.fixture
def port(workers: Workers, tmp_path: Path) -> Iterator[int]:
    """The front's, with three workers behind it that have `echo`."""
    for name in NAMES:
        workers.start(name)
    workers.deploy("echo", "def f(event): return event")
    with front(workers.addresses, tmp_path) as port:
        yield port


def test_all_calls_of_a_function_reach_one_worker_however_they_name_it(port: int, workers: Workers) -> None:
    name, arn = "echo", "arn%3Aaws%3Alambda%3Alocal%3A000000000000%3Afunction%3Aecho"
    first, *others = workers.by_name.values()
    assert first.manage("POST", f"/functions/{name}/versions").status == 200
    soon(lambda: all(each.run(f"{name}:1").status == 200 for each in others))
    paths = [
        f"/run/{name}",
        f"/run/{name}:1",
        f"/run/{name}%3A%24LATEST",
        f"/2015-03-31/functions/{name}/invocations",
        f"/2015-03-31/functions/{name}/invocations?Qualifier=1",
        f"/2015-03-31/functions/{arn}/invocations",
        f"/2015-03-31/functions/{arn}%3A1/invocations",
        f"/2015-03-31/functions/000000000000%3Afunction%3A{name}/invocations",
    ]
    assert len({worker_of(port, path) for path in paths for _ in range(5)}) == 1


def test_functions_are_spread_over_the_workers(port: int, workers: Workers) -> None:
    names = [f"f{number}" for number in range(24)]
    for name in names:
        workers.deploy(name, "def f(event): return event")
    found = [worker_of(port, f"/run/{name}") for name in names]
    assert set(found) == set(NAMES)
    again = [worker_of(port, f"/run/{name}") for name in names]
    assert found == again


def test_what_workers_ask_each_other_is_not_reached_through_the_front(port: int, workers: Workers) -> None:
    paths = ("/group", "/group/status", "//group/status", "/%67roup/logs", "/group/traces?limit=1")
    found = {path: _asked(port, path) for path in paths}
    assert {path: answer[0] for path, answer in found.items()} == dict.fromkeys(paths, 404)
    assert [worker for _, worker in found.values()] == [None] * len(paths)
    assert _asked(port, "/healthz")[1] in NAMES


def _asked(port: int, path: str) -> tuple[int, str | None]:
    """Return the status of an answer, and the worker that gave it, if one did."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.headers["x-sockd-worker"]


@case("W5", "each worker is stopped and started while a function is called through HAProxy", expect="no call fails")
def test_no_call_fails_while_each_worker_is_stopped_and_started_again(port: int, workers: Workers) -> None:
    caller = Caller.start(port, "echo")
    try:
        watch = Watch(caller, [])
        watch.begin(0.002)
        for name in NAMES:
            caller.wait_for(CALLS)
            assert workers.by_name[name].terminate() == 0
            caller.wait_for(CALLS)
            workers.start(name)
        watch.end()
    finally:
        caller.close()
    assert watch.wrong == [] and len(watch.ms) > 2 * CALLS * len(NAMES)


@case("W6", "kill -9 of the worker of a function while it is called", expect="at most one failed call of a connection")
def test_at_most_one_call_of_a_connection_fails_when_its_worker_is_killed(port: int, workers: Workers) -> None:
    caller = Caller.start(port, "echo")
    try:
        watch = Watch(caller, [])
        watch.begin(0.002)
        caller.wait_for(CALLS)
        workers.kill(worker_of(port, "/run/echo"))
        caller.wait_for(CALLS)
        watch.end()
    finally:
        caller.close()
    assert len(watch.wrong) <= 1, watch.wrong
