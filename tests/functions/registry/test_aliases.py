"""Which version an alias picks, and how it divides what is provisioned for it."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.base.invoke_request import InvokeRequest
from sockd.functions.registry.aliases import NAME, Alias, Guard, number_of


def test_a_request_is_drawn_once_for_all_its_tries() -> None:
    alias = Alias("f", "prod", "1", "2", 0.25)
    requests = [InvokeRequest("f", b"", uuid.uuid4().bytes, 0) for _ in range(2000)]
    picked = [alias.pick(request.draw()) for request in requests]
    assert 350 < picked.count("2") < 650  # 500 are to be expected; 7 standard deviations
    same = [InvokeRequest("f", b"", uuid.uuid4().bytes, 0, retried_as=b"8 bytes.") for _ in range(20)]
    assert len({request.draw() for request in same}) == 1


@given(st.floats(0, 1, exclude_max=True))
def test_an_alias_without_a_second_version_has_one(draw: float) -> None:
    assert Alias("f", "prod", "1").pick(draw) == "1"
    assert Alias("f", "prod", "1", "2", 0.0).pick(draw) == "1"


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 1000))
def test_shares_are_all_there_is_and_no_ones_is_none_while_there_are_two(weight: float, count: int) -> None:
    shares = Alias("f", "prod", "1", "2", weight).shares(count)
    assert sum(shares.values()) == count
    assert all(share > 0 for share in shares.values())
    if weight > 0 and count > 1:
        assert shares.keys() == {"1", "2"}
        assert abs(shares["2"] - weight * count) <= 1


@pytest.mark.parametrize(
    ("word", "number"), [("7", 7), ("0", 0), ("-1", None), ("1e3", None), ("²", None), ("9" * 19, None), ("", None)]
)
def test_numbers_are_what_the_registry_can_hold(word: str, number: int | None) -> None:
    assert number_of(word) == number


@pytest.mark.parametrize(("name", "valid"), [("prod", True), ("7a", True), ("7", False), ("a b", False), ("", False)])
def test_names_of_aliases(name: str, valid: bool) -> None:
    assert bool(NAME.fullmatch(name)) == valid


GUARD = Guard(most_errors=0.05, least_requests=20, hold_s=600.0, since_s=1000.0)


@pytest.mark.parametrize(
    ("requests", "failed", "after_s", "verdict"),
    [
        (0, 0, 10_000, None),  # nobody has called it
        (1, 1, 1, None),  # one failure of 20 is within the share
        (2, 2, 1, False),  # and two are not, whatever the other 18 are
        (19, 0, 10_000, None),
        (20, 1, 599, None),
        (20, 1, 600, True),
        (1000, 50, 600, True),
        (1000, 51, 1, False),
    ],
)
def test_a_guard_judges_by_share_number_and_time(
    requests: int, failed: int, after_s: float, verdict: bool | None
) -> None:
    assert GUARD.verdict(requests, failed, GUARD.since_s + after_s) is verdict


@pytest.mark.parametrize(("promotes", "version"), [(True, "2"), (False, "1")])
def test_a_decided_alias_has_one_version_and_no_guard(promotes: bool, version: str) -> None:
    alias = Alias("f", "prod", "1", "2", 0.1, "words", "r", GUARD).decided(promotes=promotes, outcome="so")
    assert alias == Alias("f", "prod", version, description="words", revision="r", outcome="so")
    assert {alias.pick(draw) for draw in (0.0, 0.05, 0.99)} == {version}
