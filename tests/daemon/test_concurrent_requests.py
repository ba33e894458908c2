"""Many requests at once: how many run, who waits, who is next, and that each is answered exactly once."""

from __future__ import annotations

import json
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.daemon.gate import Gate
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.support.threads import at_once, in_background

WAITS = {"f.py": "from gate import wait\ndef f(event):\n return wait(event[0], str(event[1]))", "gate.py": Gate.CODE}


@pytest.fixture(scope="module")
def config() -> str:
    return "[sandbox]\nmemory_mb = 1024\n[zygote]\nspares = 2\n"


def test_as_many_run_at_once_as_the_concurrency_says_and_no_more(daemon: RunningDaemon, gate: Gate) -> None:
    daemon.deploy("three", WAITS, concurrency=3, timeout_s=20)
    with in_background(lambda: at_once(9, lambda n: daemon.call("three", [gate.port, n]))) as answers:
        seen = []
        for _ in range(3):
            seen += [gate.arrived() for _ in range(3)]
            assert daemon.status()["sandboxes"]["busy"] == 3
            assert gate.nobody_comes()
            gate.open()
        assert answers() == ["go"] * 9
    assert sorted(map(int, seen)) == list(range(9))


def test_requests_are_served_first_in_first_out(daemon: RunningDaemon, gate: Gate) -> None:
    daemon.deploy("fifo", WAITS, concurrency=1, timeout_s=20)
    with ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(daemon.call, "fifo", [gate.port, 0])]
        assert gate.arrived() == "0"
        for number in range(1, 6):
            calls.append(pool.submit(daemon.call, "fifo", [gate.port, number]))
            wait_until_queued(daemon, number)
        for number in range(1, 6):
            gate.open()
            assert gate.arrived() == str(number)
        gate.open()
        assert [call.result() for call in calls] == ["go"] * 6


def test_a_request_whose_client_hung_up_in_the_queue_is_not_run(daemon: RunningDaemon, gate: Gate) -> None:
    daemon.deploy("left", WAITS, concurrency=1, timeout_s=20)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(daemon.call, "left", [gate.port, 0])
        assert gate.arrived() == "0"
        body = json.dumps([gate.port, 1]).encode()
        with socket.create_connection(("127.0.0.1", daemon.port)) as client:
            client.sendall(
                b"POST /run/left HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )
            wait_until_queued(daemon, 1)
        last = pool.submit(daemon.call, "left", [gate.port, 2])
        wait_until_queued(daemon, 2)
        gate.open()
        assert gate.arrived() == "2"
        gate.open()
        assert [first.result(), last.result()] == ["go"] * 2


def wait_until_queued(daemon: RunningDaemon, count: int) -> None:
    """Returns when so many requests wait for the function's one place."""
    while daemon.status()["queued"] < count:
        pass


def test_a_burst_of_three_hundred_requests_is_answered_each_exactly_once(daemon: RunningDaemon) -> None:
    """OpenLambda weakness 1: requests were lost, and their clients hung for ever."""
    daemon.deploy(
        "burst",
        "import os\nserved = []\ndef f(event, context):\n"
        "    served.append(event)\n"
        "    return [event, context.aws_request_id, served.count(event)]\n",
        concurrency=4,
        memory_mb=64,
    )
    answers = at_once(300, lambda n: daemon.run("burst", f"id-{n}"))
    assert Counter(answer.status for answer in answers) == {200: 300}
    assert [answer.json[0] for answer in answers] == [f"id-{n}" for n in range(300)]
    assert all(answer.json[2] == 1 for answer in answers)
    ids = {answer.json[1] for answer in answers}
    assert len(ids) == 300 and ids == {answer.headers["x-amzn-requestid"] for answer in answers}
    assert len({answer.headers["x-sockd-sandbox"] for answer in answers}) <= 4


def test_a_burst_at_sandboxes_that_die_half_of_the_time_loses_no_one(daemon: RunningDaemon) -> None:
    daemon.deploy(
        "mortal", "import os\ndef f(event):\n if event % 2: os._exit(1)\n return event", concurrency=4, memory_mb=64
    )
    answers = at_once(40, lambda n: daemon.run("mortal", n))
    assert [answer.status for answer in answers] == [502 if n % 2 else 200 for n in range(40)]
    assert daemon.status()["sandboxes"]["busy"] == 0


def test_bursts_at_many_functions_at_once_are_not_mixed_up(daemon: RunningDaemon) -> None:
    for number in range(8):
        daemon.deploy(f"one-of-{number}", f"def f(event): return [{number}, event]", memory_mb=64, concurrency=3)
    answers = at_once(80, lambda n: daemon.call(f"one-of-{n % 8}", n))
    assert answers == [[n % 8, n] for n in range(80)]


def test_a_client_that_leaves_does_not_take_its_place_with_it(daemon: RunningDaemon, gate: Gate) -> None:
    import socket

    daemon.deploy("left", WAITS, concurrency=1, timeout_s=20)
    with socket.create_connection(("127.0.0.1", daemon.port)) as client:
        body = f'[{gate.port}, "gone"]'.encode()
        client.sendall(
            b"POST /run/left HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        assert gate.arrived() == "gone"
    with in_background(lambda: daemon.call("left", [gate.port, "next"])) as answer:
        gate.open()
        assert gate.arrived() == "next"
        gate.open()
        assert answer() == "go"


def test_reserved_memory_is_there_for_its_function_when_others_have_all_the_rest(
    daemon: RunningDaemon, gate: Gate
) -> None:
    daemon.deploy("vip", "def f(event): return event", memory_mb=128, concurrency=2, reserved_memory_mb=256)
    daemon.deploy("greedy", WAITS, memory_mb=128, concurrency=20, timeout_s=20)
    try:
        with ThreadPoolExecutor(20) as pool:
            calls = [pool.submit(daemon.run, "greedy", [gate.port, n]) for n in range(20)]
            fits = (1024 - 256) // 128
            arrived = [gate.arrived() for _ in range(fits)]
            assert len(arrived) == fits and gate.nobody_comes()
            assert at_once(2, lambda n: daemon.call("vip", n)) == [0, 1]
            gate.open()
            for _ in range(20 - fits):
                gate.arrived()
                gate.open()
            assert [call.result().status for call in calls] == [200] * 20
        memory = daemon.status()["memory"]
        assert memory["reserved_bytes"] <= memory["total_bytes"]
        with pytest.raises(DeployFailed) as refused:
            daemon.deploy("pompous", "def f(event): pass", memory_mb=1000, concurrency=2, reserved_memory_mb=2000)
        assert refused.value.status == 503 and "reserved_memory_mb" in refused.value.message
    finally:
        daemon.remove("greedy")
        daemon.remove("vip")


def test_a_request_that_waits_for_memory_in_vain_is_a_503_that_says_so(daemon: RunningDaemon, gate: Gate) -> None:
    daemon.deploy("holder", WAITS, memory_mb=900, timeout_s=20)
    daemon.deploy("big", WAITS, memory_mb=900, timeout_s=0.5)
    with in_background(lambda: daemon.run("holder", [gate.port, 0])) as first:
        gate.arrived()
        second = daemon.run("big", [gate.port, 1])
        gate.open()
        assert first().json == "go"
    assert second.status == 503 and "memory" in second.json["errorMessage"]
    assert int(second.headers["retry-after"]) >= 1
