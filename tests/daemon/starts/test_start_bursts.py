"""Many requests at once for a function without a ready sandbox: none fails for what the worker itself causes."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.daemon.gate import Gate
from tests.daemon.running import Answer, RunningDaemon
from tests.support.threads import at_once

CONFIG = "[sandbox]\nstart_wait_s = 0.5\n[zygote]\nverify = false\n"
PATIENT = "[sandbox]\ninit_ceiling = 20\n"
"""Where other tests leave little of the processors."""
ROOM_FOR_TWO = "[sandbox]\nmemory_mb = 1000\n[zygote]\nenabled = false\n"
CPU_S = 1.5
HEAVY = f"""
import os, time
BEGAN = time.process_time()
while time.process_time() < BEGAN + {CPU_S}:
    pass

def f(event):
    return os.getpid()
"""
"""An import that computes, as one of scikit-learn does."""
LIMIT_S = 3
THREADS, CALLS = 12, 3
NETWORK_S = 1.0
WAITS_FOR_NETWORK = f"import threading\nthreading.Event().wait({NETWORK_S})\ndef f(event): pass\n"
AT_THE_GATE = "from gate import wait\nwait({})\ndef f(event): return event\n"
SLOW = "import threading\nthreading.Event().wait(1)\n"
"""An init that is no quick one, whenever the gate is opened."""
AT_ONCE = max(2, len(os.sched_getaffinity(0)))
"""Inits of a function of which the worker knows nothing."""


@pytest.fixture(scope="module")
def config() -> str:
    return CONFIG


@pytest.fixture
def restarting(tmp_path: Path) -> Iterator[RunningDaemon]:
    """A daemon that the test may end, and start again in the same state directory."""
    daemon = RunningDaemon.start(tmp_path / "state", PATIENT)
    yield daemon
    for each in list(RunningDaemon.living):
        if each.state == daemon.state:
            each.close()


def burst(daemon: RunningDaemon, name: str) -> list[Answer]:
    """Each thread calls some times in a row."""
    answers = at_once(THREADS, lambda _: [daemon.run(name) for _ in range(CALLS)])
    return [answer for row in answers for answer in row]


def check_burst(daemon: RunningDaemon, name: str) -> None:
    began_s = time.monotonic()
    answers = burst(daemon, name)
    took_s = time.monotonic() - began_s
    assert Counter(answer.status for answer in answers) == {200: THREADS * CALLS}, [a.body for a in answers][:3]
    cold = sum(answer.headers["x-sockd-cold"] == "1" for answer in answers)
    print(f"{cold} of {len(answers)} were cold, in {took_s:.1f} s")
    assert cold < THREADS, "those that wait are served by the first sandboxes that are ready"


def wait_for_waiters(daemon: RunningDaemon, count: int) -> None:
    """Returns when so many requests wait for a sandbox."""
    while daemon.status()["waiting_to_start"] != count:
        pass


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ending", ["terminate", "kill"])
def test_a_burst_on_a_heavy_function_succeeds_after_a_deploy_and_after_a_restart(
    restarting: RunningDaemon, ending: str
) -> None:
    daemon = restarting
    daemon.deploy("heavy", HEAVY, init_timeout_s=LIMIT_S, timeout_s=20, concurrency=10)
    check_burst(daemon, "heavy")
    getattr(daemon, ending)()
    daemon.end_reading()
    daemon = RunningDaemon.start(daemon.state, PATIENT)
    check_burst(daemon, "heavy")
    assert daemon.terminate() == 0, daemon.lines


def test_inits_that_wait_for_the_network_are_not_done_one_after_the_other(restarting: RunningDaemon) -> None:
    daemon = restarting
    daemon.deploy("network", WAITS_FOR_NETWORK, concurrency=20, memory_mb=64)
    began_s = time.monotonic()
    answers = at_once(20, lambda _: daemon.run("network", x_sockd_fresh="1"))
    took_s = time.monotonic() - began_s
    assert {(answer.status, answer.headers["x-sockd-cold"]) for answer in answers} == {(200, "1")}
    assert took_s < NETWORK_S + 3, "the first tell that the others can begin"


def test_a_waiting_request_is_served_by_the_first_ready_sandbox_as_its_trace_says(
    daemon: RunningDaemon, gate: Gate
) -> None:
    code = SLOW + AT_THE_GATE.format(gate.port)
    daemon.deploy("traced", {"f.py": code, "gate.py": gate.CODE}, timeout_s=20)
    calls = AT_ONCE + 3
    with ThreadPoolExecutor(calls) as pool:
        asked = [pool.submit(daemon.run, "traced", 7) for _ in range(calls)]
        for _ in range(AT_ONCE):
            gate.arrived()
        wait_for_waiters(daemon, 3)
        assert gate.nobody_comes()
        metrics = daemon.request("GET", "/metrics").body.decode()
        assert "sockd_waiting_starts 3.0" in metrics
        assert daemon.status()["sandboxes"]["busy"] == AT_ONCE
        gate.open()
        answers = [each.result() for each in asked]
    assert [(answer.status, answer.json) for answer in answers] == [(200, 7)] * calls
    assert daemon.status()["waiting_to_start"] == 0
    warm = [answer for answer in answers if answer.headers["x-sockd-cold"] == "0"]
    assert warm
    for answer in warm:
        queue_ms = float(re.search(r"queue;dur=([\d.]+)", answer.headers["server-timing"])[1])  # type: ignore[index]
        trace = daemon.manage("GET", f"/traces/{answer.headers['x-amzn-requestid']}").json
        waited = re.fullmatch(
            r"waited ([\d.]+) s: (\d+) sandboxes of the function were starting, .*", trace["waited_for"]
        )
        assert waited is not None and int(waited[2]) == AT_ONCE
        assert 0.5 < float(waited[1]) <= queue_ms / 1000 + 0.01
        assert trace["spans"][0]["name"] == "queue" and trace["spans"][0]["detail"] == trace["waited_for"]


def test_a_request_whose_client_hung_up_while_it_waited_is_not_run(daemon: RunningDaemon, gate: Gate) -> None:
    code = AT_THE_GATE.format(gate.port) + f"def f(event): return wait({gate.port}, str(event))\n"
    daemon.deploy("left", {"f.py": code, "gate.py": gate.CODE}, timeout_s=20)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = [pool.submit(daemon.run, "left", f"call-{number}") for number in range(AT_ONCE)]
        for _ in range(AT_ONCE):
            gate.arrived()
        body = json.dumps("gone").encode()
        with socket.create_connection(("127.0.0.1", daemon.port)) as client:
            client.sendall(
                b"POST /run/left HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )
            wait_for_waiters(daemon, 1)
        gate.open()
        assert {gate.arrived() for _ in range(AT_ONCE)} == {f"call-{number}" for number in range(AT_ONCE)}
        gate.open()
        assert [each.result().status for each in asked] == [200] * AT_ONCE
    assert gate.nobody_comes()
    assert daemon.status()["waiting_to_start"] == daemon.status()["sandboxes"]["busy"] == 0


def test_a_request_that_waits_too_long_is_asked_to_come_again(daemon: RunningDaemon, gate: Gate) -> None:
    code = {"f.py": AT_THE_GATE.format(gate.port), "gate.py": gate.CODE}
    daemon.deploy("stuck", code, init_timeout_s=1, concurrency=3 * AT_ONCE)
    answers = at_once(3 * AT_ONCE, lambda _: daemon.run("stuck"))
    assert Counter(answer.status for answer in answers) == {504: 2 * AT_ONCE, 503: AT_ONCE}
    for answer in answers:
        if answer.status == 503:
            assert answer.json["errorType"] == "ServiceUnavailableException"
            assert answer.json["errorMessage"].startswith(
                f"no sandbox was ready within 1.5 s (sandbox.start_wait_s and init_timeout_s): {AT_ONCE} of the function were "
            )
            assert answer.headers["retry-after"] == "1"
        else:
            assert answer.json["errorMessage"].startswith("Init timed out after 1.00 seconds")


def test_a_removed_function_leaves_no_request_waiting(daemon: RunningDaemon, gate: Gate) -> None:
    code = {"f.py": AT_THE_GATE.format(gate.port), "gate.py": gate.CODE}
    daemon.deploy("removed", code, timeout_s=20)
    with ThreadPoolExecutor(AT_ONCE + 3) as pool:
        asked = [pool.submit(daemon.run, "removed", 7) for _ in range(AT_ONCE + 2)]
        for _ in range(AT_ONCE):
            gate.arrived()
        wait_for_waiters(daemon, 2)
        removal = pool.submit(daemon.remove, "removed")
        while any(function["name"] == "removed" for function in daemon.manage("GET", "/functions").json):
            pass
        gate.open()
        for _ in range(2):
            gate.arrived()
        gate.open()
        assert [each.result().status for each in asked] == [200] * (AT_ONCE + 2)
        assert removal.result().status < 300
    assert daemon.status()["waiting_to_start"] == 0


def test_while_a_function_has_all_memory_its_requests_take_turns_in_its_sandboxes(tmp_path: Path) -> None:
    """None of them is given up for the memory of another, whose init would then begin."""
    daemon = RunningDaemon.start(tmp_path / "state", ROOM_FOR_TWO)
    try:
        code = f"{SLOW}def f(event): threading.Event().wait(0.02)\n"
        daemon.deploy("large", code, memory_mb=400, concurrency=10, timeout_s=20)
        answers = at_once(10, lambda _: [daemon.run("large") for _ in range(20)])
        found = Counter((answer.status, answer.headers["x-sockd-cold"]) for row in answers for answer in row)
        assert found == {(200, "1"): 2, (200, "0"): 198}
        assert daemon.terminate() == 0, daemon.lines
    finally:
        daemon.close()
