"""Why a start was cold, inferred from what is remembered; and what it imported, summed up by package."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sockd.observe.cold_starts import MAX_IMPORTED, imported_packages, why_cold


def past(arrived: int, answered: int, *, function: str = "f", deploy: int = 1, error: str = "", why: str = "") -> Any:
    return SimpleNamespace(
        function=function,
        deploy=deploy,
        arrived_ns=arrived,
        started_ns=arrived,
        answered_ns=answered,
        error_type=error,
        why=why,
    )


@pytest.mark.parametrize(
    ("earlier", "words"),
    [
        ([], "first request of this function"),
        ([past(0, 5, function="g")], "first request of this function"),
        ([past(0, 5, deploy=0)], "first request since deploy 1"),
        ([past(0, 50)], "1 other request ran"),
        ([past(0, 50), past(1, 60), past(2, 3)], "2 other requests ran"),
        ([past(0, 5), past(6, 7, error="Sandbox.Timedout")], "ended with Sandbox.Timedout"),
        ([past(0, 5)], "evicted for others"),
    ],
)
def test_the_reason_is_what_happened_before(earlier: list[Any], words: str) -> None:
    this = past(10, 20)
    assert words in why_cold(this, [*earlier, this, past(11, 90)])


def test_one_that_asked_for_a_new_sandbox_is_the_reason() -> None:
    this = past(10, 20, why="asked for")
    assert why_cold(this, [past(0, 50), this]) == "A new sandbox was asked for."


def test_imports_are_summed_up_by_package_the_slowest_first() -> None:
    slow, quick = imported_packages([("b", "b", 0.1), ("a", "a", 0.5), ("b", "b.c", 0.1)])
    assert (slow.package, slow.modules, slow.ns) == ("a", 1, 500_000_000)
    assert (quick.package, quick.modules, quick.ns) == ("b", 2, 200_000_000)


def test_many_packages_are_reported_as_a_few_and_the_rest() -> None:
    reported = imported_packages([(f"p{number:02}", "m", 1.0) for number in range(MAX_IMPORTED + 5)])
    assert len(reported) == MAX_IMPORTED + 1
    assert (reported[-1].package, reported[-1].modules) == ("5 more packages", 5)
