"""Events: bodies of megabytes, functions that always fail, destinations that nobody has, and what is left of them."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from sockd.events.event_store import SPARE_PAGES
from tests.daemon.running import DEADLINE_S, LOOK_S
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker
from tests.support.threads import at_once

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]
MB = 1 << 20
LATER = {"X-Amz-Invocation-Type": "Event"}
FAILS = "def f(event):\n    raise ValueError('no')\n"
GROWTH_MB = 96
"""Most that the daemon may grow by: sixteen bodies that come, ten that run, and what copies of them its steps hold."""


def rss_mb(pid: int) -> tuple[int, int]:
    """Resident memory of a process: now, and the most that it ever was."""
    status = Path(f"/proc/{pid}/status").read_text()
    now, most = (int(re.search(rf"{name}:\s+(\d+)", status)[1]) for name in ("VmRSS", "VmHWM"))  # type: ignore[index]
    return now // 1024, most // 1024


def soon(worker: PrivateWorker, holds: Callable[[], bool], patience: int) -> None:
    """Look now and then, so that the worker has the processors meanwhile; each time it has to answer its neighbour, too.

    Args: patience: of a worker's usual."""
    ends, tick = time.monotonic() + DEADLINE_S * patience, threading.Event()
    while not holds():
        assert time.monotonic() < ends, worker.daemon.status()["events"]
        worker.call("neighbour")
        tick.wait(LOOK_S)


def stored_mb(worker: PrivateWorker) -> float:
    """The event store's files."""
    return sum(file.stat().st_size for file in worker.daemon.state.glob("events.sqlite*")) / MB


@case(
    "K14",
    "250 events of 1 MB for a function that always fails, then `rm` of it, and its dead letters deleted",
    expect="the bodies wait on the disk, not in the daemon; rm moves none of them; the file gets small again",
)
def test_bodies_of_events_stay_on_the_disk(worker: PrivateWorker, happened: Happened) -> None:
    daemon = worker.daemon
    worker.deploy("late", FAILS, concurrency=10)
    earlier = daemon.status()["events"]  # of other cases
    Path(f"/proc/{daemon.pid}/clear_refs").write_text("5")  # VmHWM from here on
    before, _ = rss_mb(daemon.pid)
    body = json.dumps({"it": "x" * 1_000_000})
    statuses: Counter[int] = Counter()

    def post(number: int) -> None:
        for _ in range(16):
            statuses[daemon.request("POST", "/run/late", body, LATER).status] += 1

    at_once(16, post)
    assert statuses[202] >= 250
    failed = earlier["attempts"].get("error", 0) + statuses[202]
    soon(worker, lambda: daemon.status()["events"]["attempts"].get("error", 0) >= failed, 4)
    _, most = rss_mb(daemon.pid)
    written_before = stored_mb(worker)
    daemon.remove("late")
    written = stored_mb(worker) - written_before

    def dead() -> int:
        return int(daemon.status()["events"]["dead"]) - int(earlier["dead"])

    soon(
        worker, lambda: dead() >= statuses[202], 4
    )  # an attempt is counted before what becomes of its event is written
    buried = dead()
    daemon.manage("DELETE", "/events")
    soon(worker, lambda: stored_mb(worker) < SPARE_PAGES * 4096 / MB + 6, 8)
    happened(
        f"RSS {before} MB, at most {most}; rm wrote {written:.0f} MB, {buried} dead letters; then {stored_mb(worker):.0f} MB"
    )
    assert most - before < GROWTH_MB
    assert (buried, written < 16) == (statuses[202], True)


@case(
    "K14",
    "3000 events of a function that always fails, ten at a time",
    expect="a line at once and one for each minute, with the number; none for each event",
)
def test_failing_events_do_not_fill_the_log(worker: PrivateWorker, happened: Happened) -> None:
    daemon = worker.daemon
    worker.deploy("noisy", FAILS, concurrency=10)
    mark, before = daemon.mark, daemon.status()["events"]["attempts"].get("error", 0)

    def post(number: int) -> None:
        for _ in range(300):
            assert daemon.request("POST", "/run/noisy", "{}", LATER).status == 202

    at_once(10, post)
    soon(worker, lambda: daemon.status()["events"]["attempts"].get("error", 0) >= before + 3000, 6)
    lines = [line for line in daemon.lines[mark:] if "WARNING" in line and "noisy" in line]
    happened(f"{len(lines)} lines for 3000 failed attempts: {lines[0][:120]}")
    assert 1 <= len(lines) <= 3, lines
    daemon.remove("noisy")
    daemon.manage("DELETE", "/events")


@case(
    "K14",
    "a destination that no function has; a second schedule of a function, both without names",
    expect="both refused, with what to do; the first schedule stays as it was",
)
def test_what_would_be_lost_silently_is_refused(worker: PrivateWorker, happened: Happened) -> None:
    daemon = worker.daemon
    worker.deploy("clock", "def f(event): return 1")
    config = "/functions/clock/event-invoke-config"
    for side in ("on_success", "on_failure"):
        answer = daemon.manage("PUT", config, json.dumps({side: "nobody"}))
        assert answer.status == 400 and "deploy the function first" in answer.json["errorMessage"], answer
    assert daemon.manage("GET", config).json == []
    worker.cli("schedule", "add", "clock", "rate(1 hour)")
    refused = worker.cli("schedule", "add", "clock", "rate(2 hours)", check=False)
    assert refused.returncode != 0 and "--name OTHER" in refused.stderr, refused
    assert worker.cli("schedule", "add", "clock", "rate(1 hour)").returncode == 0
    worker.cli("schedule", "add", "clock", "rate(2 hours)", "--name", "clock-2")
    found = {each["name"]: each["expression"] for each in daemon.manage("GET", "/schedules").json}
    happened(f"{answer.json['errorMessage'][:90]}; {refused.stderr.strip()[:160]}; schedules {found}")
    assert found == {"clock": "rate(1 hour)", "clock-2": "rate(2 hours)"}
