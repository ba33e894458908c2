"""The pool: ready endpoints are taken at once, made anew, as many as lately were needed, within memory; none is used twice."""

from __future__ import annotations

import asyncio
import errno
import os
from ipaddress import IPv4Network

import pytest

from sockd.base.config import NetworkConfig
from sockd.base.errors import NoCapacity
from sockd.isolation.networks.addresses import Addresses
from sockd.isolation.networks.demand import Demand
from sockd.isolation.networks.endpoint import MEMORY_BYTES, Endpoint
from sockd.isolation.networks.endpoint_pool import AT_ONCE, MOST_ENDED, EndpointPool
from sockd.isolation.networks.networks import Networks
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.worker.builders.idle_memory import IdleMemory
from tests.isolation.networks.conftest import WORKER
from tests.support.networks.network_lab import Lab, OwnNamespaces, read

LEAST = 6
PERMANENT = 0x80
"""NUD_PERMANENT: a neighbour that nobody asks for."""


class Counting(OwnNamespaces):
    """Says when so many were asked for; can be made to fail."""

    def __init__(self) -> None:
        self.made = 0
        self.fails = False

    async def make(self, count: int) -> list[int]:
        if self.fails:
            raise OSError(errno.ENOSPC, "no more namespaces")
        self.made += count
        return await super().make(count)


async def until_ready(pool: EndpointPool, count: int) -> None:
    """Let others run until so many are ready."""
    async with asyncio.timeout(20):
        while len(pool) < count:
            await asyncio.sleep(0)


def destinations(namespace: int) -> set[str]:
    """What a namespace has routes for."""
    return {str(destination) for destination, _ in read(namespace)["routes"]}


@pytest.fixture
def config() -> NetworkConfig:
    return NetworkConfig(least_pool=LEAST, pool=2 * LEAST, idle_pools=0)


async def open_networks(config: NetworkConfig, budget: MemoryBudget) -> Networks:
    return await Networks.open(config, WORKER, budget.reserve_nowait)


@pytest.mark.root
@pytest.mark.anyio
async def test_a_pool_is_filled_emptied_and_filled_again(
    world: Lab, budget: MemoryBudget, config: NetworkConfig
) -> None:
    networks = await open_networks(config, budget)
    pool = await networks.pool(OwnNamespaces(), has_network=True)
    await until_ready(pool, LEAST)
    assert budget.used == LEAST * MEMORY_BYTES
    taken = [pool.take() for _ in range(LEAST + 1)]
    assert [each is None for each in taken] == [False] * LEAST + [True]
    assert pool.misses == networks.view()["pool_misses"] == 1
    await until_ready(pool, LEAST)
    late = pool.take()
    endpoints = [each for each in (*taken, late) if each is not None]
    assert len({each.address for each in endpoints}) == LEAST + 1
    for each in endpoints:
        each.close()
        each.close()
    await networks.aclose()
    assert budget.used == 0


@pytest.mark.root
@pytest.mark.anyio
async def test_another_reader_sees_what_an_endpoint_is(world: Lab, budget: MemoryBudget, config: NetworkConfig) -> None:
    networks = await open_networks(config, budget)
    pool = await networks.pool(OwnNamespaces(), has_network=True)
    one = await pool.make()
    assert one.namespace is not None
    found = read(one.namespace)
    assert {name for name, _ in found["links"]} == {"lo", "eth0"}
    assert sorted(found["addresses"]) == [[1, "127.0.0.1"], [1, "::1"], [2, one.address]]
    assert sorted(found["routes"], key=str) == [["169.254.1.1", None], [None, "169.254.1.1"]]
    ((gateway, _, state),) = found["neighbours"]
    assert (gateway, state) == ("169.254.1.1", PERMANENT)
    one.close()
    await networks.aclose()


@pytest.mark.root
@pytest.mark.anyio
async def test_links_routes_and_rules_go_with_an_endpoint(
    world: Lab, budget: MemoryBudget, config: NetworkConfig
) -> None:
    networks = await open_networks(config, budget)
    pool = await networks.pool(OwnNamespaces(), has_network=True)
    await until_ready(pool, LEAST)
    assert networks.router is not None
    policy = await networks.policy(networks.parse(None))
    one = pool.take()
    assert one is not None
    one.admit(policy)
    router = networks.router.namespace
    assert one.address in destinations(router)
    one.close()
    async with asyncio.timeout(20):
        while one.address in destinations(router):
            await asyncio.sleep(0)
    with pytest.raises(FileNotFoundError):
        networks.router.dismiss(one.address, policy.chain, 0)
    policy.close()
    await networks.aclose()


@pytest.mark.root
@pytest.mark.anyio
async def test_no_memory_is_no_endpoint(world: Lab, config: NetworkConfig) -> None:
    budget = MemoryBudget(2 * MEMORY_BYTES)
    networks = await open_networks(config, budget)
    pool = await networks.pool(OwnNamespaces(), has_network=True)
    await until_ready(pool, 2)
    with pytest.raises(NoCapacity):
        await pool.make()
    one = pool.take()
    assert isinstance(one, Endpoint) and budget.free == 0
    one.close()
    await until_ready(pool, 1)
    await networks.aclose()
    assert budget.used == 0


