"""What each worker of a group shows of all: logs, traces, functions and load, and one worker that does not answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pytest

from tests.daemon.groups.workers import Workers
from tests.daemon.running import RunningDaemon
from tests.daemon.services.test_services import files
from tests.daemon.test_events import soon

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]
PRINTS = "def f(event):\n    print('event', event)\n    return event"
BOUND_S = 30
"""More than a worker is waited for, and the start of the command."""


def sockd(daemon: RunningDaemon, *words: str) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, "-m", "sockd", *words], {**os.environ, "SOCKD_STATE_DIR": str(daemon.state)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BOUND_S)


def read(daemon: RunningDaemon, *words: str) -> Any:
    done = sockd(daemon, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def following(daemon: RunningDaemon, *words: str) -> Iterator[IO[str]]:
    """The output of a command that does not end, for the length of a block."""
    environment = {**os.environ, "SOCKD_STATE_DIR": str(daemon.state), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "sockd", *words], env=environment, stdout=subprocess.PIPE, text=True
    )
    deadline = threading.Timer(BOUND_S, process.kill)
    deadline.start()
    try:
        assert process.stdout is not None
        with process.stdout as output:
            yield output
    finally:
        deadline.cancel()
        process.kill()
        process.wait()


def test_each_worker_shows_logs_traces_functions_and_load_of_all(workers: Workers) -> None:
    first, second = (workers.start(name) for name in ("w1", "w2"))
    workers.deploy("prints", PRINTS)
    soon(lambda: len(workers.members("w1")) == len(workers.members("w2")) == 2)
    for number, daemon in enumerate((second, first, second)):
        assert daemon.call("prints", number) == number
    logs = read(first, "logs", "prints")
    assert [(each["worker"], each["text"]) for each in logs] == [
        (worker, f"event {number}\n") for number, worker in enumerate(("w2", "w1", "w2"))
    ]
    assert [each["text"] for each in read(first, "logs", "prints", "-n", "1")] == ["event 2\n"]
    assert " on w2" in sockd(first, "logs", "prints").stdout
    traces = read(first, "trace")
    assert [each["worker"] for each in traces] == ["w2", "w1", "w2"]
    assert [each["worker"] for each in read(second, "trace", "--slowest", "--function", "prints")].count("w1") == 1
    one = read(first, "trace", traces[0]["request_id"])
    assert (one["worker"], bool(one["spans"]), read(first, "trace", "last")["request_id"]) == (
        *("w2", True),
        traces[0]["request_id"],
    )
    assert [(each["name"], each["workers"]) for each in read(first, "ls")] == [("prints", ["w1", "w2"])]
    assert {name: live["functions"][0]["count"] for name, live in read(first, "top").items()} == {"w1": 1, "w2": 2}
    assert "prints on w2" in sockd(first, "top").stdout
    assert read(first, "status", "--worker", "w2")["pid"] == second.pid
    assert [each["text"] for each in read(first, "logs", "prints", "--worker", "w1")] == ["event 1\n"]
    refused = sockd(first, "rm", "prints", "--worker", "w2")
    assert refused.returncode == 2 and "more than read" in refused.stderr


def test_each_worker_lists_the_services_of_all(workers: Workers) -> None:
    first, second = (workers.start(name) for name in ("w1", "w2"))
    workers.deploy("serves", files())
    soon(lambda: len(workers.members("w1")) == 2)
    assert second.request("GET", "/run/serves/").status == 200
    assert [(each["worker"], bool(each["sandbox"])) for each in read(first, "ps")] == [("w1", False), ("w2", True)]
    table = sockd(first, "ps").stdout.splitlines()
    assert table[0].split()[:2] == ["name", "worker"] and [row.split()[1] for row in table[1:]] == ["w1", "w2"]


def test_logs_of_all_workers_are_followed(workers: Workers) -> None:
    first, second = (workers.start(name) for name in ("w1", "w2"))
    workers.deploy("prints", PRINTS)
    soon(lambda: len(workers.members("w1")) == 2)
    for daemon in (first, second):
        daemon.call("prints", "before")
    with following(first, "logs", "-f", "prints", "--json") as output:
        assert {json.loads(output.readline())["worker"] for _ in range(2)} == {"w1", "w2"}
        for name, daemon in (("w2", second), ("w1", first)):
            daemon.call("prints", name)
            line = json.loads(output.readline())
            assert (line["worker"], line["text"]) == (name, f"event {name}\n")
            if not line["ended"]:
                assert json.loads(output.readline())["ended"]


def test_a_worker_that_does_not_answer_is_named_and_the_others_are_shown(workers: Workers) -> None:
    first, second = (workers.start(name) for name in ("w1", "w2"))
    workers.deploy("prints", PRINTS)
    soon(lambda: len(workers.members("w1")) == 2)
    for daemon in (first, second):
        daemon.call("prints", 1)
    with workers.frozen("w2"):
        done = sockd(first, "logs", "prints", "--json")
        assert [each["worker"] for each in json.loads(done.stdout)] == ["w1"]
        assert done.returncode == 0 and "worker w2 does not answer" in done.stderr
        workers.wait_until("w1", w2="gone")
        assert [each["text"] for each in read(first, "logs", "prints")] == ["event 1\n"]
        assert sockd(first, "status", "--worker", "w2").returncode != 0
    workers.wait_until("w1", w2="serving")
    assert len(read(first, "logs", "prints")) == 2
