"""The share of calls that start a sandbox: a Zipf trace through HAProxy, by each way to choose a worker, and to one alone.

Each case begins with workers that have run nothing. All sandboxes have room, so that a call is cold when no idle sandbox of its
function is on the worker that HAProxy chose.
"""

from __future__ import annotations

import io
import json
import queue
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.cluster_parts.group import EDITS, MOST, OURS, Group, put, together, version_of, wait_for
from benchmarks.cluster_parts.zipf_trace import Call, zipf_trace
from benchmarks.harness.client import Client, request
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run

SLEEPS = "import time\n\n\ndef f(event):\n    time.sleep(event)\n"
CLIENTS = 64
CONCURRENCY = 10
ALONE = "one worker"


@dataclass(slots=True)
class Seen:
    """What callers saw of a trace."""

    cold: int = 0
    calls: int = 0
    workers: Counter[str] = field(default_factory=Counter)
    late_s: float = 0.0
    """The longest time that a call was sent late."""
    cold_s: list[float] = field(default_factory=list)
    warm_s: list[float] = field(default_factory=list)
    """What each cold call, and each other, took beyond its own length."""

    @property
    def share(self) -> float:
        return self.cold / self.calls

    @property
    def over_s(self) -> tuple[float, float]:
        """What half of the warm calls take beyond their own length at most, and half of the cold ones."""
        return median(self.warm_s), median(self.cold_s)


def measure_cold_share(run: Run, group: Group, result: Result) -> dict[str, Seen]:
    """Return what was seen, by way."""
    functions, calls, rate = run.pick((300, 3000, 100.0), (60, 300, 75.0))
    deploy_sleepers(group, functions)
    trace = zipf_trace(functions, calls, rate)
    seen = dict[str, Seen]()
    for way in (ALONE, *run.pick(tuple(EDITS), (OURS,))):
        run.say(f"{calls} calls of {functions} functions: {way}")
        group.restart_all()
        if way == ALONE:
            seen[way] = play(group.workers[first_name(group)].port, trace)
        else:
            with group.front(way) as port:
                seen[way] = play(port, trace)
        result.add(f"Zipf trace, {way}", "cold share", "%", [100 * seen[way].share], tail=False)
    for way, found in seen.items():
        result.notes.append(
            f"{way}: {dict(sorted(found.workers.items()))} calls of each worker, at most {found.late_s * 1000:.0f} ms late"
        )
    result.aim("cold share of hash with bound, times one worker's", seen[OURS].share / seen[ALONE].share, "<= 1.1")
    return seen


def first_name(group: Group) -> str:
    return min(group.workers)


def deploy_sleepers(group: Group, count: int) -> None:
    """Deploy functions s0, s1, ... that sleep for as many seconds as their event says, and wait until each worker has them.

    A worker's share of their concurrency is the usual concurrency of a function: a call that waits for it starts no sandbox."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("f.py", SLEEPS)
    first, *others = group.workers.values()
    headers = {"x-sockd-overrides": json.dumps({"memory_mb": 48, "concurrency": CONCURRENCY * MOST})}
    for number in range(count):
        put(first, f"/functions/s{number}", packed.getvalue(), headers)
    wait_for(lambda: all(version_of(each, f"s{count - 1}") for each in others))


def play(port: int, trace: Sequence[Call]) -> Seen:
    """Send each call of a trace when its time has come, whether others were answered or not."""
    seen, lock, due = Seen(), threading.Lock(), queue.SimpleQueue[Call | None]()
    began = time.monotonic()

    def call() -> None:
        with Client("127.0.0.1", port) as client:
            while (each := due.get()) is not None:
                late_s = time.monotonic() - began - each.at_s
                answer = client.exchange(request(f"s{each.function}", b"%.4f" % each.seconds, host="127.0.0.1"))
                if answer.last:
                    client.reconnect()
                over_s = answer.ms / 1000 - each.seconds
                with lock:
                    seen.cold += answer.cold
                    (seen.cold_s if answer.cold else seen.warm_s).append(over_s)
                    seen.calls += 1
                    seen.workers[answer.headers["x-sockd-worker"]] += 1
                    seen.late_s = max(seen.late_s, late_s)

    def send() -> None:
        pause = threading.Event()
        for each in trace:
            pause.wait(max(began + each.at_s - time.monotonic(), 0.0))
            due.put(each)
        for _ in range(CLIENTS):
            due.put(None)

    together(lambda act: act(), [send, *[call] * CLIENTS])
    return seen