@pytest.mark.root
@pytest.mark.anyio
async def test_a_failure_is_forgotten(world: Lab, budget: MemoryBudget, config: NetworkConfig) -> None:
    networks = await open_networks(config, budget)
    maker = Counting()
    maker.fails = True
    pool = await networks.pool(maker, has_network=True)
    assert pool.take() is None
    with pytest.raises(OSError):
        await pool.make()
    maker.fails = False
    networks.adjust()
    await until_ready(pool, LEAST)
    assert maker.made >= LEAST and AT_ONCE >= LEAST
    await networks.aclose()


@pytest.mark.root
@pytest.mark.anyio
async def test_empty_endpoints_need_no_router(world: Lab, budget: MemoryBudget, config: NetworkConfig) -> None:
    networks = await open_networks(config, budget)
    pool = await networks.pool(OwnNamespaces(), has_network=False)
    await until_ready(pool, LEAST)
    one = pool.take()
    assert one is not None and one.namespace is not None and one.address == "" and networks.router is None
    assert [name for name, _ in read(one.namespace)["links"]] == ["lo"]
    one.close()
    await networks.aclose()


@pytest.mark.root
@pytest.mark.anyio
async def test_closing_a_pool_leaves_no_descriptor(world: Lab, budget: MemoryBudget, config: NetworkConfig) -> None:
    before = len(os.listdir("/proc/self/fd"))
    networks = await open_networks(config, budget)
    pool = await networks.pool(OwnNamespaces(), has_network=True)
    networks.close_pool(pool)
    await networks.aclose()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_pool_is_a_quarter_larger_than_the_last_minutes_burst() -> None:
    demand = Demand(2, 100)
    assert demand.wanted(0) == 2
    for moment in (10, 10.2, 10.4, 10.9):
        demand.note(moment)
    assert demand.wanted(11) == 5
    demand.note(12)
    assert demand.wanted(12) == 5
    for _ in range(200):
        demand.note(60)
    assert demand.wanted(60) == 100
    assert demand.wanted(121) == 2


@pytest.mark.root
@pytest.mark.anyio
async def test_a_burst_of_100_from_idle_finds_its_endpoints_with_default_settings(
    world: Lab, networks: Networks, budget: MemoryBudget
) -> None:
    pool = await networks.pool(OwnNamespaces(), has_network=True)
    await until_ready(pool, 100)
    taken = [pool.take() for _ in range(100)]
    assert None not in taken and (pool.hits, pool.misses) == (100, 0)
    await until_ready(pool, NetworkConfig().pool)
    assert budget.used == (100 + NetworkConfig().pool) * MEMORY_BYTES
    for endpoint in taken:
        assert endpoint is not None
        endpoint.close()


@pytest.mark.root
@pytest.mark.anyio
async def test_pools_share_what_is_ready_while_no_function_starts(world: Lab, budget: MemoryBudget) -> None:
    networks = await open_networks(NetworkConfig(least_pool=2, pool=15, idle_pools=20), budget)
    first = await networks.pool(OwnNamespaces(), has_network=False)
    await until_ready(first, 15)
    second = await networks.pool(OwnNamespaces(), has_network=False)
    networks.adjust()
    assert len(first) == 10
    await until_ready(second, 10)
    networks.close_pool(second)
    networks.adjust()
    await until_ready(first, 15)
    await networks.aclose()
    assert budget.used == 0


@pytest.mark.root
@pytest.mark.anyio
async def test_who_needs_memory_gets_that_of_endpoints_that_no_one_asked_for(world: Lab, budget: MemoryBudget) -> None:
    short: list[bool] = []
    settings = NetworkConfig(least_pool=2, pool=LEAST, idle_pools=2 * LEAST)
    networks = await Networks.open(settings, WORKER, budget.reserve_nowait, is_short=lambda: bool(short))
    pools = [await networks.pool(OwnNamespaces(), has_network=True) for _ in range(2)]
    for pool in pools:
        await until_ready(pool, LEAST)
    spare = LEAST - 2
    assert networks.spare_bytes() == 2 * spare * MEMORY_BYTES
    short.append(True)
    assert networks.make_room(spare * MEMORY_BYTES + 1) == 0
    assert budget.used == (2 * LEAST - spare - 1) * MEMORY_BYTES
    assert networks.make_room(spare * MEMORY_BYTES) == MEMORY_BYTES, "the demand keeps its endpoints"
    networks.adjust()
    assert [len(pool) for pool in pools] == [2, 2] and pools[0]._missing() == 0
    short.clear()
    async with asyncio.timeout(20):
        while any(len(pool) < LEAST for pool in pools):
            networks.adjust()
            await asyncio.sleep(0)
    await networks.aclose()
    assert budget.used == 0


