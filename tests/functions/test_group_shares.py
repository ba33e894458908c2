"""Shares of a group's limits: every worker finds the same division, and each admits one request at least."""

from __future__ import annotations

from collections import Counter
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.serving.allowance import Allowance
from sockd.functions.serving.group_shares import Claim, GroupShares
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


class Group:
    """Workers that report in turns, each with what is under way there."""

    def __init__(self, count: int, limit: int) -> None:
        self.names, self.limit = [f"w{number}" for number in range(count)], limit
        self.shares = dict(zip(self.names, shares_of(self.names), strict=True))
        self.running = dict.fromkeys(self.names, 0)
        self._reports: dict[str, str] = {}
        self.asked = Counter[str]()
        for name, each in self.shares.items():
            each.wanting.append(partial(self.asked.update, [name]))

    def admits(self, name: str) -> int:
        return self.shares[name].of_concurrency("f", self.limit)

    def claims(self, name: str) -> dict[str, Claim]:
        return self.shares[name].report({"f": self.running[name]}, lambda _: self.admitted(name))

    def admitted(self, name: str) -> int:
        """As `Allowances.admitted`."""
        most = max(self.admits(name), self.running[name])
        return most if most > 1 else self.running[name]

    def report(self, name: str) -> None:
        self._reports[name] = msgspec.json.encode(self.claims(name)).decode()
        others = {each: text for each, text in self._reports.items() if each != name and text != "{}"}
        if self.shares[name].change(self.names, others):
            self._reports[name] = msgspec.json.encode(self.claims(name)).decode()

    def report_all(self) -> None:
        for name in self.names:
            self.report(name)


def test_the_home_of_a_function_gets_what_the_others_do_not_use() -> None:
    group = Group(3, 10)
    even = [group.admits(name) for name in group.names]
    assert sorted(even) == [3, 3, 4]
    group.shares["w1"].want("f", 12)
    assert group.asked == {"w1": 1}
    for _ in range(2):
        group.report_all()
    assert [group.admits(name) for name in group.names] == [1, 10, 1]
    group.running["w2"] = 1
    for _ in range(2):
        group.report_all()
    assert [group.admits(name) for name in group.names] == [1, 9, 1], "what another one runs is its own"
    for _ in range(20):
        group.report_all()
    assert [group.admits(name) for name in group.names] == even, "requests have not waited any more"


def test_workers_that_both_want_more_divide_it_by_what_they_want() -> None:
    group = Group(4, 20)
    for name, count in (("w1", 30), ("w2", 10)):
        group.shares[name].want("f", count)
        group.running[name] = count
    for _ in range(2):
        group.report_all()
    assert [group.shares[name]._target("f", 20) for name in group.names] == [1, 15, 5, 1]


def test_one_that_is_no_member_yet_wants_nothing() -> None:
    shares = GroupShares("w1")
    shares.want("f", 5)
    assert shares.report({}, lambda _: 1) == {}


@given(st.integers(2, 5), st.integers(1, 12), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=40))
def test_workers_that_know_each_other_admit_no_more_than_the_limit_but_for_idle_ones(
    count: int, limit: int, steps: list[tuple[int, int]]
) -> None:
    group = Group(count, limit)
    for number, what in steps:
        name = group.names[number % count]
        if what == 0:
            group.running[name] = min(group.running[name] + 1, max(group.admits(name), group.running[name]))
        elif what == 1:
            group.running[name] = max(group.running[name] - 1, 0)
        elif what == 2:
            group.shares[name].want("f", group.running[name] + 3)
        else:
            group.report(name)
    for _ in range(3):
        group.report_all()
        group.running = {name: min(running, group.admits(name)) for name, running in group.running.items()}
    busy = sum(group.admitted(name) > 0 for name in group.names)
    assert sum(group.admitted(name) for name in group.names) <= max(limit, busy)


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
