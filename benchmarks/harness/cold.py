"""Cold invocations over HTTP: one after the other, in batches, with gaps; and what they are made of.

A worker whose handler cache keeps nothing (`idle_limit = 0`) answers every request from a new sandbox, so that one deployed
function is enough for any number of cold starts. That each answer was cold is checked, not believed.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from benchmarks.harness.client import Answer, BadAnswer, Client, closed_loop, request
from benchmarks.harness.results import Result, median
from benchmarks.harness.traffic import requests
from benchmarks.harness.worker import Config, Worker

NO_HANDLER_CACHE: dict[str, Any] = {"idle_limit": 0}
LEARN_DEADLINE_S = 120.0
SETTLE_DEADLINE_S = 90.0
LOOK_S = 0.2
DRAWN = 1000
LEARN_REQUESTS = 30
"""Requests after a Zygote was made, in which it may be seen that functions import more than it has, and be made anew."""


def cold_config(*, spares: int | None = None, **sections: dict[str, Any]) -> Config:
    """A configuration in which every invocation is a cold start."""
    config: dict[str, dict[str, Any]] = {"sandbox": dict(NO_HANDLER_CACHE), **sections}
    if spares is not None:
        config["zygote"] = {"spares": spares, **config.get("zygote", {})}
    return config


class NeverLearned(Exception):
    """No Zygote may hold the package; the message is the worker's reason."""


class ColdFunction:
    """A function of one worker, invoked cold over one kept connection."""

    def __init__(self, worker: Worker, name: str, body: bytes | None = None) -> None:
        """Args: body: of each request; None: drawn, as are trace headers."""
        self._client = Client(worker.host, worker.port)
        drawn = requests((name,), DRAWN, last=0.0) if body is None else [request(name, body)]
        self._requests = itertools.cycle(drawn)
        self._address = (worker.host, worker.port)
        self.phases: dict[str, list[float]] = defaultdict(list)
        """ms in each phase of `Server-Timing`, and "http": what the client saw beyond them."""
        self._origins: Counter[str] = Counter()

    def reconnect(self) -> None:
        """Over a new connection from now on: a server closes one that nobody uses for minutes."""
        self._client.reconnect()

    def start(self) -> Answer:
        """One cold start. Raises BadAnswer when it was not cold."""
        answer = cold_only(self._client.exchange(next(self._requests)))
        self._origins[answer.headers["x-sockd-origin"]] += 1
        phases = answer.phases_ms()
        phases["http"] = answer.ms - sum(phases.values())
        for name, duration in phases.items():
            self.phases[name].append(duration)
        return answer

    def batch(self, size: int, *, gap_s: float = 0.0) -> list[float]:
        """ms of `size` starts in a row, `gap_s` of silence before each, after one start that is not counted."""
        cold_only(self._client.exchange(next(self._requests)))
        times = []
        for _ in range(size):
            if gap_s:
                time.sleep(gap_s)
            times.append(self.start().ms)
        return times

    def share_of(self, origin: str) -> float:
        """The share of the starts so far whose sandbox came from there (`x-sockd-origin`)."""
        return self._origins[origin] / self._origins.total()

    def rate(self, concurrency: int, count: int) -> float:
        """Cold starts per second with `concurrency` requests in flight; the client's work included."""
        begun = time.perf_counter()
        for answer in closed_loop(*self._address, concurrency, itertools.islice(self._requests, count)):
            cold_only(answer)
        return count / (time.perf_counter() - begun)

    def add_phases(self, result: Result, case: str) -> None:
        """One row per phase seen so far."""
        for name, durations in self.phases.items():
            result.add(case, f"phase: {name}", "ms", durations)


def cold_only(answer: Answer) -> Answer:
    """The answer. Raises BadAnswer when it came from a sandbox that had served before."""
    if not answer.cold:
        raise BadAnswer("a warm answer where every one must be cold: the handler cache kept a sandbox")
    return answer


def learn(
    worker: Worker,
    name: str,
    package: str,
    *,
    between: str | None = None,
    body: bytes = b"{}",
    deadline_s: float = LEARN_DEADLINE_S,
) -> None:
    """Invoke a function until a Zygote holds `package` and has been compared with starts of the function's own.

    Args:
        between: a function to invoke in turns with it, where the handler cache would answer otherwise.
        body: what to invoke it with.
    Raises: NeverLearned when the worker has refused it, or when that took longer than the deadline."""
    deadline = time.monotonic() + deadline_s
    with Client(worker.host, worker.port) as client:
        while time.monotonic() < deadline:
            for _ in range(5):
                client.invoke(name, body)
                if between:
                    client.invoke(between)
            tree = worker.json("tree")
            for refused in tree["refused"]:
                if name_of(refused["package"]) == package:
                    raise NeverLearned(refused["reason"])
            if holds(tree["root"], package):
                for _ in range(LEARN_REQUESTS):
                    client.invoke(name, body)
                    if between:
                        client.invoke(between)
                if not worker.json("status")["verifying"]:
                    return
    raise NeverLearned(f"no verified one holds {package} after {deadline_s:.0f} s of invocations")


def settle(worker: Worker, deadline_s: float = SETTLE_DEADLINE_S) -> None:
    """Wait until the worker learns nothing more from the starts that it has had, or until the deadline."""
    ends_s = time.monotonic() + deadline_s
    while time.monotonic() < ends_s:
        status = worker.json("status")
        if not (status["verifying"] or status["learning"]):
            return
        time.sleep(LOOK_S)


def holds(node: dict[str, Any] | None, package: str) -> bool:
    """Whether this node of `sockd tree --json` or one below it has imported the package."""
    if node is None:
        return False
    return package in map(name_of, node["packages"]) or any(holds(child, package) for child in node.get("children", ()))


def name_of(requirement: str) -> str:
    """The package of NAME==VERSION."""
    return requirement.partition("==")[0]


Batch = Callable[[], float]


def collector(samples: list[float], batch: Callable[[], list[float]]) -> Batch:
    """A turn for `in_turns` that keeps every sample of its batch in `samples`."""

    def turn() -> float:
        times = batch()
        samples.extend(times)
        return median(times)

    return turn
