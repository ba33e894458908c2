"""Counters and histograms of the worker, and their Prometheus text.

Owns the numbers. Counting is a few integers, because it happens for every request; prometheus_client only writes text.
Labels are bounded: functions that exist, outcomes that are named here, never a name that a client or a handler made up.
Histograms are of the whole worker, since one per function and phase would make a page of megabytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sockd import errors
from sockd.telemetry import Invocation

OUTCOMES: dict[type[BaseException], str] = {
    errors.FunctionFailed: "error",
    errors.InitFailed: "init_error",
    errors.LaunchAborted: "launch_aborted",
    errors.ResponseTooLarge: "response_too_large",
    errors.SandboxDied: "crash",
    errors.OutOfMemory: "out_of_memory",
    errors.TimedOut: "timeout",
    errors.TooManyRequests: "throttled",
    errors.NoCapacity: "no_capacity",
    errors.Draining: "draining",
    errors.SandboxFailed: "sandbox_failed",
    errors.PackagesFailed: "packages_failed",
    errors.BadRequest: "bad_request",
    BaseException: "internal_error",
}
"""What became of an invocation that failed; a class without a name of its own has its nearest base's."""

PHASES = ("queue", "setup", "init", "exec")
_MS = (0.05, 0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 30000)
BOUNDS_NS = tuple(int(ms * 1e6) for ms in _MS)
_LABELS = (*(f"{ms / 1e3:g}" for ms in _MS), "+Inf")

Reading = float | Mapping[str, float]
"""A value, or values by label."""


class Histogram:
    """Durations, in fixed buckets."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * len(_LABELS)
        self.sum_ns = 0

    def observe(self, duration_ns: int) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_NS, duration_ns)] += 1
        self.sum_ns += duration_ns

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound in seconds, as Prometheus wants them."""
        total = 0
        cumulative: list[tuple[str, float]] = []
        for label, count in zip(_LABELS, self.counts, strict=True):
            total += count
            cumulative.append((label, total))
        return cumulative


class FunctionCounts:
    """What one function has seen since the worker started."""

    __slots__ = ("exec_ns", "origins", "outcomes")

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.origins: dict[str, int] = {}
        self.exec_ns = 0


class Metrics(Collector):
    """All numbers of one worker."""

    def __init__(self) -> None:
        self._functions: dict[str, FunctionCounts] = {}
        self._phases = {phase: Histogram() for phase in PHASES}
        self._read: list[tuple[type[Metric], str, str, str | None, Callable[[], Reading]]] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def observe(self, name: str, invocation: Invocation) -> None:
        """Count an answered invocation."""
        counts = self._counts(name)
        counts.outcomes["ok"] = counts.outcomes.get("ok", 0) + 1
        self._observe_times(counts, invocation)

    def observe_error(self, name: str, error: BaseException) -> None:
        """Count a failed invocation of a function that exists; an unknown name leaves no trace."""
        if isinstance(error, errors.NoSuchFunction):
            return
        counts = self._counts(name)
        outcome = outcome_of(error)
        counts.outcomes[outcome] = counts.outcomes.get(outcome, 0) + 1
        invocation: Invocation | None = getattr(error, "invocation", None)
        if invocation is not None:
            self._observe_times(counts, invocation)

    def forget(self, name: str) -> None:
        """Drop a removed function's series; call it when its last request is over."""
        self._functions.pop(name, None)

    def gauge(self, name: str, text: str, read: Callable[[], Reading], *, label: str | None = None) -> None:
        """A value read at scrape time: `read` gives a number, or with `label` numbers by label."""
        self._read.append((GaugeMetricFamily, f"sockd_{name}", text, label, read))

    def counter(self, name: str, text: str, read: Callable[[], Reading], *, label: str | None = None) -> None:
        """Like `gauge`, for a number that only grows; `_total` is added to its name."""
        self._read.append((CounterMetricFamily, f"sockd_{name}", text, label, read))

    def render(self) -> bytes:
        """Prometheus text, format 0.0.4."""
        return self._function_text().encode() + generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The families of the worker as a whole, for prometheus_client."""
        yield self._phase_family()
        for kind, name, text, label, read in self._read:
            yield _read_family(kind, name, text, label, read())

    def _counts(self, name: str) -> FunctionCounts:
        counts = self._functions.get(name)
        if counts is None:
            counts = self._functions[name] = FunctionCounts()
        return counts

    def _observe_times(self, counts: FunctionCounts, invocation: Invocation) -> None:
        times = invocation.times
        phases = self._phases
        phases["queue"].observe(times.queue)
        phases["exec"].observe(times.exec)
        counts.exec_ns += times.exec
        if invocation.origin != "warm":
            phases["setup"].observe(times.setup)  # of a paused sandbox: the thaw
            if invocation.cold:
                phases["init"].observe(times.init)
                counts.origins[invocation.origin] = counts.origins.get(invocation.origin, 0) + 1

    def _function_text(self) -> str:
        # By hand: prometheus_client takes 16 µs per function, 160 ms of the loop for 10 000 of them; this takes 1.4.
        # Nothing here needs escaping: names are [A-Za-z0-9_-], the rest are words of this file.
        invocations = [_header("sockd_invocations_total", "Invocations by outcome.")]
        starts = [_header("sockd_cold_starts_total", "Cold invocations, by where the sandbox came from.")]
        seconds = [_header("sockd_exec_seconds_total", "Time spent in handlers.")]
        for name, counts in self._functions.items():
            for outcome, count in counts.outcomes.items():
                invocations.append(f'sockd_invocations_total{{function="{name}",outcome="{outcome}"}} {count}\n')
            for origin, count in counts.origins.items():
                starts.append(f'sockd_cold_starts_total{{function="{name}",origin="{origin}"}} {count}\n')
            seconds.append(f'sockd_exec_seconds_total{{function="{name}"}} {counts.exec_ns / 1e9}\n')
        return "".join(invocations + starts + seconds)

    def _phase_family(self) -> Metric:
        family = HistogramMetricFamily(
            "sockd_phase_seconds", "Phases of invocations, each counted where it happened.", labels=("phase",)
        )
        for phase, histogram in self._phases.items():
            family.add_metric((phase,), histogram.buckets(), histogram.sum_ns / 1e9)
        return family


def _header(name: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} counter\n"


def outcome_of(error: BaseException) -> str:
    """The label of an error: one of OUTCOMES' values, whatever the handler raised."""
    return next(OUTCOMES[kind] for kind in type(error).__mro__ if kind in OUTCOMES)


def _read_family(kind: type[Metric], name: str, text: str, label: str | None, reading: Reading) -> Metric:
    family: Metric = kind(name, text, labels=(label,) if label else ())  # type: ignore[call-arg]
    values = reading.items() if isinstance(reading, Mapping) else (("", reading),)
    for key, value in values:
        family.add_metric((key,) if label else (), value)  # type: ignore[attr-defined]
    return family
