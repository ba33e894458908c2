"""Sandboxes that end within some 2 ms of their own deadline: the worker finds out both at once."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker
from tests.support.threads import at_once

pytestmark = pytest.mark.root

DEADLINE_S = 0.1
EARLY_S = 0.006
"""Most that the process ends before its deadline, on its own clock, which began a little after the worker's."""
COUNT = 40
LIMITS = {"request": "timeout_s", "init": "init_timeout_s"}
BODY = "time.sleep({} - random.uniform(0, {}))\n    os._exit(0)\n"
CODE = {
    "request": f"import os, random, time\ndef f(event):\n    {BODY}",
    "init": f"import os, random, time\nif True:\n    {BODY}",
}
MUTE = "import os, time\ndef f(event):\n    time.sleep(0.06)\n    os.close(3)\n    time.sleep(9)\n"


@case(
    "K0",
    "a function ends its process within 2 ms of its deadline, 40 times for a client and in 40 events",
    expect="each call is told that its runtime exited or timed out; the worker and the neighbour's calls go on",
)
@pytest.mark.parametrize("phase", ["request", "init"])
def test_sandboxes_that_end_at_their_deadline(worker: PrivateWorker, happened: Happened, phase: str) -> None:
    limits: dict[str, Any] = {LIMITS[phase]: DEADLINE_S}
    worker.deploy("aimed", CODE[phase].format(DEADLINE_S, EARLY_S), **limits)
    worker.daemon.manage("PUT", "/functions/aimed/event-invoke-config", '{"max_retries": 0}')
    with worker.watching(baseline=[]) as watch:
        for _ in range(COUNT):
            answer = worker.daemon.run("aimed", None, X_Amz_Invocation_Type="Event")
            assert answer.status == 202, answer
        reported = Counter(worker.invoke("aimed").error for _ in range(COUNT))
        settle_events(worker)
    happened(f"{phase}: {dict(reported)}; {watch}")
    assert worker.alive
    assert reported.keys() <= {"Runtime.ExitError", "Sandbox.Timedout"}
    assert not watch.wrong


@case(
    "K16",
    "a function closes its channel and goes on, past its deadline, 4 at a time",
    expect="each is killed at its deadline, and its cgroup is found empty as soon as it is: the log says nothing else",
)
def test_sandboxes_that_are_killed_while_their_end_is_awaited(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy("mute", MUTE, timeout_s=DEADLINE_S)
    mark = worker.daemon.mark
    reported = [
        error
        for errors in at_once(4, lambda _: [worker.invoke("mute").error for _ in range(COUNT)])
        for error in errors
    ]
    worker.settle()
    late = [line for line in worker.daemon.lines[mark:] if "populated" in line]
    happened(f"{Counter(reported)}; {len(late)} cgroups of {len(reported)} were found empty late")
    assert set(reported) <= {"Sandbox.Timedout"}
    assert not late, late


def settle_events(worker: PrivateWorker) -> None:
    """Wait until each event is over; each look waits for the daemon."""
    ends = time.monotonic() + worker.patience_s
    while True:
        events = worker.daemon.status()["events"]
        if events["waiting"] + events["running"] == 0:
            return
        assert time.monotonic() < ends, events
