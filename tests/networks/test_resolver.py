"""Names in rules: who may ask for which, what is opened for how long, and messages of DNS as bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from sockd.networks import dns, resolver
from sockd.networks.endpoint import Endpoint
from sockd.networks.networks import Networks, Resolving
from sockd.networks.ruleset import GATEWAY
from sockd.plain.config import NetworkConfig
from sockd.plain.errors import BadFunctionConfig
from sockd.sandbox.memory_budget import MemoryBudget
from tests.networks.conftest import WORKER
from tests.support.ground import ground_at
from tests.support.network_lab import METADATA, OTHER_PUBLIC, PORT, PRIVATE, PUBLIC, Lab, OwnNamespaces

NAMESERVER = "127.0.0.77"
UID = 0x0FFFFF00
RECORDS = {
    "api.example.com": [PUBLIC, OTHER_PUBLIC],
    "database.example.com": [PRIVATE],
    "rebinds.example.com": [METADATA, PUBLIC],
    "metadata.example.com": [METADATA],
}
TTL_S = 30


class Nameserver(asyncio.DatagramProtocol):
    """The host's: answers what it has, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, peer: tuple[str, int]) -> None:
        asked = dns.question(data)
        self.asked.append(asked.name)
        found = [IPv4Address(each) for each in RECORDS.get(asked.name, [])]
        code = dns.NO_ERROR if found else dns.NO_SUCH_NAME
        self._transport.sendto(dns.answer(asked, dns.Addresses(found, TTL_S, code)), peer)


@pytest.fixture
async def nameserver(world: Lab) -> AsyncIterator[Nameserver]:
    transport, server = await asyncio.get_running_loop().create_datagram_endpoint(
        Nameserver, local_addr=(NAMESERVER, 53)
    )
    yield server
    transport.close()


@pytest.fixture
async def networks(world: Lab, nameserver: Nameserver, budget: MemoryBudget, tmp_path: Path) -> AsyncIterator[Networks]:
    async with ground_at(tmp_path / "resolver", resolver.places()) as ground:
        resolving = Resolving(ground, UID, [NAMESERVER])
        networks = await Networks.open(NetworkConfig(), WORKER, budget.reserve_nowait, resolving)
        yield networks
        await networks.aclose()


async def endpoint(networks: Networks, entries: list[str] | None) -> Endpoint:
    pool = await networks.pool(OwnNamespaces(), has_network=True)
    policy = await networks.policy(networks.parse(entries))
    made = await pool.make()
    made.admit(policy)
    policy.close()
    return made


async def ask(world: Lab, one: Endpoint, name: str, kind: int = dns.A) -> dns.Addresses:
    """What a function is answered."""
    assert one.namespace is not None
    loop = asyncio.get_running_loop()
    with world.udp(one.namespace) as sock:
        sock.setblocking(False)
        sock.connect((GATEWAY, 53))
        await loop.sock_sendall(sock, dns.query(7, name, kind))
        async with asyncio.timeout(20):
            return dns.addresses(await loop.sock_recv(sock, 4096))


def is_reached(world: Lab, one: Endpoint, host: str, port: int = PORT) -> bool:
    assert one.namespace is not None
    with world.tcp(one.namespace) as sock:
        return sock.connect_ex((host, port)) == 0


@pytest.mark.root
@pytest.mark.anyio
async def test_a_name_opens_what_it_stands_for(world: Lab, networks: Networks, nameserver: Nameserver) -> None:
    world.listen(world.internet, "0.0.0.0", PORT)
    one = await endpoint(networks, [f"*.example.com:{PORT}"])
    other = await endpoint(networks, [f"nothing.example.org:{PORT}"])
    with contextlib.closing(one), contextlib.closing(other):
        assert not is_reached(world, one, PUBLIC)
        found = await ask(world, one, "API.Example.com")
        assert ([str(each) for each in found.addresses], found.ttl_s) == ([PUBLIC, OTHER_PUBLIC], TTL_S)
        assert is_reached(world, one, PUBLIC) and is_reached(world, one, OTHER_PUBLIC)
        assert not is_reached(world, one, PRIVATE) and not is_reached(world, one, PUBLIC, PORT + 1)
        assert not is_reached(world, other, PUBLIC)
        assert (await ask(world, one, "database.example.com")).addresses == [IPv4Address(PRIVATE)]
        assert is_reached(world, one, PRIVATE)
        assert networks.view()["resolved"] == 2


@pytest.mark.root
@pytest.mark.anyio
async def test_names_that_no_rule_has_are_asked_of_nobody(
    world: Lab, networks: Networks, nameserver: Nameserver
) -> None:
    one = await endpoint(networks, ["api.example.com", "10.0.0.0/8"])
    with contextlib.closing(one):
        for name in ("secret.attacker.example", "x.api.example.com", "example.com"):
            assert (await ask(world, one, name)).code == dns.NO_SUCH_NAME
        assert (await ask(world, one, "api.example.com", dns.AAAA)).addresses == []
        assert nameserver.asked == []


