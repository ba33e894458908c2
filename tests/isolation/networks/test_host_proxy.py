"""Ports of the host for private networks: those that the worker opens and a function names; each connection is counted."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from sockd.base.config import NetworkConfig
from sockd.base.errors import BadConfig, BadFunctionConfig
from sockd.isolation.networks import dns, host_proxy, resolver
from sockd.isolation.networks.endpoint import Endpoint
from sockd.isolation.networks.host_proxy_process import MOST_OF_ONE_SOURCE
from sockd.isolation.networks.networks import Networks, Proxying, Resolving
from sockd.isolation.networks.ruleset import GATEWAY
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.linux.confined.confined_process import ConfinedProcess, Jail
from tests.isolation.networks.conftest import WORKER
from tests.isolation.networks.test_networks import endpoint
from tests.isolation.networks.test_resolver import NAMESERVER, ask
from tests.support.cases import Happened, case
from tests.support.jail import jail_at
from tests.support.networks.nameserver import Nameserver
from tests.support.networks.network_lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.anyio]

DATABASE, CLOSED = 5432, 5433
UID = 0x0FFFFF00
WAIT_S = 20.0


@pytest.fixture
async def jail(tmp_path: Path) -> AsyncIterator[Jail]:
    async with jail_at(tmp_path / "jail", resolver.places()) as jail:
        yield jail


Started = asyncio.Queue[tuple[str, ConfinedProcess]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Each confined process that is started, with the name of its module."""
    queue: Started = asyncio.Queue()
    start = ConfinedProcess.start

    async def noted(jail: Jail, *arguments: str, **options: Any) -> ConfinedProcess:
        process = await start(jail, *arguments, **options)
        queue.put_nowait((arguments[1], process))
        return process

    monkeypatch.setattr(ConfinedProcess, "start", noted)
    return queue


@pytest.fixture
async def networks(world: Lab, budget: MemoryBudget, jail: Jail) -> AsyncIterator[Networks]:
    networks = await Networks.open(
        NetworkConfig(host_ports=(DATABASE, CLOSED)),
        WORKER,
        budget.reserve_nowait,
        Resolving(jail, UID, [NAMESERVER]),
        Proxying(jail, UID - 1),
    )
    yield networks
    await networks.aclose()


@pytest.fixture
def database(world: Lab) -> Iterator[socket.socket]:
    """A service on the host's loopback."""
    with socket.create_server(("127.0.0.1", DATABASE)) as listener:
        listener.settimeout(WAIT_S)
        yield listener


def connected(world: Lab, one: Endpoint, port: int = DATABASE) -> socket.socket:
    """A connection of a sandbox to a port of the gateway; it is closed with the lab."""
    assert one.namespace is not None
    sock = world.tcp(one.namespace)
    sock.settimeout(WAIT_S)
    sock.connect((GATEWAY, port))
    return sock


def whole(sock: socket.socket) -> bytes:
    """All that comes until the other side has ended."""
    data = b""
    while more := sock.recv(1 << 16):
        data += more
    return data


@case(
    "N7",
    "connect to a database on the host's loopback: with the rule host:5432, with internet alone, and with 0.0.0.0/0",
    expect="the first is connected and counted; the others are refused",
)
async def test_a_function_reaches_the_port_that_its_rules_name(
    world: Lab, networks: Networks, database: socket.socket, happened: Happened
) -> None:
    may, internet, all_addresses = [
        await endpoint(networks, rules) for rules in ([f"host:{DATABASE}"], None, [f"0.0.0.0/0:{DATABASE}"])
    ]
    with contextlib.closing(may), contextlib.closing(internet), contextlib.closing(all_addresses):
        ours = connected(world, may)
        theirs, _ = await asyncio.to_thread(database.accept)
        with theirs:
            theirs.settimeout(WAIT_S)
            question, answer = b"q" * 3_000_000, b"a" * 3_000_000
            sending = asyncio.create_task(asyncio.to_thread(ours.sendall, question))
            sending.add_done_callback(lambda _: ours.shutdown(socket.SHUT_WR))
            assert await asyncio.to_thread(whole, theirs) == question
            answering = asyncio.create_task(asyncio.to_thread(theirs.sendall, answer))
            answering.add_done_callback(lambda _: theirs.shutdown(socket.SHUT_WR))
            assert await asyncio.to_thread(whole, ours) == answer
            await asyncio.gather(sending, answering)
        for other in (internet, all_addresses):
            with pytest.raises(OSError, match="No route to host"):
                connected(world, other)
        happened(f"{networks.view()['host_connections']} counted")
        assert networks.view()["host_connections"] == 1


