"""Counters and histograms of the worker, and their Prometheus text.

Owns the numbers: those of functions under OpenTelemetry's names (`faas_*`), those that only this worker has under ours
(`sockd_*`). Labels are bounded: functions that exist, triggers and reasons that are named here or by an API, never a name
that a client or a handler made up.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sockd.base import errors
from sockd.base.telemetry import Invocation
from sockd.observe.series import BOUNDS_NS, FAMILIES, Histogram, Series

REASONS: dict[type[BaseException], str] = {
    errors.FunctionFailed: "error",
    errors.InitFailed: "init_error",
    errors.LaunchAborted: "launch_aborted",
    errors.ResponseTooLarge: "response_too_large",
    errors.SandboxDied: "crash",
    errors.OutOfMemory: "out_of_memory",
    errors.TimedOut: "timeout",
    errors.TooManyRequests: "throttled",
    errors.NoCapacity: "no_capacity",
    errors.ClientGone: "client_gone",
    errors.Draining: "draining",
    errors.SandboxFailed: "sandbox_failed",
    errors.PackagesFailed: "packages_failed",
    errors.BadRequest: "bad_request",
    BaseException: "internal_error",
}
"""Why an invocation failed; a class without a name of its own has its nearest base's."""

REFUSALS = frozenset(("throttled", "no_capacity", "client_gone", "draining", "bad_request"))
"""Nothing was run, and nothing went wrong: no errors in the sense of `faas_errors_total`."""

FUNCTIONS_AT_ONCE = 32
"""The functions whose text is written in one step of the loop: less than a millisecond."""

Reading = float | Mapping[str, float]
"""A value, or values by label."""


class Metrics(Collector):
    """All numbers of one worker."""

    def __init__(self) -> None:
        self._series: dict[str, dict[str, Series]] = {}
        """By trigger, of which there are few, then by function."""
        self._queue, self._setup, self._init = Histogram(), Histogram(), Histogram()
        self._starts: dict[str, int] = {}
        self._read: list[tuple[type[Metric], str, str, str | None, Callable[[], Reading]]] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def observe(self, name: str, trigger: str, invocation: Invocation) -> None:
        """Count an answered invocation. Args: trigger: as `InvokeRequest.trigger`."""
        # In one piece, as it is for every request: calls would cost more than what they do.
        try:
            series = self._series[trigger][name]
        except KeyError:
            series = self._new(name, trigger)
        series.ok += 1
        times = invocation.times
        exec_ns, queue_ns = times.exec, times.queue
        histogram = series.exec
        histogram.counts[bisect_left(BOUNDS_NS, exec_ns)] += 1
        histogram.sum_ns += exec_ns
        queue = self._queue
        queue.counts[bisect_left(BOUNDS_NS, queue_ns) if queue_ns > BOUNDS_NS[0] else 0] += 1
        queue.sum_ns += queue_ns
        if invocation.origin != "warm":
            self._observe_start(series, invocation)

    def observe_error(self, name: str, trigger: str, error: BaseException) -> None:
        """Count a failed invocation of a function that exists; an unknown name leaves no trace."""
        if isinstance(error, errors.NoSuchFunction):
            return
        series = self._series.get(trigger, {}).get(name) or self._new(name, trigger)
        reason = reason_of(error)
        series.failures[reason] = series.failures.get(reason, 0) + 1
        series.errors += reason not in REFUSALS
        series.timeouts += reason == "timeout"
        invocation: Invocation | None = getattr(error, "invocation", None)
        if invocation is not None:
            series.exec.observe(invocation.times.exec)
            self._queue.observe(invocation.times.queue)
            if invocation.origin != "warm":
                self._observe_start(series, invocation)

    def forget(self, name: str) -> None:
        """Drop a removed function's series; call it when its last request is over."""
        for by_name in self._series.values():
            by_name.pop(name, None)

    def gauge(self, name: str, text: str, read: Callable[[], Reading], *, label: str | None = None) -> None:
        """A value read at scrape time: `read` gives a number, or with `label` numbers by label."""
        self._read.append((GaugeMetricFamily, f"sockd_{name}", text, label, read))

    def counter(self, name: str, text: str, read: Callable[[], Reading], *, label: str | None = None) -> None:
        """Like `gauge`, for a number that only grows; `_total` is added to its name."""
        self._read.append((CounterMetricFamily, f"sockd_{name}", text, label, read))

    def render(self) -> Iterator[bytes]:
        """Prometheus text, format 0.0.4, in pieces; the first are empty. Between two pieces others may have the loop."""
        parts: list[list[bytes]] = [[family.header().encode()] for family in FAMILIES]
        every = [series for by_name in self._series.values() for series in by_name.values()]
        for start in range(0, len(every), FUNCTIONS_AT_ONCE):
            texts: list[list[str]] = [[] for _ in FAMILIES]
            for series in every[start : start + FUNCTIONS_AT_ONCE]:
                for family, lines in series.lines():
                    texts[family].append(lines)
            for part, text in zip(parts, texts, strict=True):
                part.append("".join(text).encode())
            yield b""
        for part in parts:
            yield b"".join(part)
        yield generate_latest(self._registry)

    async def page(self) -> bytes:
        """`render`, whole, in as many steps of the loop."""
        pieces = []
        for piece in self.render():
            pieces.append(piece)
            await asyncio.sleep(0)
        return b"".join(pieces)

    def collect(self) -> Iterator[Metric]:
        """The families of the worker as a whole, for prometheus_client."""
        phases = HistogramMetricFamily(
            "sockd_phase_seconds",
            "Waiting for the function's concurrency, for a sandbox, for its import: each counted where it happened.",
            labels=("phase",),
        )
        for phase, histogram in (("queue", self._queue), ("setup", self._setup), ("init", self._init)):
            phases.add_metric((phase,), histogram.buckets(), histogram.sum_ns / 1e9)
        yield phases
        starts = "Invocations that no running sandbox served, by where theirs came from."
        yield _read_family(CounterMetricFamily, "sockd_starts", starts, "origin", self._starts)
        for kind, name, text, label, read in self._read:
            yield _read_family(kind, name, text, label, read())

    def _new(self, name: str, trigger: str) -> Series:
        series = self._series.setdefault(trigger, {})[name] = Series(name, trigger)
        return series

    def _observe_start(self, series: Series, invocation: Invocation) -> None:
        origin, times = invocation.origin, invocation.times
        self._starts[origin] = self._starts.get(origin, 0) + 1
        self._setup.observe(times.setup)  # of a paused sandbox: the thaw
        if origin != "paused":
            self._init.observe(times.init)
            series.cold += 1
            series.init_ns += times.init


def reason_of(error: BaseException) -> str:
    """The label of an error: one of REASONS' values, whatever the handler raised."""
    return next(REASONS[kind] for kind in type(error).__mro__ if kind in REASONS)


def _read_family(kind: type[Metric], name: str, text: str, label: str | None, reading: Reading) -> Metric:
    family: Metric = kind(name, text, labels=(label,) if label else ())  # type: ignore[call-arg]
    values = reading.items() if isinstance(reading, Mapping) else (("", reading),)
    for key, value in values:
        family.add_metric((key,) if label else (), value)  # type: ignore[attr-defined]
    return family
