"""The worker's numbers, read back by Prometheus' own parser."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sockd.base import errors
from sockd.base.telemetry import Invocation, Times
from sockd.observe.metrics import FUNCTIONS_AT_ONCE, REASONS, Metrics, reason_of
from sockd.observe.series import BOUNDS_NS, Histogram


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(b"".join(metrics.render()).decode())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def served(origin: str) -> Invocation:
    times = Times(queue=0, setup=2_000_000, init=3_000_000, exec=500_000_000)
    return Invocation(b"", origin, "s", "v", times=times)  # type: ignore[arg-type]


def test_invocations_are_counted_under_the_names_of_the_faas_conventions() -> None:
    metrics = Metrics()
    for origin in ("warm", "warm", "paused", "spare"):
        metrics.observe("f", "http", served(origin))
    metrics.observe("f", "timer", served("warm"))
    metrics.observe_error("f", "http", errors.TimedOut("late"))
    metrics.observe_error("f", "http", errors.FunctionFailed("E", "x"))
    metrics.observe_error("f", "http", errors.TooManyRequests("full"))
    read = samples(metrics)
    assert read["faas_invocations_total", "f", "http"] == 4
    assert read["faas_invocations_total", "f", "timer"] == 1
    assert read["faas_errors_total", "f", "http"] == 2, "a request that was refused is no error"
    assert read["faas_timeouts_total", "f", "http"] == 1
    assert read["faas_coldstarts_total", "f", "http"] == 1, "a thawed sandbox is not a cold start"
    assert read["faas_invoke_duration_seconds_sum", "f", "http"] == 2.0
    assert read["faas_invoke_duration_seconds_bucket", "f", "http", "0.25"] == 0
    assert read["faas_invoke_duration_seconds_bucket", "f", "http", "0.5"] == 4
    assert read["faas_init_duration_seconds_sum", "f", "http"] == 0.003
    assert read["sockd_failures_total", "f", "http", "throttled"] == 1
    assert read["sockd_starts_total", "spare"] == 1 and read["sockd_starts_total", "paused"] == 1


def test_a_phase_is_counted_only_where_it_happened() -> None:
    metrics = Metrics()
    for origin in ("warm", "paused", "spare", "zygote"):
        metrics.observe("f", "http", served(origin))
    read = samples(metrics)
    counts = {phase: read["sockd_phase_seconds_count", phase] for phase in ("queue", "setup", "init")}
    assert counts == {"queue": 4, "setup": 3, "init": 2}
    assert read["sockd_phase_seconds_sum", "init"] == pytest.approx(0.006)


def test_a_bucket_includes_its_own_bound() -> None:
    histogram = Histogram()
    for duration_ns in (0, BOUNDS_NS[0], BOUNDS_NS[0] + 1, BOUNDS_NS[-1] + 1):
        histogram.observe(duration_ns)
    buckets = dict(histogram.buckets())
    assert buckets["0.0001"] == 2
    assert buckets["0.00025"] == 3
    assert buckets["60"] == 3
    assert buckets["+Inf"] == 4


def test_no_label_comes_from_a_client_or_a_handler() -> None:
    metrics = Metrics()
    metrics.observe_error("made-up", "http", errors.NoSuchFunction("no"))
    metrics.observe_error("f", "http", errors.FunctionFailed('My"Error\n', "x"))
    read = samples(metrics)
    assert ("sockd_failures_total", "f", "http", "error") in read
    assert not any("made-up" in key or 'My"Error\n' in key for key in read)


def test_every_error_has_a_reason_and_a_bug_is_internal() -> None:
    def classes(kind: type[BaseException]) -> list[type[BaseException]]:
        return [kind, *(sub for direct in kind.__subclasses__() for sub in classes(direct))]

    for kind in classes(errors.SockdError):
        assert reason_of(kind.__new__(kind)) in REASONS.values()
    assert reason_of(KeyError("x")) == "internal_error"
    assert reason_of(errors.Draining("x")) == "draining"


def test_a_failed_invocations_times_count_as_well() -> None:
    metrics = Metrics()
    error = errors.FunctionFailed("E", "x")
    error.invocation = served("warm")
    metrics.observe_error("f", "http", error)
    assert samples(metrics)["faas_invoke_duration_seconds_count", "f", "http"] == 1


def test_a_removed_function_leaves_no_series() -> None:
    metrics = Metrics()
    metrics.observe("f", "http", served("warm"))
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


def test_a_family_of_many_functions_is_whole_and_written_in_steps() -> None:
    """A scrape of a thousand functions must not hold up requests: no step has more than some of them."""
    metrics = Metrics()
    names = {f"f{number}" for number in range(FUNCTIONS_AT_ONCE * 3 + 1)}
    for name in names:
        metrics.observe(name, "http", served("spare"))
    pieces = list(metrics.render())
    assert pieces[:4] == [b""] * 4 and all(pieces[4:])
    read = samples(metrics)
    assert {key[1] for key in read if key[0] == "faas_coldstarts_total"} == names
    text = b"".join(pieces)
    assert text.count(b"# TYPE faas_invocations_total counter") == 1
    for name in ("f0", "f96"):
        metrics.forget(name)
        assert f'"{name}"'.encode() in text and f'"{name}"'.encode() not in b"".join(metrics.render())
