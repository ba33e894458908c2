"""Names in rules: who may ask for which, what is opened for how long, and messages of DNS as bytes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from sockd.base.config import NetworkConfig
from sockd.base.errors import BadFunctionConfig
from sockd.isolation.networks import dns, lookups, resolver
from sockd.isolation.networks.endpoint import Endpoint
from sockd.isolation.networks.networks import Networks, Resolving
from sockd.isolation.networks.query_shares import MOST_OF_ONE_SOURCE, MOST_QUERIES, QueryShares
from sockd.isolation.networks.ruleset import GATEWAY
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.linux.cgroups.tree import Cgroup
from sockd.linux.confined.confined_process import Jail
from tests.isolation.networks.conftest import WORKER
from tests.support.cases import case
from tests.support.jail import jail_at
from tests.support.networks.nameserver import TTL_S, Nameserver
from tests.support.networks.network_lab import METADATA, OTHER_PUBLIC, PORT, PRIVATE, PUBLIC, Lab, OwnNamespaces

NAMESERVER = "127.0.0.77"
MX, TXT, SRV = 15, 16, 33
FLOOD = 3000
"""Queries; more than wait in a socket of the kernel's default size."""
NO_LIMIT = 1 << 20
"""Queries in a second; the resolver itself is tested here."""
UID = 0x0FFFFF00
RECORDS = {
    "api.example.com": [PUBLIC, OTHER_PUBLIC],
    "database.example.com": [PRIVATE],
    "rebinds.example.com": [METADATA, PUBLIC],
    "metadata.example.com": [METADATA],
    "many.example.com": [f"9.9.{number // 256}.{number % 256}" for number in range(600)],
    "many-others.example.com": [f"9.9.{number // 256}.{number % 256}" for number in range(600)],
    "too-many.example.com": [f"9.9.{number // 256}.{number % 256}" for number in range(1100)],
}


@pytest.fixture
def nameserver(world: Lab) -> Iterator[Nameserver]:
    with Nameserver(NAMESERVER, RECORDS) as server:
        yield server


@pytest.fixture
async def jail(tmp_path: Path) -> AsyncIterator[Jail]:
    async with jail_at(tmp_path / "resolver", resolver.places()) as jail:
        yield jail


@pytest.fixture
async def networks(world: Lab, nameserver: Nameserver, budget: MemoryBudget, jail: Jail) -> AsyncIterator[Networks]:
    networks = await Networks.open(
        NetworkConfig(queries=NO_LIMIT), WORKER, budget.reserve_nowait, Resolving(jail, UID, [NAMESERVER])
    )
    yield networks
    await networks.aclose()


async def endpoint(networks: Networks, entries: list[str] | None) -> Endpoint:
    pool = await networks.pool(OwnNamespaces(), has_network=True)
    policy = await networks.policy(networks.parse(entries))
    made = await pool.make()
    made.admit(policy)
    policy.close()
    return made


async def exchange(world: Lab, one: Endpoint, query: bytes) -> bytes:
    """The answer to a query of a function."""
    assert one.namespace is not None
    loop = asyncio.get_running_loop()
    with world.udp(one.namespace) as sock:
        sock.setblocking(False)
        sock.connect((GATEWAY, 53))
        await loop.sock_sendall(sock, query)
        async with asyncio.timeout(20):
            return await loop.sock_recv(sock, 1 << 16)


async def ask(world: Lab, one: Endpoint, name: str, kind: int = dns.A) -> dns.Addresses:
    """What a function is answered."""
    return dns.addresses(await exchange(world, one, dns.query(7, name, kind)))


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
async def test_names_that_no_rule_has_are_asked_of_no_one(
    world: Lab, networks: Networks, nameserver: Nameserver
) -> None:
    one = await endpoint(networks, ["api.example.com", "10.0.0.0/8"])
    with contextlib.closing(one):
        for name in ("secret.attacker.example", "x.api.example.com", "example.com"):
            assert (await ask(world, one, name)).code == dns.NO_SUCH_NAME
            assert (await ask(world, one, name, dns.AAAA)).code == dns.NO_SUCH_NAME
        assert nameserver.asked == []


