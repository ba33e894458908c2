"""The numbers of one function and trigger, and their Prometheus text.

Owns the names of OpenTelemetry's faas metrics as Prometheus spells them. Counting is a few integers. The text is written by
hand: prometheus_client takes 16 µs per counter and more for a histogram, which 1 000 functions would feel.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
"""Upper bounds of the buckets: from the shortest handlers to SDKs' read timeout."""
BOUNDS_NS = tuple(int(bound * 1e9) for bound in BOUNDS_S)
BUCKETS = len(BOUNDS_NS) + 1
LABELS = (*(f"{bound:g}" for bound in BOUNDS_S), "+Inf")


class Histogram:
    """Durations, in fixed buckets."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.sum_ns = 0

    def observe(self, duration_ns: int) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_NS, duration_ns)] += 1
        self.sum_ns += duration_ns

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound in seconds, as Prometheus wants them."""
        return list(zip(LABELS, accumulate(self.counts), strict=True))


class Family(NamedTuple):
    """One metric, with the template of one function's lines: `@` stands for its labels."""

    name: str
    kind: str
    help: str
    lines: str

    def header(self) -> str:
        return f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n"


def _counter(name: str, text: str) -> Family:
    return Family(name, "counter", text, f"{name}{{@}} %d\n")


def _histogram(name: str, text: str) -> Family:
    lines = [f'{name}_bucket{{@,le="{label}"}} %d\n' for label in LABELS]
    return Family(name, "histogram", text, "".join([*lines, f"{name}_count{{@}} %d\n", f"{name}_sum{{@}} %.9g\n"]))


FAMILIES = (
    _counter("faas_invocations_total", "Invocations that the function answered."),
    _counter("faas_errors_total", "Invocations that failed: errors of the handler, crashes, timeouts."),
    _counter("faas_timeouts_total", "Invocations that failed because their time was over."),
    _counter("faas_coldstarts_total", "Invocations for which the handler was imported."),
    _histogram("faas_invoke_duration_seconds", "Time in the handler."),
    # Without buckets, which would double the page: sockd_phase_seconds has those of all functions together.
    Family(
        "faas_init_duration_seconds",
        "summary",
        "Time of importing the handler, at cold starts.",
        "faas_init_duration_seconds_count{@} %d\nfaas_init_duration_seconds_sum{@} %.9g\n",
    ),
    Family("sockd_failures_total", "counter", "Invocations that failed or were refused, by reason.", ""),
)
INVOKE, INIT, FAILURES = 4, 5, 6


class Series:
    """What one function has seen through one trigger since the worker started. `Metrics` counts."""

    __slots__ = ("cold", "errors", "exec", "failures", "init_ns", "labels", "ok", "timeouts")

    def __init__(self, name: str, trigger: str) -> None:
        # Nothing here needs escaping: names are [A-Za-z0-9_-], triggers are words of ours.
        self.labels = f'faas_name="{name}",faas_trigger="{trigger}"'
        self.ok = self.errors = self.timeouts = self.cold = self.init_ns = 0
        self.exec = Histogram()
        self.failures: dict[str, int] = {}

    def lines(self) -> Iterator[tuple[int, str]]:
        """Its text, by family (an index of FAMILIES)."""
        labels, exec_counts = self.labels, tuple(accumulate(self.exec.counts))
        for family, count in enumerate((self.ok, self.errors, self.timeouts, self.cold)):
            yield family, FAMILIES[family].lines.replace("@", labels) % count
        numbers = (*exec_counts, exec_counts[-1], self.exec.sum_ns / 1e9)
        yield INVOKE, FAMILIES[INVOKE].lines.replace("@", labels) % numbers
        if self.cold:
            yield INIT, FAMILIES[INIT].lines.replace("@", labels) % (self.cold, self.init_ns / 1e9)
        for reason, count in self.failures.items():
            yield FAILURES, f'sockd_failures_total{{{labels},reason="{reason}"}} {count}\n'
