"""L2 with real nodes on loopback: lost, stopped, lying, empty, replaced and too few nodes."""

from __future__ import annotations

import hashlib
import itertools
import random
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from blake3 import blake3

from sockd.base.errors import BadConfig
from sockd.images.caches.l2_client import L2Client
from sockd.images.caches.node_set import NodeSet
from sockd.images.caches.placement import PARTITIONS
from sockd.images.caches.stripes import STRIPES
from tests.support.images.cache_nodes import CacheNode, addresses, cache_nodes
from tests.support.threads import in_background

DEADLINE_S = 5.0
"""The deadline of reads that must succeed on a busy machine."""
CHUNK_BYTES = 512 << 10
CHUNKS = 12


_numbers = itertools.count(1000)


def chunk_of(number: int, size: int = CHUNK_BYTES) -> tuple[bytes, bytes]:
    """A chunk with a name of today, or one of older images."""
    chunk = random.Random(number).randbytes(size)
    return (blake3 if number % 2 else hashlib.sha256)(chunk).digest(), chunk


@pytest.fixture(scope="module")
def chunks() -> list[tuple[bytes, bytes]]:
    return [chunk_of(number) for number in range(CHUNKS)]


@pytest.fixture(scope="module")
def running() -> Iterator[list[CacheNode]]:
    with cache_nodes(6) as nodes:
        yield nodes


@pytest.fixture
def six(running: list[CacheNode]) -> Iterator[list[CacheNode]]:
    """Nodes of all tests, which may be stopped and not killed, and hold `fresh` chunks only."""
    yield running
    for each in running:
        each.send_signal(signal.SIGCONT)


@pytest.fixture
def fresh() -> list[tuple[bytes, bytes]]:
    """Chunks of one test."""
    return [chunk_of(next(_numbers)) for _ in range(CHUNKS)]


@contextmanager
def client_of(nodes: list[CacheNode], *, deadline_s: float = DEADLINE_S, token: str = "") -> Iterator[L2Client]:
    with closing(L2Client(addresses(nodes), deadline_s=deadline_s, token=token)) as client:
        yield client


def named(nodes: list[CacheNode]) -> dict[str, str]:
    return {f"w{number}": each.address for number, each in enumerate(nodes)}


def fill(client: L2Client, chunks: list[tuple[bytes, bytes]]) -> None:
    for name, chunk in chunks:
        assert client.put(name, chunk) == STRIPES


def hits(client: L2Client, chunks: list[tuple[bytes, bytes]]) -> int:
    """How many chunks are read; what is read is right."""
    found = [(client.get(name), chunk) for name, chunk in chunks]
    assert all(got in (None, chunk) for got, chunk in found)
    return sum(got is not None for got, _ in found)


def fill_again(nodes: list[CacheNode], chunks: list[tuple[bytes, bytes]]) -> int:
    """Read until no node lacks a stripe; how many were put. An answer that arrives after four others is not seen."""
    with client_of(nodes) as client:
        quiet = 0
        while quiet < 5:
            before = client.counters.repaired_stripes
            assert hits(client, chunks) == CHUNKS
            client.flush()
            quiet = quiet + 1 if client.counters.repaired_stripes == before else 0
        return client.counters.repaired_stripes


def test_what_is_written_is_read_with_five_requests_each(
    six: list[CacheNode], fresh: list[tuple[bytes, bytes]]
) -> None:
    with client_of(six) as client:
        fill(client, fresh)
        before = client.counters.requests
        assert hits(client, fresh) == CHUNKS
        assert hits(client, [chunk_of(99)]) == 0
        assert client.counters.requests - before == STRIPES * (CHUNKS + 1)
        assert client.counters.misses == 1


def test_a_chunk_that_is_short_or_odd_is_read(six: list[CacheNode]) -> None:
    some = [chunk_of(number, size) for number, size in enumerate((1, 3, 4, 5, 4096, 100_001))]
    with client_of(six[:5]) as client:
        fill(client, some)
        assert hits(client, some) == len(some)