@pytest.mark.root
@pytest.mark.anyio
async def test_a_function_that_needs_memory_ends_no_sandbox_while_such_endpoints_have_it(world: Lab) -> None:
    budget = MemoryBudget(LEAST * MEMORY_BYTES)
    networks = await open_networks(NetworkConfig(least_pool=2, pool=LEAST, idle_pools=LEAST), budget)
    pool = await networks.pool(OwnNamespaces(), has_network=True)
    await until_ready(pool, LEAST)
    tree, handlers, templates = Evicting(), Evicting(), Evicting()
    idle = IdleMemory(budget, tree, handlers, templates, networks)  # type: ignore[arg-type]
    budget.holders.append(idle)
    assert idle.can_give(4 * MEMORY_BYTES)
    assert not idle.can_give(4 * MEMORY_BYTES + 1)
    reserved = await budget.reserve(4 * MEMORY_BYTES, deadline_s=0)
    assert len(pool) == 2 and not any(tree.asked + handlers.asked + templates.asked)
    reserved.close()
    await networks.aclose()


class Evicting:
    """A cache with nothing in it; notes the bytes that were asked of it."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    @property
    def spares(self) -> Evicting:
        return self

    def memory_bytes(self) -> int:
        return 0

    def holds(self, size: int) -> bool:
        return size <= 0

    def make_room(self, need_bytes: int) -> int:
        self.asked.append(need_bytes)
        return need_bytes


@pytest.mark.root
@pytest.mark.anyio
async def test_a_burst_makes_no_more_endpoints_than_its_demand(world: Lab, budget: MemoryBudget) -> None:
    networks = await open_networks(NetworkConfig(least_pool=2, pool=100, idle_pools=100), budget)
    pool = await networks.pool(OwnNamespaces(), has_network=False)
    while (endpoint := pool.take()) is not None:
        endpoint.close()
    assert pool._missing() == 2
    await until_ready(pool, 100)
    await networks.aclose()
    assert budget.used == 0


def test_addresses_are_walked_and_those_in_use_left_out() -> None:
    addresses = Addresses(IPv4Network("10.0.0.0/29"))
    first = [addresses.take() for _ in range(6)]
    assert first == [f"10.0.0.{number}" for number in range(1, 7)]
    with pytest.raises(NoCapacity, match="all 6 addresses"):
        addresses.take()
    addresses.give_back("10.0.0.2")
    addresses.give_back("10.0.0.5")
    assert (addresses.take(), addresses.in_use) == ("10.0.0.2", 5)
    addresses.give_back("10.0.0.2")
    assert addresses.take() == "10.0.0.5"


@pytest.mark.root
@pytest.mark.anyio
async def test_what_a_pool_counted_outlives_it(world: Lab, networks: Networks) -> None:
    pool = await networks.pool(OwnNamespaces(), has_network=False)
    await until_ready(pool, 1)
    taken = [pool.take() for _ in range(len(pool) + 1)]
    assert taken.pop() is None
    networks.close_pool(pool)
    for endpoint in taken:
        assert endpoint is not None
        endpoint.close()
    assert (networks.view()["pool_hits"], networks.view()["pool_misses"]) == (len(taken), 1)


@pytest.mark.root
@pytest.mark.anyio
async def test_what_has_ended_is_removed_when_no_one_takes_one(
    world: Lab, budget: MemoryBudget, config: NetworkConfig
) -> None:
    networks = await open_networks(config, budget)
    pool = await networks.pool(OwnNamespaces(), has_network=True)
    await until_ready(pool, LEAST)
    ended = [pool.take(), pool.take()]
    for endpoint in ended:
        assert endpoint is not None
        endpoint.take_back(endpoint)
    assert all(endpoint is not None and endpoint.namespace is not None for endpoint in ended)
    async with asyncio.timeout(20):
        while any(endpoint is not None and endpoint.namespace is not None for endpoint in ended):
            await asyncio.sleep(0)
    await networks.aclose()
    assert budget.used == 0


@pytest.mark.root
@pytest.mark.anyio
async def test_no_more_wait_for_their_removal_than_may(world: Lab, networks: Networks) -> None:
    pool = await networks.pool(OwnNamespaces(), has_network=False)
    endpoints = [await pool.make() for _ in range(MOST_ENDED + 1)]
    for endpoint in endpoints[:-1]:
        endpoint.take_back(endpoint)
    assert all(endpoint.namespace is not None for endpoint in endpoints)
    endpoints[-1].take_back(endpoints[-1])
    assert all(endpoint.namespace is None for endpoint in endpoints)


@pytest.mark.root
@pytest.mark.anyio
async def test_what_has_ended_gives_its_memory_to_who_needs_it(world: Lab, config: NetworkConfig) -> None:
    budget = MemoryBudget(2 * MEMORY_BYTES)
    networks = await open_networks(config, budget)
    pool = await networks.pool(OwnNamespaces(), has_network=True)
    await until_ready(pool, 2)
    taken = [pool.take(), pool.take()]
    for endpoint in taken:
        assert endpoint is not None
        endpoint.take_back(endpoint)
    third = await pool.make()
    assert budget.used == MEMORY_BYTES and third.namespace is not None
    third.take_back(third)
    networks.close_pool(pool)
    await networks.aclose()
    assert budget.used == 0 and third.namespace is None