@pytest.mark.root
@pytest.mark.anyio
async def test_aaaa_is_answered_as_a_is(world: Lab, networks: Networks, nameserver: Nameserver) -> None:
    nameserver.failing, nameserver.held = {"fails.example.com"}, {"silent.example.com"}
    names = ("api", "unknown", "fails", "silent", "metadata")
    codes = [dns.NO_ERROR, dns.NO_SUCH_NAME, dns.SERVER_FAILURE, dns.SERVER_FAILURE, dns.NO_ERROR]
    one = await endpoint(networks, ["*.example.com"])
    with contextlib.closing(one):
        for name, code in zip(names, codes, strict=True):
            kinds = (ask(world, one, f"{name}.example.com", kind) for kind in (dns.A, dns.AAAA))
            a, aaaa = await asyncio.gather(*kinds)
            assert (a.code, aaaa.code, aaaa.addresses) == (code, code, []), name


@pytest.mark.root
@pytest.mark.anyio
async def test_a_and_aaaa_share_one_query_to_the_nameserver(
    world: Lab, networks: Networks, nameserver: Nameserver
) -> None:
    one = await endpoint(networks, ["*.example.com"])
    with contextlib.closing(one):
        await ask(world, one, "api.example.com")
        await ask(world, one, "api.example.com", dns.AAAA)
        assert nameserver.asked == ["api.example.com"], "one after the other"
        nameserver.held = {"database.example.com"}
        waiting = [asyncio.ensure_future(ask(world, one, "database.example.com", kind)) for kind in (dns.AAAA, dns.A)]
        while "database.example.com" not in nameserver.asked:
            await asyncio.sleep(0)
        await ask(world, one, "metadata.example.com")
        nameserver.release("database.example.com")
        aaaa, a = await asyncio.gather(*waiting)
        assert nameserver.asked == ["api.example.com", "database.example.com", "metadata.example.com"], "at once"
        assert (aaaa.code, a.addresses) == (dns.NO_ERROR, [IPv4Address(PRIVATE)])


@case("N5", "12 sandboxes of 4 functions ask for one name at once", expect="the nameserver is asked once")
@pytest.mark.root
@pytest.mark.anyio
async def test_one_query_for_a_name_is_under_way(world: Lab, networks: Networks, nameserver: Nameserver) -> None:
    nameserver.held = {"database.example.com"}
    with contextlib.ExitStack() as stack:
        ones = [stack.enter_context(contextlib.closing(await endpoint(networks, ["*.example.com"]))) for _ in range(4)]
        asking = [asyncio.ensure_future(ask(world, one, "database.example.com")) for one in ones for _ in range(3)]
        while not nameserver.asked:
            await asyncio.sleep(0)
        for one in ones:  # an answer to the next query: those before it were read
            assert (await ask(world, one, "other.example.org")).code == dns.NO_SUCH_NAME
        nameserver.release("database.example.com")
        assert {tuple(each.addresses) for each in await asyncio.gather(*asking)} == {(IPv4Address(PRIVATE),)}
        assert nameserver.asked == ["database.example.com"]


@case(
    "N6",
    "200 queries of one sandbox for one name that 64 of its rules name",
    expect="the rules are written at most once a second",
)
@pytest.mark.root
@pytest.mark.anyio
async def test_many_rules_and_queries_of_a_name_are_few_writes(
    world: Lab, networks: Networks, nameserver: Nameserver
) -> None:
    one = await endpoint(networks, [f"many.example.com:{port}" for port in range(PORT, PORT + 64)])
    world.listen(world.internet, "0.0.0.0", PORT + 63)
    assert networks.router is not None
    answers = networks.router.answers
    with contextlib.closing(one):
        began_s = time.monotonic()
        for _ in range(200):
            assert len((await ask(world, one, "many.example.com")).addresses) == dns.MOST_ADDRESSES
        took_s = time.monotonic() - began_s
        assert is_reached(world, one, "9.9.0.14", PORT + 63) is False, "there is nobody, and the rule allows it"
        assert 1 <= answers.transactions <= 1 + took_s / lookups.REUSED_S
        assert len(nameserver.asked) == answers.transactions


@pytest.mark.root
@pytest.mark.anyio
async def test_other_rules_open_a_name_anew_at_once(world: Lab, networks: Networks, nameserver: Nameserver) -> None:
    world.listen(world.internet, "0.0.0.0", PORT)
    one = await endpoint(networks, ["api.example.com"])
    with contextlib.closing(one):
        await ask(world, one, "api.example.com")
        assert one.policy is not None
        await one.policy.change(networks.parse([f"api.example.com:{PORT}"]))
        assert not is_reached(world, one, PUBLIC)
        await ask(world, one, "api.example.com")
        assert is_reached(world, one, PUBLIC)


