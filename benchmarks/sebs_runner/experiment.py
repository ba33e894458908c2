"""SeBS's experiments: cold, warm, burst, sequential; several variants of one bench in turns, so that noise hits them alike.

    cold         batches of `concurrency` invocations, each batch from fresh sandboxes; answers that were warm are put aside
    burst        the same, and every answer counts
    warm         batches of `concurrency` invocations; answers that were cold are put aside
    sequential   one after the other, after one that is not counted

As in SeBS the first batches are not counted: here, those until Zygotes hold the packages. A fresh sandbox comes from a worker
that keeps none, or from a new version of the function: SeBS's own way on AWS, where it changes a variable, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from benchmarks.sebs_runner.errors import InvocationFailed, NotPossible
from benchmarks.sebs_runner.invocation import Sample, invoke
from benchmarks.sebs_runner.target import Target

COLD_VARIABLE = "cold_start"
"""The wrapper tells its value as `cold_start_var`, as SeBS's does."""
MOST_FAILURES = 3
"""The failures of one variant; then the experiment ends, where SeBS would go on for ever."""
MOST_BATCHES = 3
"""Times as many batches as the repetitions need: a worker that never answers as wanted ends the experiment."""
GAP_S = 0.02
"""Before each batch: longer than ending the sandboxes of the one before and refilling spares takes. SeBS takes ten seconds."""
LEARNING_S = 8.0
"""Longest wait for Zygotes that hold the packages of variants; those of some packages never come."""


class Kind(Enum):
    """The experiments."""

    COLD = "cold"
    WARM = "warm"
    BURST = "burst"
    SEQUENTIAL = "sequential"

    @property
    def fresh(self) -> bool:
        """Whether each batch starts from fresh sandboxes."""
        return self in (Kind.COLD, Kind.BURST)


@dataclass(slots=True)
class Variant:
    """One deployed function: a bench with one arm."""

    name: str
    """The function's."""
    target: Target
    archive: bytes
    env: dict[str, str]
    overrides: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)
    """For the last columns of the results."""
    packages: frozenset[str] = frozenset()
    """Distributions that a Zygote may learn."""
    versions: int = 0

    def deploy(self) -> None:
        """A version that differs from those before. Raises: cli.output.Failure."""
        self.versions += 1
        env = {**self.env, COLD_VARIABLE: f"{time.time_ns():x}-{self.versions}"}
        self.target.deploy(self.name, self.archive, {**self.overrides, "env": env})

    def make_fresh(self) -> None:
        """See to it that no sandbox of it can answer the next request."""
        if not self.target.always_cold:
            self.deploy()


@dataclass(slots=True)
class Outcome:
    """What an experiment made of one variant."""

    variant: Variant
    kind: Kind
    samples: list[Sample] = field(default_factory=list)
    incorrect: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    begin_s: float = 0.0
    end_s: float = 0.0

    @property
    def cold_count(self) -> int:
        return sum(sample.cold for sample in self.samples)


Check = Callable[[Sample], None]
T = TypeVar("T")


def run(
    kind: Kind,
    variants: Sequence[Variant],
    event: dict[str, Any],
    check: Check,
    *,
    repetitions: int,
    concurrency: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> list[Outcome]:
    """Run one experiment with variants that are deployed.

    Args:
        check: raises WrongAnswer for an answer that is not right; called off the clock.
        repetitions: samples wanted of each variant; the last batch may bring more.
    Raises: InvocationFailed after too many failures, NotPossible when answers are never as the experiment wants them,
        WrongAnswer."""
    concurrency = 1 if kind is Kind.SEQUENTIAL else concurrency
    outcomes = [Outcome(variant, kind, begin_s=time.time()) for variant in variants]
    nothing = threading.Event()
    with ThreadPoolExecutor(concurrency) as pool:

        def batch(outcome: Outcome) -> list[Sample]:
            nothing.wait(GAP_S)
            if kind.fresh:
                outcome.variant.make_fresh()
            futures = [
                pool.submit(invoke, outcome.variant.target.url, outcome.variant.name, event) for _ in range(concurrency)
            ]
            return [sample for future in futures for sample in _answer(future.result, outcome, check)]

        learned_by: dict[frozenset[str], float] = {}
        for outcome in outcomes:
            batch(outcome)
            batch(outcome)
            ends = learned_by.setdefault(outcome.variant.packages, time.monotonic() + LEARNING_S)
            while not _is_learned(outcome.variant) and time.monotonic() < ends:
                batch(outcome)
        for round_ in range(MOST_BATCHES * repetitions):
            left = [outcome for outcome in outcomes if len(outcome.samples) < repetitions]
            if not left:
                break
            for outcome in in_turn(left, round_):
                _sort_out(outcome, batch(outcome))
            say(f"{kind.value}: round {round_ + 1}, {min(len(o.samples) for o in outcomes)} of {repetitions} samples")
    for outcome in outcomes:
        outcome.end_s = time.time()
        _add_traces(outcome)
        if len(outcome.samples) < repetitions:
            raise NotPossible(
                f"{outcome.variant.name}: {len(outcome.incorrect)} answers were "
                f"{'warm' if kind is Kind.COLD else 'cold'} in the experiment {kind.value}"
            )
    return outcomes


def in_turn(items: Sequence[T], round_: int) -> list[T]:
    """An order for each round, such that every item is as often first as any other, and as often before as after it."""
    turn = round_ % len(items)
    rotated = [*items[turn:], *items[:turn]]
    return rotated[::-1] if round_ // len(items) % 2 else rotated


def _answer(result: Callable[[], Sample], outcome: Outcome, check: Check) -> list[Sample]:
    """The sample of a finished invocation, checked, or none for a failed one. Raises: InvocationFailed, WrongAnswer."""
    try:
        sample = result()
    except InvocationFailed as error:
        outcome.failures.append(error.message)
        if len(outcome.failures) >= MOST_FAILURES:
            raise
        return []
    check(sample)
    sample.variant = outcome.variant.labels
    return [sample]


def _sort_out(outcome: Outcome, samples: list[Sample]) -> None:
    """Keep the samples that the experiment is about."""
    for sample in samples:
        wrong = {Kind.COLD: not sample.cold, Kind.WARM: sample.cold, Kind.SEQUENTIAL: sample.cold}
        (outcome.incorrect if wrong.get(outcome.kind, False) else outcome.samples).append(sample)


def _add_traces(outcome: Outcome) -> None:
    """Add the traces of cold starts, at the end, when the engine has reported its runs, too."""
    for sample in outcome.samples:
        if sample.cold:
            sample.trace = outcome.variant.target.trace(sample.request_id)


def _is_learned(variant: Variant) -> bool:
    """Whether Zygotes hold all of the variant's packages."""
    return not variant.packages or variant.packages <= variant.target.zygote_packages()
