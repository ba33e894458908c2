"""Lookups of names: which query of a function begins one, and which gets what an earlier one has found."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from sockd.isolation.networks import dns, lookups
from sockd.isolation.networks.lookups import Lookups

pytestmark = pytest.mark.anyio
FOUND = dns.Addresses([IPv4Address("9.9.9.9")], 30)
FAILED = dns.Addresses([], 0, dns.SERVER_FAILURE)


class Names:
    """Answers lookups, and counts them."""

    def __init__(self, answer: dns.Addresses) -> None:
        self.answer = answer
        self.begun = 0

    async def look_up(self, source: str, name: str) -> dns.Addresses:
        self.begun += 1
        return self.answer


async def ask(names: Names, *rules: int) -> int:
    """Ask for a name under rules of these numbers, one after the other. Returns: the lookups that were begun."""
    asked = Lookups(names.look_up)
    for number in rules:
        assert await asked.addresses("100.64.0.1", "api.example.com", number) == names.answer
    return names.begun


async def test_a_function_that_asks_again_at_once_gets_the_same_addresses() -> None:
    assert await ask(Names(FOUND), *[1] * 100) == 1


async def test_it_is_looked_up_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "REUSED_S", 0.0)
    assert await ask(Names(FOUND), *[1] * 100) == 100


async def test_other_rules_have_opened_nothing_yet() -> None:
    assert await ask(Names(FOUND), 1, 2, 2) == 2


async def test_a_failure_is_asked_again_for_addresses_and_not_for_aaaa() -> None:
    names = Names(FAILED)
    assert await ask(names, 1, 1) == 2
    asked = Lookups(names.look_up)
    assert [await asked.code("100.64.0.1", "api.example.com", 1) for _ in range(3)] == [dns.SERVER_FAILURE] * 3
    assert names.begun == 3