@pytest.mark.root
@pytest.mark.anyio
async def test_answers_that_come_together_are_one_transaction_and_a_bad_one_harms_no_other(
    world: Lab, networks: Networks
) -> None:
    world.listen(world.internet, "0.0.0.0", PORT)
    one = await endpoint(networks, [f"name-{number}.example.com" for number in range(50)])
    assert one.policy is not None and networks.router is not None
    answers = networks.router.answers
    with contextlib.closing(one):
        opened = [one.policy.open_name(f"name-{number}.example.com", [IPv4Address(PUBLIC)], 60) for number in range(50)]
        bad = asyncio.ensure_future(answers.put(["no-such-set"], [PUBLIC], 60))
        await asyncio.gather(*opened)
        with pytest.raises(OSError, match="No such file"):
            await bad
        assert is_reached(world, one, PUBLIC)
        before = answers.transactions
        await asyncio.gather(*(answers.put([next(iter(one.policy._now.sets()))], [PUBLIC], 60) for _ in range(100)))
        assert answers.transactions <= before + 2


@pytest.mark.root
@pytest.mark.anyio
async def test_a_failure_is_not_remembered_for_a(world: Lab, networks: Networks, nameserver: Nameserver) -> None:
    nameserver.failing = {"api.example.com"}
    one = await endpoint(networks, ["*.example.com"])
    with contextlib.closing(one):
        assert (await ask(world, one, "api.example.com")).code == dns.SERVER_FAILURE
        nameserver.failing = set()
        assert (await ask(world, one, "api.example.com")).code == dns.NO_ERROR
        assert (await ask(world, one, "api.example.com", dns.AAAA)).code == dns.NO_ERROR


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
    async with jail_at(tmp_path / "resolver", resolver.places()) as jail:
        config = NetworkConfig(denied=(OTHER_PUBLIC, PRIVATE))
        networks = await Networks.open(config, WORKER, budget.reserve_nowait, Resolving(jail, UID, [NAMESERVER]))
        one = await endpoint(networks, ["*.example.com"])
        with contextlib.closing(one):
            assert (await ask(world, one, "api.example.com")).addresses == [IPv4Address(PUBLIC)]
            assert (await ask(world, one, "database.example.com")).addresses == []
            assert is_reached(world, one, PUBLIC)
            assert not is_reached(world, one, OTHER_PUBLIC) and not is_reached(world, one, PRIVATE)
        await networks.aclose()


@pytest.mark.root
@pytest.mark.anyio
async def test_a_truncated_answer_is_fetched_over_tcp(world: Lab, networks: Networks, nameserver: Nameserver) -> None:
    world.listen(world.internet, "0.0.0.0", PORT)
    one = await endpoint(networks, ["*.example.com"])
    with contextlib.closing(one):
        a, aaaa = await asyncio.gather(*(ask(world, one, "many.example.com", kind) for kind in (dns.A, dns.AAAA)))
        assert [str(each) for each in a.addresses] == RECORDS["many.example.com"][: dns.MOST_ADDRESSES]
        assert (aaaa.code, nameserver.asked_over_tcp) == (dns.NO_ERROR, ["many.example.com"])
        assert (await ask(world, one, "too-many.example.com")).code == dns.SERVER_FAILURE
        nameserver.refuse_tcp()
        assert (await ask(world, one, "many-others.example.com")).code == dns.SERVER_FAILURE


@pytest.mark.root
@pytest.mark.anyio
async def test_other_types_of_a_name_in_a_rule_are_empty_and_asked_of_no_one(
    world: Lab, networks: Networks, nameserver: Nameserver
) -> None:
    nameserver.texts["api.example.com"] = [b"text"]
    one = await endpoint(networks, ["*.example.com"])
    with contextlib.closing(one):
        for kind in (TXT, MX, SRV, dns.HTTPS, dns.SVCB):
            query = dns.query(7, "api.example.com", kind)
            assert await exchange(world, one, query) == dns.answer(dns.question(query), dns.Addresses([], 0))
        assert nameserver.asked == []


