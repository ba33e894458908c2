"""The experiments, against a worker that is a small HTTP server and answers as the test says."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sebs_runner import experiment
from benchmarks.sebs_runner.errors import InvocationFailed, NotPossible, WrongAnswer
from benchmarks.sebs_runner.experiment import Kind, Outcome, Variant, in_turn, run
from benchmarks.sebs_runner.invocation import Sample, invoke
from benchmarks.sebs_runner.target import Target

Answer = Callable[[int], tuple[int, Any]]
"""From the number of a request to a status and what to say."""


def answer(number: int, *, cold: bool = True) -> tuple[int, Any]:
    now = time.monotonic_ns()
    times = {"entered_ns": now, "imported_ns": now, "init_done_ns": now, "ended_ns": now, "reads": []}
    output = {"begin": "1.5", "end": "2.0", "is_cold": cold, "request_id": str(number), "sockd": times}
    return 200, {**output, "result": {"output": number}}


class FakeWorker:
    """Counts requests and answers them."""

    def __init__(self) -> None:
        self.answers: Answer = answer
        self.count = itertools.count()
        self.most_at_once = self.at_once = 0
        self.paths: list[str] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                fake.at_once += 1
                fake.paths.append(self.path)
                fake.most_at_once = max(fake.most_at_once, fake.at_once)
                self.rfile.read(int(self.headers["Content-Length"]))
                status, said = fake.answers(next(fake.count))
                body = said if isinstance(said, bytes) else json.dumps(said).encode()
                fake.at_once -= 1
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Server-Timing", "setup;dur=1.5, exec;dur=2")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class FakeTarget(Target):
    """A target whose management API is not there."""

    def trace(self, request_id: str) -> dict[str, Any] | None:
        return None

    def zygote_packages(self) -> set[str]:
        """No package is ever in a Zygote."""
        return set()


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    worker = FakeWorker()
    yield worker
    worker.close()


def variant(worker: FakeWorker, name: str = "f") -> Variant:
    return Variant(name, FakeTarget(worker.url, Path("/"), always_cold=True), b"", {}, labels={"arm": name})


def measure(
    kind: Kind, worker: FakeWorker, *names: str, check: Callable[[Sample], None] = lambda s: None, **more: Any
) -> list[Outcome]:
    return run(kind, [variant(worker, name) for name in names or ("f",)], {}, check, **{"repetitions": 3, **more})


def test_an_invocation_is_timed_and_taken_apart(worker: FakeWorker) -> None:
    sample = invoke(worker.url, "f", {})
    assert sample.cold and sample.request_id == "0" and sample.result == 0
    assert sample.benchmark_us == 500_000
    assert sample.phases_ms == {"setup": 1.5, "exec": 2.0}
    assert 0 < sample.start_us <= sample.client_us
    assert 0 < sample.connect_s < sample.first_byte_s <= sample.client_us / 1e6 + 1e-6


@pytest.mark.parametrize(
    ("status", "said", "words"),
    [
        (500, {"errorType": "KeyError", "errorMessage": "bucket"}, "KeyError: bucket"),
        (502, b"<html>", "<html>"),
        (200, b"<html>", "not that of SeBS"),
        (200, {"result": 1}, "not that of SeBS"),
        (200, [], "not that of SeBS"),
    ],
)
def test_what_is_not_an_answer_of_the_wrapper_says_so(worker: FakeWorker, status: int, said: Any, words: str) -> None:
    worker.answers = lambda number: (status, said)
    with pytest.raises(InvocationFailed, match=words):
        invoke(worker.url, "f", {})


def test_a_worker_that_is_not_there_is_reported() -> None:
    with pytest.raises(InvocationFailed, match="no answer"):
        invoke("http://127.0.0.1:9", "f", {})


def test_the_first_batch_is_dropped_and_variants_take_turns(worker: FakeWorker) -> None:
    first, second = measure(Kind.COLD, worker, "a", "b")
    assert [len(outcome.samples) for outcome in (first, second)] == [3, 3]
    numbers = sorted(sample.result for outcome in (first, second) for sample in outcome.samples)
    assert numbers == list(range(4, 10))  # two batches of each variant came before
    assert {sample.variant["arm"] for sample in first.samples} == {"a"}
    rounds = [{sample.result // 2 for sample in outcome.samples} for outcome in (first, second)]
    assert rounds[0] == rounds[1]  # one of each in every round


def test_variants_with_the_same_packages_wait_once_for_zygotes_that_never_come(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "LEARNING_S", 0.2)
    variants = [replace(variant(worker, name), packages=frozenset({"numpy"})) for name in "ab"]
    run(Kind.COLD, variants, {}, lambda sample: None, repetitions=3)
    counts = Counter(path.rpartition("/")[2] for path in worker.paths)
    assert counts["b"] == 2 + 3 < counts["a"]


def test_cold_puts_warm_answers_aside_and_warm_cold_ones(worker: FakeWorker) -> None:
    worker.answers = lambda number: answer(number, cold=number % 2 == 0)
    (cold,) = measure(Kind.COLD, worker)
    assert all(sample.cold for sample in cold.samples) and not any(sample.cold for sample in cold.incorrect)
    (warm,) = measure(Kind.WARM, worker)
    assert not any(sample.cold for sample in warm.samples) and all(sample.cold for sample in warm.incorrect)
    (burst,) = measure(Kind.BURST, worker, repetitions=4)
    assert burst.incorrect == [] and 0 < burst.cold_count < 4


@pytest.mark.parametrize("kind", [Kind.COLD, Kind.WARM])
def test_an_experiment_ends_when_answers_are_never_as_it_wants_them(worker: FakeWorker, kind: Kind) -> None:
    worker.answers = lambda number: answer(number, cold=kind is Kind.WARM)
    with pytest.raises(NotPossible, match="answers were"):
        measure(kind, worker)
    assert next(worker.count) < 20


def test_a_few_failures_are_recorded_and_more_end_it(worker: FakeWorker) -> None:
    worker.answers = lambda number: answer(number) if number != 3 else (500, b"")
    (outcome,) = measure(Kind.BURST, worker)
    assert len(outcome.failures) == 1 and len(outcome.samples) == 3
    worker.answers = lambda number: (500, b"")
    with pytest.raises(InvocationFailed):
        measure(Kind.BURST, worker)


def test_a_batch_is_at_once_but_never_in_sequence(worker: FakeWorker) -> None:
    both = threading.Barrier(2, timeout=10)

    def together(number: int) -> tuple[int, Any]:
        both.wait()
        return answer(number)

    worker.answers = together
    measure(Kind.BURST, worker, concurrency=2, repetitions=2)
    assert worker.most_at_once == 2
    worker.most_at_once, worker.answers = 0, lambda number: answer(number, cold=False)
    measure(Kind.SEQUENTIAL, worker, concurrency=2)
    assert worker.most_at_once == 1


def test_a_wrong_answer_ends_it(worker: FakeWorker) -> None:
    def check(sample: Sample) -> None:
        if sample.result == 3:
            raise WrongAnswer("three")

    with pytest.raises(WrongAnswer, match="three"):
        measure(Kind.COLD, worker, check=check)


def test_a_worker_that_keeps_sandboxes_is_given_a_new_version_for_each_batch(worker: FakeWorker) -> None:
    deployed: list[Any] = []

    class Keeping(FakeTarget):
        def deploy(self, name: str, archive: bytes, overrides: Any) -> dict[str, Any]:
            deployed.append(overrides["env"])
            return {}

    keeping = Variant("f", Keeping(worker.url, Path("/")), b"", {"KEY": "value"})
    run(Kind.COLD, [keeping], {}, lambda sample: None, repetitions=3)
    assert len(deployed) == 5 and all(env["KEY"] == "value" for env in deployed)
    assert len({env["cold_start"] for env in deployed}) == 5


@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_variant_is_favoured_by_its_place(count: int) -> None:
    orders = [in_turn(list(range(count)), round_) for round_ in range(2 * count)]
    for item in range(count):
        assert sorted(order.index(item) for order in orders) == sorted([*range(count), *range(count)])
        for other in set(range(count)) - {item}:
            assert sum(order.index(item) < order.index(other) for order in orders) == count
