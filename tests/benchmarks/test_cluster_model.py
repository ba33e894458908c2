"""The model of a group: how it chooses workers, and what it counts as cold."""

from __future__ import annotations

from benchmarks.cluster_parts.model import NO_BOUND, ROUND_ROBIN, Played, play
from benchmarks.cluster_parts.zipf_trace import Call, zipf_trace

ENOUGH = 1000


def played(calls: list[Call], workers: int, *, bound: int = 150, home: int = 32, places: int = ENOUGH) -> Played:
    return play(calls, workers, places=places, cold_s=0.01, bound_percent=bound, home_calls=home)


def apart(*functions: int) -> list[Call]:
    """Calls of which each has ended when the next one begins."""
    return [Call(float(number), function, 0.1) for number, function in enumerate(functions)]


def at_once(*functions: int) -> list[Call]:
    return [Call(0.0, function, 1.0) for function in functions]


def test_the_first_call_of_a_function_is_cold_and_the_next_is_not() -> None:
    assert played(apart(1, 1, 2, 1, 2), 1).cold == 2
    assert played(at_once(1, 1, 1), 1).cold == 3


def test_a_worker_without_room_ends_the_sandbox_that_is_idle_for_longest() -> None:
    assert played(apart(1, 2, 1, 3, 1), 1, places=2).cold == 3
    assert played(apart(1, 2, 1, 3, 2), 1, places=2).cold == 4


def test_in_turns_each_worker_starts_each_function() -> None:
    assert played(apart(1, 1, 1, 1, 1, 1), 3, bound=ROUND_ROBIN, home=0).cold == 3


def test_a_function_stays_at_its_home_until_that_has_many_calls() -> None:
    assert played(at_once(*[1] * 32), 3).most_calls == 32
    spread = played(at_once(*[1] * 90), 3)
    assert 32 < spread.most_calls < 60
    assert played(at_once(*[1] * 90), 3, bound=NO_BOUND, home=0).most_calls == 90


def test_a_bound_alone_passes_a_worker_over_for_two_calls_at_a_time() -> None:
    assert played(at_once(1, 1), 3, home=0).most_calls == 1


def test_homes_cost_no_more_cold_calls_than_one_worker_has_while_the_load_is_low() -> None:
    trace = zipf_trace(300, 3000, 100.0)
    alone, homes, bound = played(trace, 1), played(trace, 3), played(trace, 3, home=0)
    assert homes.cold == alone.cold and bound.cold > 1.2 * alone.cold
