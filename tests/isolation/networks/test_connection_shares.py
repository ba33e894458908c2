"""Tracked connections of the host: whatever the sandboxes of private networks send, half of the table stays free."""

from __future__ import annotations

import contextlib
import socket

import pytest

from sockd.base.config import NetworkConfig
from sockd.isolation.networks.connection_shares import ENTRIES, ConnectionShares
from sockd.isolation.networks.endpoint import Endpoint
from sockd.isolation.networks.networks import Networks, tracked_connections
from sockd.isolation.networks.ruleset import LEAST_CONNECTIONS, Limits, classes
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.linux.network import network_namespaces
from tests.isolation.networks.conftest import WORKER
from tests.support.cases import Happened, case
from tests.support.networks.network_lab import PORT, PUBLIC, Lab, OwnNamespaces

SIZES = [4096, 1024, 256, 64]
SANDBOXES, FLOWS, OF_FUNCTION = 12, 600, 1200


def test_the_first_sandboxes_have_what_the_settings_say_and_a_crowd_has_less() -> None:
    shares = ConnectionShares(SIZES, 40_000, 20_000)
    granted = [shares.take("a") for _ in range(100)]
    assert granted[:2] == [4096, 4096] and granted == sorted(granted, reverse=True)
    assert set(granted) == set(SIZES) and sum(each for each in granted if each > 64) <= 20_000
    assert shares.take("b") == 4096, "another function has a share of its own"


def test_all_functions_together_are_bounded() -> None:
    shares = ConnectionShares(SIZES, 40_000, 20_000)
    granted = [shares.take(f"function-{number}") for number in range(100)]
    assert granted == sorted(granted, reverse=True) and sum(each for each in granted if each > 64) <= 40_000


def test_what_is_given_back_is_granted_again() -> None:
    shares = ConnectionShares(SIZES, 40_000, 20_000)
    granted = [shares.take("a") for _ in range(100)]
    for each in granted:
        shares.give_back("a", each)
    assert [shares.take("a") for _ in range(100)] == granted


def test_new_connections_are_in_proportion() -> None:
    assert [(each.connections, each.new_connections) for each in classes(Limits(4096, 2048, 9))] == [
        *((4096, 2048), (1024, 512), (256, 128), (LEAST_CONNECTIONS, 32))
    ]
    assert classes(Limits(100, 50, 9)) == [Limits(100, 50, 9)]
    assert classes(Limits(1, 1, 9)) == [Limits(1, 1, 9)]


async def flood(world: Lab, budget: MemoryBudget, happened: Happened) -> tuple[int, int]:
    """Send `FLOWS` flows from each of some sandboxes of one function. Returns: the host's tracked connections, the flows."""
    config = NetworkConfig(connections=1024, new_connections=1024, function_connections=OF_FUNCTION)
    networks = await Networks.open(config, WORKER, budget.reserve_nowait)
    async with contextlib.aclosing(networks):
        policy = await networks.policy(networks.parse([f"{PUBLIC}:1-65535"]))
        pool = await networks.pool(OwnNamespaces(), has_network=True)
        with contextlib.ExitStack() as stack:
            stack.callback(policy.close)
            for _ in range(SANDBOXES):
                one = stack.enter_context(contextlib.closing(await pool.make()))
                one.admit(policy)
                send_flows(world, one)
            tracked = int(network_namespaces.sysctl("netfilter/nf_conntrack_count"))
        happened(f"{SANDBOXES * FLOWS} flows, {tracked} tracked")
    return tracked, SANDBOXES * FLOWS


def send_flows(world: Lab, one: Endpoint) -> None:
    """Flows of one datagram each; those beyond the limit are refused."""
    assert one.namespace is not None
    with network_namespaces.entered(one.namespace), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for number in range(FLOWS):
            sock.sendto(b"flow", (PUBLIC, PORT + number))


@case(
    "N6",
    f"send {FLOWS} flows from each of {SANDBOXES} sandboxes of one function, whose share is {OF_FUNCTION}",
    expect="the host tracks no more than the share, and 64 for each sandbox",
)
@pytest.mark.root
@pytest.mark.anyio
async def test_a_crowd_of_one_function_fills_its_share_alone(
    world: Lab, budget: MemoryBudget, happened: Happened
) -> None:
    tracked, _ = await flood(world, budget, happened)
    assert OF_FUNCTION / 2 < tracked <= OF_FUNCTION + SANDBOXES * LEAST_CONNECTIONS


@pytest.mark.root
@pytest.mark.anyio
async def test_without_shares_it_fills_the_table(
    world: Lab, budget: MemoryBudget, happened: Happened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConnectionShares, "take", lambda shares, function: shares._classes[0])
    monkeypatch.setattr(ConnectionShares, "give_back", lambda *granted: None)
    tracked, flows = await flood(world, budget, happened)
    assert tracked > flows * 0.9


@pytest.mark.root
@pytest.mark.anyio
async def test_half_of_the_hosts_table_stays_free_by_default(world: Lab, budget: MemoryBudget) -> None:
    networks = await Networks.open(NetworkConfig(), WORKER, budget.reserve_nowait)
    shares = networks._shares(SIZES)
    granted = sum(shares.take(f"function-{number}") for number in range(1000))
    assert (granted - 1000 * LEAST_CONNECTIONS) * ENTRIES <= tracked_connections() // 2
    await networks.aclose()
