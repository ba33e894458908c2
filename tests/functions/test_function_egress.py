"""The rules of functions with private networks: who has them, when they change, and what a failure leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sockd.base.config import NetworkConfig
from sockd.base.errors import BadFunctionConfig, NetworkUnavailable, StorageFull
from sockd.functions.registry.registry import Registry
from sockd.functions.serving.function_egress import FunctionEgress
from sockd.isolation.networks import egress
from sockd.isolation.networks.networks import Networks
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from tests.functions.harness import HELLO, opened
from tests.support.networks.network_lab import Lab, lab
from tests.support.servers.package_index import PackageIndex

pytestmark = [pytest.mark.root, pytest.mark.anyio]
ONE, OTHER = ["10.0.0.0/8:5432"], ["192.168.7.7:443", "internet:443"]


def full(*_: object, **__: object) -> None:
    """In place of what the registry does."""
    raise StorageFull


@pytest.fixture
def world() -> Iterator[Lab]:
    with lab() as world:
        yield world


@pytest.fixture
async def networks(world: Lab) -> AsyncIterator[Networks]:
    networks = await Networks.open(NetworkConfig(max_rules=3), "5eed0002", MemoryBudget(1 << 30).reserve_nowait)
    yield networks
    await networks.aclose()


async def test_rules_are_in_force_once_and_go_with_the_function(networks: Networks) -> None:
    rules = FunctionEgress(networks, "f", ONE)
    first, second = await asyncio.gather(rules.enforced(), rules.enforced())
    assert first is second and networks.view()["policies"] == 1
    assert first.egress == networks.parse(ONE)
    rules.close()
    assert networks.view()["policies"] == 0
    with pytest.raises(NetworkUnavailable, match="gone"):
        await rules.enforced()


async def test_rules_change_in_place_and_come_back_when_a_deploy_fails(networks: Networks) -> None:
    rules = FunctionEgress(networks, "f", ONE)
    policy = await rules.enforced()
    async with rules.changing(OTHER):
        assert policy.egress == networks.parse(OTHER)
    during = []

    async def fails() -> None:
        async with rules.changing([]):
            during.append(policy.egress.rules)
            raise StorageFull

    with pytest.raises(StorageFull):
        await fails()
    assert during == [()]
    assert policy.egress == networks.parse(OTHER) and await rules.enforced() is policy
    rules.close()


async def test_rules_said_before_the_first_start_are_those_of_the_first_start(networks: Networks) -> None:
    rules = FunctionEgress(networks, "f", None)
    async with rules.changing(ONE):
        pass
    assert (await rules.enforced()).egress == networks.parse(ONE)
    rules.close()


async def test_without_private_networks_a_start_says_why() -> None:
    with pytest.raises(NetworkUnavailable, match="started without them"):
        await FunctionEgress(None, "f", None).enforced()


async def test_a_deploy_checks_rules_and_keeps_what_it_replaces(
    networks: Networks, tmp_path: Path, index: PackageIndex
) -> None:
    async with opened(tmp_path, index, networks) as harness:
        for entries, words in (
            (["10.0.0.0/33"], "egress, entry 1, '10.0.0.0/33': not a network"),
            (["169.254.169.254"], "never reached"),
            (["10.0.0.1:0"], "ports are 1 to 65535"),
            (["10.0.0.1"] * 4, "may have 3"),
            (["api.example.com"], "names need a resolver"),
        ):
            with pytest.raises(BadFunctionConfig, match=words.replace("[", r"\[")):
                await harness.deploy("f", HELLO, network="private", egress=entries)
            assert harness.functions.live.names() == []
        with pytest.raises(BadFunctionConfig, match='goes with network = "private"'):
            await harness.deploy("f", HELLO, network="host", egress=ONE)
        version = await harness.deploy("f", HELLO, network="private", egress=ONE)
        assert version.info().egress == ONE


async def test_settings_of_the_worker_are_for_new_rules_and_recorded_ones_go_on(
    world: Lab, tmp_path: Path, index: PackageIndex, caplog: pytest.LogCaptureFixture
) -> None:
    rules = ["10.77.3.7:5432", *OTHER]

    async def worker(config: NetworkConfig) -> Networks:
        return await Networks.open(config, "5eed0002", MemoryBudget(1 << 30).reserve_nowait)

    before = await worker(NetworkConfig())
    async with opened(tmp_path, index, before) as harness:
        number = (await harness.deploy("f", HELLO, network="private", egress=rules)).record.version
    await before.aclose()
    tighter = await worker(NetworkConfig(denied=("10.77.0.0/16",), max_rules=2))
    async with opened(tmp_path, index, tighter) as harness:
        function = await harness.functions.live.get("f")
        policy = await function.allowance.egress.enforced()
        assert policy.egress == tighter.parse(OTHER), (
            "what is denied by now opens nothing; that there are too many is let be"
        )
        (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        for words in (
            "f has rules",
            "entry 1, '10.77.3.7:5432': 10.77.0.0/16",
            "(network.denied)",
            "network.max_rules",
        ):
            assert words in warning
        await function.allowance.egress.enforced()
        changed = await harness.functions.changes.configure("f", {"timeout_s": 7})
        assert (changed.config.egress, changed.record.version) == (rules, number + 1)
        for given, words in ((rules, "has 3 rules, and may have 2"), (rules[:1], "entry 1")):
            with pytest.raises(BadFunctionConfig, match=words):
                await harness.functions.changes.configure("f", {"egress": given})
            with pytest.raises(BadFunctionConfig, match=words):
                await harness.deploy("f", HELLO, network="private", egress=given)
        assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    await tighter.aclose()


async def test_rules_change_without_a_version_and_are_there_after_a_restart(
    networks: Networks, tmp_path: Path, index: PackageIndex
) -> None:
    async with opened(tmp_path, index, networks) as harness:
        deployed = await harness.deploy("f", HELLO, network="private", egress=ONE)
        number, program = deployed.record.version, deployed.program
        function = await harness.functions.live.get("f")
        policy = await function.allowance.egress.enforced()
        changed = await harness.functions.changes.configure("f", {"egress": []})
        assert changed.record.version == number and changed.program is program
        assert policy.egress.rules == () and changed.info().egress == []
    async with opened(tmp_path, index, networks) as harness:
        function = await harness.functions.live.get("f")
        assert function.version.config.egress == [] and function.version.record.version == number
        assert (await function.allowance.egress.enforced()).egress.rules == ()


async def test_rules_stay_the_functions_while_it_has_another_network(
    networks: Networks, tmp_path: Path, index: PackageIndex
) -> None:
    async with opened(tmp_path, index, networks) as harness:
        await harness.deploy("f", HELLO, network="private", egress=ONE)
        old = harness.functions.live.current("f").record
        await harness.deploy("f", {"f.py": "def f(event): return 2"}, network="host")
        assert harness.functions.live.current("f").config.egress == ONE, "published versions of it may be private"
        restored = await harness.functions.changes.restore(old)
        assert (restored.config.network, restored.config.egress) == ("private", ONE)
        await harness.functions.changes.configure("f", {"egress": OTHER})
        await harness.deploy("f", {"f.py": "def f(event): return 3"}, network="private")
        policy = await (await harness.functions.live.get("f")).allowance.egress.enforced()
        assert policy.egress == networks.parse(OTHER), "what a command has set stays until a deploy names it"
        await harness.deploy("f", {"f.py": "def f(event): return 3"}, network="private", egress=["internet"])
        assert policy.egress == egress.EVERYTHING_PUBLIC, "a deploy has the settings that it names"


async def test_a_published_version_is_cut_off_while_the_last_deploy_has_another_network(
    networks: Networks, tmp_path: Path, index: PackageIndex
) -> None:
    async with opened(tmp_path, index, networks) as harness:
        await harness.deploy("f", HELLO, network="host")
        with pytest.raises(BadFunctionConfig, match='goes with network = "private"'):
            await harness.functions.changes.configure("f", {"egress": []})
        await harness.deploy("f", {"f.py": "def f(event): return 2"}, network="private", egress=ONE)
        await harness.registry.publish("f", harness.functions.live.current("f").record.version, "")
        prod = await harness.functions.live.get("f", "1")
        policy = await prod.allowance.egress.enforced()
        await harness.deploy("f", {"f.py": "def f(event): return 3"}, network="host")
        assert harness.functions.registry.of("f").has_private and policy.egress == networks.parse(ONE)
        with pytest.raises(BadFunctionConfig, match="entry 1"):
            await harness.functions.changes.configure("f", {"egress": ["10.0.0.0/33"]})
        changed = await harness.functions.changes.configure("f", {"egress": []})
        assert (changed.config.network, changed.config.egress, policy.egress.rules) == ("host", [], ())
        await harness.deploy("g", HELLO, network="host")
        assert not harness.functions.registry.of("g").has_private


async def test_a_deploy_says_what_it_replaced_when_that_is_in_force(
    networks: Networks, tmp_path: Path, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, index, networks) as harness:
        await harness.deploy("f", HELLO, network="private", egress=ONE, run="keys")
        harness.progress.clear()
        with pytest.raises(BadFunctionConfig):
            await harness.deploy("f", HELLO, network="private", egress=["10.0.0.0/33"])
        with monkeypatch.context() as patches:
            patches.setattr(Registry, "put", full)
            with pytest.raises(StorageFull):
                await harness.deploy("f", HELLO, network="private", egress=OTHER)
        assert harness.progress == []
        await harness.deploy("f", HELLO, network="private", egress=OTHER)
        assert harness.progress == [
            "/run was 'keys', and is 'as http.run' from now on: a deploy has its sockd.toml's settings",
            "egress was 10.0.0.0/8:5432, and is 192.168.7.7:443, internet:443 from now on, for all versions",
        ]


async def test_a_change_that_cannot_be_recorded_changes_nothing(
    networks: Networks, tmp_path: Path, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, index, networks) as harness:
        await harness.deploy("f", HELLO, network="private", egress=ONE)
        policy = await (await harness.functions.live.get("f")).allowance.egress.enforced()
        monkeypatch.setattr(Registry, "amend", full)
        with pytest.raises(StorageFull):
            await harness.functions.changes.configure("f", {"egress": []})
        assert policy.egress == networks.parse(ONE) and harness.functions.live.current("f").config.egress == ONE


async def test_a_removed_function_leaves_no_rules(networks: Networks, tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index, networks) as harness:
        await harness.deploy("f", HELLO, network="private", egress=ONE)
        await (await harness.functions.live.get("f")).allowance.egress.enforced()
        assert networks.view()["policies"] == 1
        await harness.functions.remove("f")
        assert networks.view()["policies"] == 0
