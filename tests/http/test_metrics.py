"""The worker's numbers, read back by Prometheus' own parser."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sockd import errors
from sockd.http.metrics import BOUNDS_NS, OUTCOMES, Histogram, Metrics, outcome_of
from sockd.telemetry import Invocation, Times


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def served(origin: str) -> Invocation:
    times = Times(queue=0, setup=2_000_000, init=3_000_000, exec=500_000_000)
    return Invocation(b"", origin, "s", "v", times=times)  # type: ignore[arg-type]


def test_invocations_are_counted_by_function_outcome_and_origin() -> None:
    metrics = Metrics()
    for origin in ("warm", "warm", "paused", "spare"):
        metrics.observe("f", served(origin))
    metrics.observe_error("f", errors.TimedOut("late"))
    read = samples(metrics)
    assert read["sockd_invocations_total", "f", "ok"] == 4
    assert read["sockd_invocations_total", "f", "timeout"] == 1
    assert read["sockd_cold_starts_total", "f", "spare"] == 1
    assert ("sockd_cold_starts_total", "f", "paused") not in read, "a thawed sandbox is not a cold start"
    assert read["sockd_exec_seconds_total", "f"] == 2.0


def test_a_phase_is_counted_only_where_it_happened() -> None:
    metrics = Metrics()
    for origin in ("warm", "paused", "spare", "zygote"):
        metrics.observe("f", served(origin))
    read = samples(metrics)
    counts = {phase: read["sockd_phase_seconds_count", phase] for phase in ("queue", "setup", "init", "exec")}
    assert counts == {"queue": 4, "setup": 3, "init": 2, "exec": 4}
    assert read["sockd_phase_seconds_sum", "init"] == pytest.approx(0.006)


def test_a_bucket_includes_its_own_bound() -> None:
    histogram = Histogram()
    for duration_ns in (0, BOUNDS_NS[0], BOUNDS_NS[0] + 1, BOUNDS_NS[-1] + 1):
        histogram.observe(duration_ns)
    buckets = dict(histogram.buckets())
    assert buckets["5e-05"] == 2
    assert buckets["0.0001"] == 3
    assert buckets["30"] == 3
    assert buckets["+Inf"] == 4


def test_no_label_comes_from_a_client_or_a_handler() -> None:
    metrics = Metrics()
    metrics.observe_error("made-up", errors.NoSuchFunction("no"))
    metrics.observe_error("f", errors.FunctionFailed('My"Error\n', "x"))
    read = samples(metrics)
    assert ("sockd_invocations_total", "f", "error") in read
    assert not any("made-up" in key or 'My"Error\n' in key for key in read)


def test_every_error_has_an_outcome_and_a_bug_is_internal() -> None:
    def classes(kind: type[BaseException]) -> list[type[BaseException]]:
        return [kind, *(sub for direct in kind.__subclasses__() for sub in classes(direct))]

    for kind in classes(errors.SockdError):
        assert outcome_of(kind.__new__(kind)) in OUTCOMES.values()
    assert outcome_of(KeyError("x")) == "internal_error"
    assert outcome_of(errors.Draining("x")) == "draining"


def test_a_failed_invocations_times_count_as_well() -> None:
    metrics = Metrics()
    error = errors.FunctionFailed("E", "x")
    error.invocation = served("warm")
    metrics.observe_error("f", error)
    assert samples(metrics)["sockd_phase_seconds_count", "exec"] == 1


def test_a_removed_function_leaves_no_series() -> None:
    metrics = Metrics()
    metrics.observe("f", served("warm"))
    metrics.forget("f")
    metrics.forget("f")
    assert not any("f" in key for key in samples(metrics))


def test_gauges_and_counters_are_read_when_scraped() -> None:
    metrics = Metrics()
    state = {"idle": 1.0}
    metrics.gauge("sandboxes", "Sandboxes by state.", lambda: state, label="state")
    metrics.counter("cache_hits", "Hits.", lambda: 7)
    state["busy"] = 2
    read = samples(metrics)
    assert read["sockd_sandboxes", "busy"] == 2
    assert read["sockd_cache_hits_total",] == 7
