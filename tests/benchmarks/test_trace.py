"""The traces that the policies are judged by."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.harness.package_table import MEASURED_MS, PACKAGES, POPULAR, closure
from benchmarks.harness.trace import dump, make_trace


def test_equal_arguments_make_equal_traces() -> None:
    assert dump(make_trace(functions=20, requests=200, seed=4)) == dump(make_trace(functions=20, requests=200, seed=4))
    assert dump(make_trace(functions=20, requests=200, seed=4)) != dump(make_trace(functions=20, requests=200, seed=5))


def test_few_functions_get_most_requests() -> None:
    calls = Counter(make_trace(functions=1000, requests=20_000, seed=1)["calls"])
    top = sum(count for _, count in calls.most_common(100))
    assert 0.5 < top / 20_000 < 0.85


def test_times_rise_at_the_wanted_rate() -> None:
    times = make_trace(functions=10, requests=5000, rate_per_s=20.0, seed=1)["times"]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(250, rel=0.1)


def test_every_function_asks_for_whole_closures() -> None:
    trace = make_trace(functions=200, requests=10, seed=1)
    keys = [key for key, _, _ in trace["packages"]]
    for function in trace["functions"]:
        for import_ in function:
            asked = {keys[index] for index in import_}
            name, vintage, _ = keys[import_[0]].rsplit("-", 2)
            assert {f"{needed}-{vintage}-wheel" for needed in closure(name)} == asked


def test_every_package_and_dependency_is_in_the_table() -> None:
    assert len(POPULAR) == len(set(POPULAR)) >= 60
    for name in PACKAGES:
        assert name in closure(name)


@pytest.mark.parametrize("name", MEASURED_MS)
def test_own_costs_add_up_to_the_measured_import(name: str) -> None:
    assert sum(PACKAGES[each].own_ms for each in closure(name)) == pytest.approx(MEASURED_MS[name], rel=0.02)