def test_each_lost_node_costs_no_hit(chunks: list[tuple[bytes, bytes]]) -> None:
    with cache_nodes(6) as nodes:
        with client_of(nodes) as client:
            fill(client, chunks)
        for lost in nodes[:3]:
            with client_of(nodes) as client:
                hits(client, chunks)
                lost.kill()
                assert hits(client, chunks) == CHUNKS
                assert client.counters.failed_requests > 0
            lost.start()
            fill_again(nodes, chunks)


def test_a_stopped_node_costs_no_hit_and_is_used_again(chunks: list[tuple[bytes, bytes]]) -> None:
    with cache_nodes(5) as nodes, client_of(nodes) as client:
        fill(client, chunks)
        nodes[0].send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        assert hits(client, chunks) == CHUNKS
        assert time.monotonic() - begun < DEADLINE_S  # for all: none waits for the stopped node
        nodes[0].send_signal(signal.SIGCONT)
        nodes[1].kill()
        assert hits(client, chunks) == CHUNKS


def test_two_lost_nodes_are_a_miss_and_not_an_error(chunks: list[tuple[bytes, bytes]]) -> None:
    with cache_nodes(5) as nodes, client_of(nodes) as client:
        fill(client, chunks)
        for lost in nodes[:2]:
            lost.kill()
        assert hits(client, chunks) == 0
        assert client.counters.misses == CHUNKS


def test_stopped_nodes_are_a_miss_at_the_deadline_which_others_do_not_wait_for(
    six: list[CacheNode], fresh: list[tuple[bytes, bytes]]
) -> None:
    with client_of(six[:5]) as client, client_of(six[:5], deadline_s=0.05) as hurried:
        fill(client, fresh)
        for stopped in six[:2]:
            stopped.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        assert hits(hurried, fresh[:1]) == 0
        assert 0.05 <= time.monotonic() - begun < DEADLINE_S
        assert hits(hurried, fresh[1:3]) == 0
        assert hurried.counters.failed_requests >= 4, "the stopped nodes were asked again"


def test_a_miss_does_not_wait_for_a_stopped_node(six: list[CacheNode]) -> None:
    with client_of(six[:5], deadline_s=20) as client:
        six[0].send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        assert hits(client, [chunk_of(99)]) == 0
        assert time.monotonic() - begun < 10


def test_a_lying_node_is_found_and_its_stripes_are_replaced(chunks: list[tuple[bytes, bytes]]) -> None:
    with cache_nodes(5, lying=1) as nodes, client_of(nodes) as client:
        fill(client, chunks)
        assert hits(client, chunks) == CHUNKS
        client.flush()
        assert client.counters.wrong_stripes > 0
        assert client.counters.repaired_stripes > 0


def test_two_lying_nodes_are_a_miss_and_never_wrong_bytes(chunks: list[tuple[bytes, bytes]]) -> None:
    with cache_nodes(5, lying=2) as nodes, client_of(nodes) as client:
        fill(client, chunks)
        assert hits(client, chunks) == 0


def test_an_empty_node_is_filled_by_reads(chunks: list[tuple[bytes, bytes]]) -> None:
    with cache_nodes(5) as nodes:
        with client_of(nodes) as client:
            fill(client, chunks)
        nodes[0].kill()
        nodes[0].start()
        assert fill_again(nodes, chunks) == CHUNKS
        nodes[1].kill()
        with client_of(nodes) as client:
            assert hits(client, chunks) == CHUNKS


def test_a_node_in_place_of_another_gets_the_stripes_of_the_other(
    six: list[CacheNode], fresh: list[tuple[bytes, bytes]]
) -> None:
    with client_of(six[:5]) as client:
        fill(client, fresh)
    with client_of(six[1:]) as client:
        for _ in range(3):
            assert hits(client, fresh) == CHUNKS
            client.flush()
        assert client.counters.repaired_stripes > 0


