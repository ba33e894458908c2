"""What rules do not allow does not pass, by no protocol; and each single rule is needed for that, or for what they allow."""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import IPv4Network

import pytest

from sockd.base.config import NetworkConfig
from sockd.isolation.networks import egress, router, ruleset, uplink
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from tests.isolation.networks.conftest import WORKER
from tests.support.cases import case
from tests.support.networks import network_attacks, network_stage, network_talks
from tests.support.networks.network_lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.anyio]

Change = Callable[[str], str]


async def wrong(world: Lab, budget: MemoryBudget, *, until_wrong: bool = False) -> list[str]:
    """What should be, and is not."""
    stage = await network_stage.stage(world, budget, WORKER)
    if until_wrong:
        stage.wait_s = network_stage.SHORT_WAIT_S
    try:
        facts = network_talks.talk(stage)
        facts.update(await network_talks.talk_by_name(stage))
        facts.update(await network_talks.talk_with_the_host(stage))
        is_known = until_wrong and not all(facts.values())
        results = {} if is_known else network_attacks.attempt_everything(stage, until_wrong=until_wrong)
    finally:
        await network_stage.close(stage)
    different = {name: each for name, each in results.items() if each != stage.expected.get(name)}
    return [
        *[f"not so: {name}" for name, is_so in facts.items() if not is_so],
        *[f"{name}: {each}" for name, each in different.items()],
    ]


@case(
    "N1",
    "send from a private network, by every protocol, to what no rule allows",
    expect="0 bytes pass, refused at once",
)
async def test_nothing_passes_that_is_not_allowed(world: Lab, budget: MemoryBudget) -> None:
    assert await wrong(world, budget) == []


@case("N1", "the same on a kernel that cannot tell the host's addresses in a rule (fib)", expect="0 bytes pass")
async def test_nothing_passes_without_fib(world: Lab, budget: MemoryBudget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uplink, "judges_by_destination", lambda: False)
    assert await wrong(world, budget) == []


def rules_of(text: str) -> list[str]:
    """The rules in the text of a table: lines in chains."""
    chains = re.findall(r"chain [\w-]+ \{\n(.*?)\n    \}", text, re.DOTALL)
    lines = [line.strip() for chain in chains for line in chain.splitlines()]
    return [line for line in lines if not line.startswith("type ")]


def elements_of(text: str, name: str) -> list[str]:
    """The elements of a set."""
    found = re.search(rf"set {name} .*?elements = \{{(.*?)\}}", text)
    assert found is not None
    return [element.strip() for element in found[1].split(",")]


NEVER = [IPv4Network(each) for each in NetworkConfig().denied]
ROUTER = ruleset.router(
    [*egress.NEVER, *NEVER, IPv4Network("100.64.0.0/10"), IPv4Network("198.18.0.0/15")],
    network_stage.MOST,
)
HOST = ruleset.host(f"sockd-{WORKER}", f"sd{WORKER}", "ADDRESS")
WITHOUT_FIB = ruleset.host_without_fib(f"sockd-{WORKER}", f"sd{WORKER}", "ADDRESS")
POLICY = ruleset.chain(ruleset.Chain("function-1", 1, egress.parse(network_stage.RULES, most=len(network_stage.RULES))))
FUNCTION_RULES = [line for line in POLICY.splitlines() if line.startswith("add rule")]


def without_line(number: int) -> Change:
    def change(text: str) -> str:
        lines = text.splitlines()
        del lines[[at for at, line in enumerate(lines) if line.strip() in rules_of(text)][number]]
        return "\n".join(lines) + "\n"

    return change


def without_element(name: str, element: str) -> Change:
    def change(text: str) -> str:
        begin = text.index("{", text.index("elements = ", text.index(f"set {name} ")))
        end = text.index("}", begin)
        kept = [each.strip() for each in text[begin + 1 : end].split(",") if each.strip() != element]
        return f"{text[:begin]}{{ {', '.join(kept)} {text[end:]}"

    return change


def without_rule(number: int) -> Change:
    def change(text: str) -> str:
        lines = text.splitlines()
        rules = [line for line in lines if line.startswith("add rule")]
        if len(rules) == len(FUNCTION_RULES):  # the attacker's, and not the neighbour's
            lines.remove(rules[number])
        return "\n".join(lines) + "\n"

    return change


CHANGES = [
    *[pytest.param("router", without_line(number), id=line) for number, line in enumerate(rules_of(ROUTER))],
    *[
        pytest.param("router", without_element(name, element), id=f"{name} {element}")
        for name in ("never", "private")
        for element in elements_of(ROUTER, name)
    ],
    *[pytest.param("host", without_line(number), id=f"host: {line}") for number, line in enumerate(rules_of(HOST))],
    *[
        pytest.param("host_without_fib", without_line(number), id=f"host without fib: {line}")
        for number, line in enumerate(rules_of(WITHOUT_FIB))
    ],
    *[pytest.param("chain", without_rule(number), id=line) for number, line in enumerate(FUNCTION_RULES)],
]


def test_the_rules_are_found() -> None:
    assert (
        len(rules_of(ROUTER)) == 22 and len(rules_of(HOST)) == 2 and len(FUNCTION_RULES) == len(network_stage.RULES) + 2
    )


@pytest.mark.parametrize(("name", "change"), CHANGES)
async def test_each_rule_is_needed(
    name: str, change: Change, world: Lab, budget: MemoryBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = getattr(ruleset, name)
    changed: list[bool] = []

    def broken(*arguments: object) -> str:
        text = whole(*arguments)
        changed.append(change(text) != text)
        return change(text)

    monkeypatch.setattr(ruleset, name, broken)
    if name == "host_without_fib":
        monkeypatch.setattr(uplink, "judges_by_destination", lambda: False)
    assert await wrong(world, budget, until_wrong=True) != []
    assert any(changed)


@pytest.mark.parametrize(
    ("name", "value"), [("ipv4/ip_forward", 0), ("ipv4/conf/all/rp_filter", 0), ("ipv4/icmp_ratelimit", 1000)]
)
async def test_each_sysctl_is_needed(
    name: str, value: int, world: Lab, budget: MemoryBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the kernel's default instead; left out, a new namespace would have what the host happens to have."""
    monkeypatch.setattr(router, "SYSCTLS", [*router.SYSCTLS, (name, value)])
    assert await wrong(world, budget, until_wrong=True) != []
