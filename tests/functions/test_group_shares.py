"""Shares of a group's limits: every worker finds the same division, and each admits one request at least."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.serving.allowance import Allowance
from sockd.functions.serving.group_shares import GroupShares
from sockd.isolation.sandbox.memory_budget import MemoryBudget

NAMES = st.lists(st.from_regex(r"[a-z0-9.-]{1,8}", fullmatch=True), min_size=1, max_size=12, unique=True)


def shares_of(workers: list[str]) -> list[GroupShares]:
    shares = [GroupShares(worker) for worker in workers]
    for each in shares:
        each.change(workers)
    return shares


@given(NAMES, st.integers(0, 1000), st.text(max_size=8))
def test_shares_add_up_to_the_limit_and_differ_by_one_at_most(workers: list[str], limit: int, function: str) -> None:
    found = [each.of(function, limit) for each in shares_of(workers)]
    assert sum(found) == limit and max(found) - min(found) <= 1
    admitted = [each.of_concurrency(function, limit) for each in shares_of(workers)]
    assert admitted == (found if limit >= len(workers) else [min(limit, 1)] * len(workers))


def test_remainders_of_many_functions_are_spread_over_all_workers() -> None:
    workers = shares_of(["w1", "w2", "w3"])
    more = Counter(number for f in range(300) for number, each in enumerate(workers) if each.of(f"f{f}", 4) == 2)
    assert sum(more.values()) == 300 and min(more.values()) > 60


def test_a_worker_that_comes_or_goes_changes_shares_once() -> None:
    shares, changes = GroupShares("w1"), list[int]()
    shares.followers.append(lambda: changes.append(shares.divisor))
    assert shares.of("f", 10) == 10
    for workers in (["w1"], ["w1"], ["w1", "w2"], ["w1", "w2"], ["w1"]):
        shares.change(workers)
    assert changes == [1, 2, 1]


@pytest.mark.anyio
async def test_a_function_admits_its_share_until_a_worker_is_gone() -> None:
    shares = GroupShares("w1")
    shares.change(["w1", "w2"])
    config = FunctionConfig(concurrency=4)
    allowance = Allowance("f", config, MemoryBudget(0), share=lambda limit: shares.of_concurrency("f", limit))
    assert [allowance.admission.try_enter() for _ in range(3)] == [True, True, False]
    shares.change(["w1"])
    allowance.divide()
    assert [allowance.admission.try_enter() for _ in range(3)] == [True, True, False]
    allowance.change(FunctionConfig(concurrency=0))
    assert allowance.admission.concurrency == 0
    allowance.close()