@pytest.mark.root
@pytest.mark.anyio
async def test_a_forwarded_answer_is_complete_however_large(
    world: Lab, networks: Networks, nameserver: Nameserver
) -> None:
    nameserver.texts["texts.example.com"] = [bytes((65 + number,)) * 200 for number in range(40)]
    one = await endpoint(networks, None)
    with contextlib.closing(one):
        answer = await exchange(world, one, dns.query(7, "texts.example.com", TXT))
        assert dns.is_answer(answer, dns.query(7, "texts.example.com", TXT)) and not dns.is_truncated(answer)
        assert all(text in answer for text in nameserver.texts["texts.example.com"])


@pytest.mark.root
@pytest.mark.anyio
async def test_a_flood_of_one_source_leaves_room_for_the_query_of_another(
    world: Lab, nameserver: Nameserver, budget: MemoryBudget, jail: Jail
) -> None:
    cgroups: list[Cgroup] = []

    def take_cgroup() -> Cgroup:
        cgroups.append(jail.take_cgroup())
        return cgroups[-1]

    resolving = Resolving(dataclasses.replace(jail, take_cgroup=take_cgroup), UID, [NAMESERVER])
    networks = await Networks.open(NetworkConfig(queries=NO_LIMIT), WORKER, budget.reserve_nowait, resolving)
    async with contextlib.aclosing(networks):
        flood, victim = [await endpoint(networks, ["*.example.com"]) for _ in range(2)]
        with contextlib.closing(flood), contextlib.closing(victim):
            await ask(world, flood, "api.example.com")
            cgroups[-1].freeze_nowait()  # it gets no CPU for a while
            assert flood.namespace is not None
            nameserver.held = {"silent.example.com"}
            with world.udp(flood.namespace) as sock:
                sock.connect((GATEWAY, 53))
                for _ in range(FLOOD):
                    sock.send(dns.query(1, "silent.example.com", dns.A))
            answer = asyncio.ensure_future(ask(world, victim, "api.example.com"))
            await asyncio.sleep(0)  # it is sent
            cgroups[-1].thaw_nowait()
            assert (await answer).code == dns.NO_ERROR


def test_a_greedy_source_is_limited_and_many_leave_places_for_others() -> None:
    shares = QueryShares()
    taken = [sum(shares.take(f"greedy-{number}") for _ in range(MOST_QUERIES)) for number in range(30)]
    assert 0 < min(taken) <= max(taken) <= MOST_OF_ONE_SOURCE and sum(taken) < MOST_QUERIES
    assert shares.take("another")
    for number, count in enumerate(taken):
        for _ in range(count):
            shares.release(f"greedy-{number}")
    shares.release("another")
    assert sum(shares.take("greedy-0") for _ in range(MOST_QUERIES)) == max(taken)


def test_no_more_queries_are_under_way_than_may_be() -> None:
    shares = QueryShares()
    assert sum(shares.take(str(number)) for number in range(2 * MOST_QUERIES)) == MOST_QUERIES


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
    assert dns.is_answer(message, dns.query(77, "www.example.com", dns.A))
    assert not dns.is_answer(message, dns.query(78, "www.example.com", dns.A))
    assert not dns.is_answer(message, dns.query(77, "www.example.org", dns.A))
    assert not dns.is_answer(message, dns.query(77, "www.example.com", dns.AAAA))
    assert dns.addresses(message) == dns.Addresses([IPv4Address("1.2.3.4")], 60)


def test_a_name_that_pointers_make_longer_than_dns_has_names_is_refused() -> None:
    asked = dns.question(dns.query(1, "a.example", dns.A)).raw
    name = (b"\x3f" + b"x" * 63) * 3 + b"\x3d" + b"y" * 61 + b"\0"
    record = struct.pack("!HHIH", dns.A, 1, 300, 4) + socket.inet_aton("1.2.3.4")
    longest = struct.pack("!6H", 1, 0x8180, 1, 2, 0, 0) + asked + name + record
    assert len(name) == dns.MOST_NAME + 2
    assert dns.addresses(longest + name + record).addresses == []
    pointer = struct.pack("!H", 0xC000 | 12 + len(asked))
    with pytest.raises(dns.BadMessage, match="253 characters"):
        dns.addresses(longest + b"\1z" + pointer + record)


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