@pytest.mark.root
@pytest.mark.anyio
async def test_an_answer_opens_no_metadata_service(world: Lab, networks: Networks, nameserver: Nameserver) -> None:
    world.listen(world.internet, "0.0.0.0", PORT)
    one = await endpoint(networks, ["*.example.com"])
    with contextlib.closing(one):
        assert (await ask(world, one, "rebinds.example.com")).addresses == [IPv4Address(PUBLIC)]
        assert (await ask(world, one, "metadata.example.com")).addresses == []
        assert is_reached(world, one, PUBLIC) and not is_reached(world, one, METADATA)


@pytest.mark.root
@pytest.mark.anyio
async def test_an_answer_opens_nothing_that_the_worker_denies(
    world: Lab, nameserver: Nameserver, budget: MemoryBudget, tmp_path: Path
) -> None:
    world.listen(world.internet, "0.0.0.0", PORT)
    async with ground_at(tmp_path / "resolver", resolver.places()) as ground:
        config = NetworkConfig(denied=(OTHER_PUBLIC, PRIVATE))
        networks = await Networks.open(config, WORKER, budget.reserve_nowait, Resolving(ground, UID, [NAMESERVER]))
        one = await endpoint(networks, ["*.example.com"])
        with contextlib.closing(one):
            assert (await ask(world, one, "api.example.com")).addresses == [IPv4Address(PUBLIC)]
            assert (await ask(world, one, "database.example.com")).addresses == []
            assert is_reached(world, one, PUBLIC)
            assert not is_reached(world, one, OTHER_PUBLIC) and not is_reached(world, one, PRIVATE)
        await networks.aclose()


@pytest.mark.root
@pytest.mark.anyio
async def test_with_the_internet_go_all_its_names(world: Lab, networks: Networks, nameserver: Nameserver) -> None:
    one = await endpoint(networks, None)
    with contextlib.closing(one):
        assert (await ask(world, one, "api.example.com")).addresses == [IPv4Address(PUBLIC), IPv4Address(OTHER_PUBLIC)]
        assert (await ask(world, one, "unknown.example.com")).code == dns.NO_SUCH_NAME


@pytest.mark.root
@pytest.mark.anyio
async def test_without_a_resolver_names_are_refused(world: Lab, budget: MemoryBudget) -> None:
    networks = await Networks.open(NetworkConfig(), WORKER, budget.reserve_nowait)
    with pytest.raises(BadFunctionConfig, match="names need a resolver"):
        networks.parse(["api.example.com"])
    await networks.aclose()


def test_a_query_is_read_back() -> None:
    asked = dns.question(dns.query(77, "www.example.com", dns.A))
    assert (asked.number, asked.name, asked.kind) == (77, "www.example.com", dns.A)
    message = dns.answer(asked, dns.Addresses([IPv4Address("1.2.3.4")], 60))
    assert dns.is_answer(message, 77, "www.example.com", dns.A)
    assert not dns.is_answer(message, 78, "www.example.com", dns.A)
    assert not dns.is_answer(message, 77, "www.example.org", dns.A)
    assert dns.addresses(message) == dns.Addresses([IPv4Address("1.2.3.4")], 60)


def test_aliases_are_followed_and_the_shortest_life_counts() -> None:
    asked = dns.query(1, "a.example", dns.A)
    name, alias = b"\xc0\x0c", b"\1b\7example\0"
    records = name + struct.pack("!HHIH", dns.CNAME, 1, 20, len(alias)) + alias
    records += alias + struct.pack("!HHIH", dns.A, 1, 300, 4) + socket.inet_aton("1.2.3.4")
    records += b"\1c\7example\0" + struct.pack("!HHIH", dns.A, 1, 300, 4) + socket.inet_aton("6.6.6.6")
    message = struct.pack("!6H", 1, 0x8180, 1, 3, 0, 0) + dns.question(asked).raw + records
    assert dns.addresses(message) == dns.Addresses([IPv4Address("1.2.3.4")], 20)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        bytes(12),
        dns.query(1, "a.example", dns.A)[:20],
        struct.pack("!6H", 1, 0x100, 1, 0, 0, 0) + b"\xc0\x0c\0\1\0\1",
        struct.pack("!6H", 1, 0x100, 1, 0, 0, 0) + b"\3a.b\0\0\1\0\1",
        struct.pack("!6H", 1, 0x100, 2, 0, 0, 0) + b"\1a\0\0\1\0\1",
        struct.pack("!6H", 1, 0x8100, 1, 0, 0, 0) + b"\1a\0\0\1\0\1",
        struct.pack("!6H", 1, 0x100, 1, 0, 0, 0) + b"\1a\0\0\1\0\3",
    ],
)
def test_what_is_no_query_is_refused(message: bytes) -> None:
    with pytest.raises(dns.BadMessage):
        dns.question(message)
