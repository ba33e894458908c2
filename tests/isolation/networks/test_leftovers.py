"""A SIGKILL of the worker leaves nothing that its next start does not remove, and nothing that others have is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sockd.base.config import NetworkConfig
from sockd.base.errors import NetworkUnavailable
from sockd.isolation.networks.networks import Networks
from sockd.isolation.networks.uplink import link_of, table_of
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.linux.network import network_namespaces
from tests.isolation.networks.conftest import WORKER
from tests.support.networks.network_lab import Lab, OwnNamespaces, read

pytestmark = [pytest.mark.root, pytest.mark.anyio]

ROOT = Path(__file__).parents[3]
DIES = """
import asyncio, os, signal, sys
from sockd.isolation.networks.networks import Networks
from sockd.base.config import NetworkConfig
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from tests.support.networks.network_lab import OwnNamespaces

async def main():
    networks = await Networks.open(NetworkConfig(), sys.argv[1], MemoryBudget(1 << 30).reserve_nowait)
    pool = await networks.pool(OwnNamespaces(), has_network=True)
    policy = await networks.policy(networks.parse(None))
    (await pool.make()).admit(policy)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def tables() -> set[str]:
    listed = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in listed.splitlines()}


def links(world: Lab) -> set[str]:
    return {str(name) for name, _ in read(world.host)["links"]}


async def test_the_next_start_removes_what_a_killed_worker_left(world: Lab, budget: MemoryBudget) -> None:
    subprocess.run(["nft", "add", "table", "ip", "sockd-other"], check=True)
    before = links(world)
    died = subprocess.run([sys.executable, "-c", DIES, WORKER], cwd=ROOT, check=False)
    assert died.returncode == -signal.SIGKILL
    assert table_of(WORKER) in tables()
    networks = await Networks.open(NetworkConfig(), WORKER, budget.reserve_nowait)
    assert tables() == {"sockd-other"} and links(world) == before
    await networks.aclose()


async def test_a_link_that_outlived_its_router_is_replaced(world: Lab, networks: Networks) -> None:
    await networks.pool(OwnNamespaces(), has_network=True)
    assert networks.router is not None
    held = os.dup(networks.router.namespace)  # as a process would that did not die
    with network_namespaces.entered(held):
        network_namespaces.set_sysctl("ipv4/ip_forward", 0)
    again = await Networks.open(NetworkConfig(), WORKER, MemoryBudget(1 << 30).reserve_nowait)
    assert link_of(WORKER) not in links(world)
    await again.pool(OwnNamespaces(), has_network=True)
    assert link_of(WORKER) in links(world)
    await again.aclose()
    os.close(held)


async def test_two_workers_do_not_meet(world: Lab, networks: Networks, budget: MemoryBudget) -> None:
    other = await Networks.open(NetworkConfig(), "5eed0002", budget.reserve_nowait)
    for each in (networks, other):
        await each.pool(OwnNamespaces(), has_network=True)
    assert networks.router is not None and other.router is not None
    assert networks.router.uplink.address != other.router.uplink.address
    await other.aclose()
    assert link_of(WORKER) in links(world) and table_of(WORKER) in tables()


async def test_a_host_that_does_not_forward_learns_the_fix(world: Lab, networks: Networks) -> None:
    network_namespaces.set_sysctl("ipv4/ip_forward", 0)
    with pytest.raises(NetworkUnavailable, match=r"sysctl -w net\.ipv4\.ip_forward=1"):
        await networks.policy(networks.parse(None))


async def test_the_worker_switches_forwarding_on_if_it_may(world: Lab, budget: MemoryBudget) -> None:
    network_namespaces.set_sysctl("ipv4/ip_forward", 0)
    networks = await Networks.open(NetworkConfig(ip_forward=True), WORKER, budget.reserve_nowait)
    (await networks.policy(networks.parse(None))).close()
    assert network_namespaces.sysctl("ipv4/ip_forward") == "1"
    await networks.aclose()