def test_a_list_that_changes_costs_no_hit_and_what_moves_is_repaired(
    six: list[CacheNode], fresh: list[tuple[bytes, bytes]]
) -> None:
    names = named(six)
    with client_of([]) as client:
        client.use_nodes(names)
        fill(client, fresh)
        for gone in ("w0", "w3"):
            client.use_nodes({name: each for name, each in names.items() if name != gone})
            for _ in range(3):
                assert hits(client, fresh) == CHUNKS
                client.flush()
        assert client.counters.repaired_stripes > 0
        client.use_nodes(names)
        assert hits(client, fresh) == CHUNKS


def test_a_node_that_comes_back_at_another_port_has_its_own_stripes_again() -> None:
    names = {f"w{number}": f"10.0.0.{number}:7100" for number in range(6)}
    nodes = NodeSet(names, 1)
    keys = [number.to_bytes(4, "big") for number in range(PARTITIONS)]
    before = {key: [pool.node for pool in nodes.of(key)] for key in keys}
    nodes.change({**names, "w3": "10.0.0.3:7200"})
    for key, held in before.items():
        assert [pool.node for pool in nodes.of(key)] == [each.replace("3:7100", "3:7200") for each in held]
    nodes.close()


def test_reads_while_the_list_changes_find_what_was_written(
    six: list[CacheNode], fresh: list[tuple[bytes, bytes]]
) -> None:
    names = named(six)
    with client_of([]) as client:
        client.use_nodes(names)
        fill(client, fresh)
        with in_background(lambda: [hits(client, fresh) for _ in range(10)]) as reads:
            for number in range(20):
                client.use_nodes({name: each for name, each in names.items() if name != f"w{number % 6}"})
                client.use_nodes(names)
            assert max(reads()) > 0
        client.flush()
        assert hits(client, fresh) == CHUNKS


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_fewer_than_five_nodes_hold_all_stripes(
    count: int, six: list[CacheNode], fresh: list[tuple[bytes, bytes]]
) -> None:
    with client_of(six[:count]) as client:
        fill(client, fresh)
        assert hits(client, fresh) == CHUNKS


def test_without_any_node_each_read_is_a_miss(chunks: list[tuple[bytes, bytes]]) -> None:
    with client_of([]) as client:
        assert hits(client, chunks[:1]) == 0
        client.put_later(*chunks[0])
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    gone = [f"127.0.0.{number}:{port}" for number in range(1, 6)]
    with closing(L2Client(gone, deadline_s=DEADLINE_S)) as client:
        assert hits(client, chunks) == 0


def test_nodes_with_a_token_serve_clients_that_have_it(chunks: list[tuple[bytes, bytes]], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    with cache_nodes(5, "--token-file", str(tmp_path / "token")) as nodes:
        with client_of(nodes, token="secret") as client:
            fill(client, chunks[:2])
            assert hits(client, chunks[:2]) == 2
        with client_of(nodes) as stranger:
            assert hits(stranger, chunks[:2]) == 0
            assert stranger.put(*chunks[2]) == 0


def test_stripes_in_files_outlive_their_node(chunks: list[tuple[bytes, bytes]], tmp_path: Path) -> None:
    node = CacheNode("--dir", str(tmp_path), "--disk-mb", "40")
    try:
        node.start()
        with client_of([node]) as client:
            fill(client, chunks)
        node.send_signal(signal.SIGTERM)
        node.wait()
        node.start()
        with client_of([node]) as client:
            assert hits(client, chunks) == CHUNKS
        for kept in tmp_path.iterdir():
            damaged = bytearray(kept.read_bytes())
            damaged[len(damaged) // 2 :: 4096] = bytes(len(damaged[len(damaged) // 2 :: 4096]))
            node.kill()
            kept.write_bytes(damaged)
        node.start()
        with client_of([node]) as client:
            hits(client, chunks)  # right bytes, or none
            assert client.counters.wrong_stripes == 0  # the node has found the damage
    finally:
        node.kill()


def test_an_address_that_is_none_is_refused() -> None:
    for text in ("", "host", "host:7100", "127.0.0.1:99999", "127.0.0.1:x", "127.0.0.1"):
        with pytest.raises(BadConfig):
            L2Client([text])