async def test_a_port_where_no_one_listens_is_a_reset(world: Lab, networks: Networks) -> None:
    one = await endpoint(networks, [f"host:{CLOSED}"])
    with contextlib.closing(one):
        ours = connected(world, one, CLOSED)
        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(ours.recv, 1)


async def test_processes_that_end_are_started_again(
    started: Started, world: Lab, networks: Networks, database: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    one = await endpoint(networks, [f"host:{DATABASE}"])
    with contextlib.closing(one), Nameserver(NAMESERVER, {}):
        async with asyncio.timeout(WAIT_S):
            first = dict([await started.get(), await started.get()])
            assert set(first) == {resolver.MODULE, host_proxy.MODULE}
            for process in first.values():
                process.launcher.kill()
            again = dict([await started.get(), await started.get()])
        assert set(again) == set(first) and all(again[name] is not first[name] for name in first)
        assert caplog.text.count("is started again") == 2
        assert (await ask(world, one, dns.HOST_NAME)).addresses == [IPv4Address(GATEWAY)]
        connected(world, one)
        theirs, _ = await asyncio.to_thread(database.accept)
        theirs.close()


async def test_a_greedy_sandbox_leaves_connections_to_others(
    world: Lab, networks: Networks, database: socket.socket
) -> None:
    greedy, other = [await endpoint(networks, [f"host:{DATABASE}"]) for _ in range(2)]
    with contextlib.closing(greedy), contextlib.closing(other):
        database.listen(2 * MOST_OF_ONE_SOURCE)
        held = [connected(world, greedy) for _ in range(MOST_OF_ONE_SOURCE + 1)]
        accepted = [(await asyncio.to_thread(database.accept))[0] for _ in range(MOST_OF_ONE_SOURCE)]
        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(held[-1].recv, 1)
        ours = connected(world, other)
        theirs, _ = await asyncio.to_thread(database.accept)
        theirs.sendall(b"answer")
        assert await asyncio.to_thread(ours.recv, 100) == b"answer"
        for each in (theirs, *accepted):
            each.close()


async def test_the_host_has_a_name_of_which_no_nameserver_is_asked(world: Lab, networks: Networks) -> None:
    with Nameserver(NAMESERVER, {}) as nameserver:
        one, other = [await endpoint(networks, [rule]) for rule in (f"host:{DATABASE}", "api.example.com")]
        with contextlib.closing(one), contextlib.closing(other):
            assert (await ask(world, one, dns.HOST_NAME)).addresses == [IPv4Address(GATEWAY)]
            assert (await ask(world, other, dns.HOST_NAME)).code == dns.NO_SUCH_NAME
        assert nameserver.asked == []


async def test_ports_of_the_host_are_closed_until_the_worker_opens_them(world: Lab, budget: MemoryBudget) -> None:
    networks = await Networks.open(NetworkConfig(), WORKER, budget.reserve_nowait)
    with pytest.raises(BadFunctionConfig, match=rf"host:{DATABASE}: .*network\.host_ports\): none"):
        networks.parse([f"host:{DATABASE}"])
    rules, errors = networks.recorded([f"host:{DATABASE}"])
    assert rules.host_ports == [DATABASE] and "not open any more (network.host_ports)" in errors[0]
    await networks.aclose()
    for port in (0, 53, 65536):
        with pytest.raises(BadConfig, match=f"network.host_ports, {port}: must be"):
            await Networks.open(NetworkConfig(host_ports=(port,)), WORKER, budget.reserve_nowait)
