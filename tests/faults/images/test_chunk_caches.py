"""The caches of images' chunks: lost and lying nodes, many starts at once, a damaged file, scans, and floods."""

from __future__ import annotations

import hashlib
import http.client
import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from sockd.images.caches.node_http import stripe_path
from sockd.images.caches.stripes import split
from tests.support.cases import Happened, case
from tests.support.images.cache_nodes import CacheNode, addresses, cache_nodes
from tests.support.images.chunk_probe import ChunkProbe, chunk_probe, command

CHUNKS = 16
READS = 100
STARTS = 20
NODE_MEMORY_MB = 16
NODE_REST_MB = 90
"""The memory of a node's process without stripes; without a limit, the flood makes it three times as large."""
FLOOD_MB = 256


@pytest.fixture
def broken(request: pytest.FixtureRequest) -> str:
    name: str = request.config.getoption("broken", default="")
    return name


@pytest.fixture
def probe(broken: str) -> Iterator[ChunkProbe]:
    with chunk_probe(broken) as probe:
        yield probe


@case(
    "I21",
    "one of six cache nodes is killed while a worker reads chunks, then all of them",
    expect="no read misses with five nodes; with none, the store serves all",
)
def test_nodes_killed_under_load(probe: ChunkProbe, tmp_path: Path, happened: Happened) -> None:
    with cache_nodes(6) as nodes:
        for killed in nodes[:2]:
            probe.ask("open", nodes=addresses(nodes), origin=str(tmp_path / "store"), l1=None)
            for where in ("l2", "origin"):
                probe.ask("fill", count=CHUNKS, into=where)
            probe.begin("read", count=READS, of=CHUNKS, seed=1, via="l2")
            killed.kill()
            read = probe.end()
            happened(f"{read['hits']} of {READS} reads hit, {read['wrong']} were wrong")
            assert (read["hits"], read["wrong"]) == (READS, 0)
            killed.start()
        for each in nodes:
            each.kill()
        read = probe.ask("read", count=READS, of=CHUNKS, seed=2, via="fetch")
        happened(f"without nodes, {read['hits']} of {READS} were read from the store")
        assert (read["hits"], read["wrong"]) == (READS, 0)


@case(
    "I22",
    "cache nodes return well-formed stripes with other data: one of five, then two",
    expect="no wrong byte: one is found out and outvoted; with two, the store serves",
)
@pytest.mark.parametrize("lying", [1, 2])
def test_lying_nodes(lying: int, probe: ChunkProbe, tmp_path: Path, happened: Happened) -> None:
    with cache_nodes(5, lying=lying) as nodes:
        probe.ask("open", nodes=addresses(nodes), origin=str(tmp_path / "store"), l1=None)
        for where in ("l2", "origin"):
            probe.ask("fill", count=CHUNKS, into=where)
        read = probe.ask("read", count=CHUNKS, of=CHUNKS, seed=1, via="fetch")
        counters = probe.ask("counters")
        happened(f"{read['wrong']} wrong; {counters['nodes']['wrong_stripes']} stripes found wrong")
        assert (read["hits"], read["wrong"]) == (CHUNKS, 0)
        assert counters["l2"]["fetches"] == (CHUNKS if lying == 1 else 0)


@case(
    "I23",
    f"{STARTS} starts of one image at once, with empty caches",
    expect="at most 1.1 requests to the store for each distinct chunk",
)
def test_many_starts_of_one_cold_image(probe: ChunkProbe, tmp_path: Path, happened: Happened) -> None:
    probe.ask("open", nodes=[], origin=str(tmp_path / "store"), l1=str(tmp_path / "l1"), l1_mb=64)
    probe.ask("fill", count=3 * CHUNKS, into="origin")
    probe.ask("starts", parallel=STARTS, of=3 * CHUNKS)
    counters = probe.ask("counters")
    happened(f"{counters['origin_requests']} requests for {counters['origin_chunks']} chunks")
    assert counters["origin_chunks"] == 3 * CHUNKS
    assert counters["requests_per_chunk"] <= 1.1


@case(
    "I24",
    "a worker is killed while it fills L1; then bits of the file change; then it starts again",
    expect="no wrong byte is served; what was damaged comes from the store",
)
def test_a_damaged_file_of_l1(broken: str, tmp_path: Path, happened: Happened) -> None:
    opened = {"nodes": [], "origin": str(tmp_path / "store"), "l1": str(tmp_path / "l1"), "l1_mb": 24}
    with chunk_probe(broken) as first:
        first.ask("open", **opened)
        first.ask("fill", count=2 * CHUNKS, into="origin")
        first.ask("fill", count=CHUNKS, into="l1")
        first.begin("starts", parallel=8, of=2 * CHUNKS)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    damaged = bytearray((tmp_path / "l1").read_bytes())
    draw = random.Random(1)
    for slot in range(8192, len(damaged), 512 << 10):
        damaged[slot + draw.randrange(256 << 10)] ^= 1 << draw.randrange(8)
    (tmp_path / "l1").write_bytes(damaged)
    with chunk_probe(broken) as second:
        second.ask("open", **opened)
        second.ask("fill", count=2 * CHUNKS, into="origin")
        read = second.ask("read", count=READS, of=2 * CHUNKS, seed=1, via="fetch")
        happened(f"{read['wrong']} of {READS} reads were wrong")
        assert (read["hits"], read["wrong"]) == (READS, 0)


@case(
    "I25",
    "images that start once a day are read through a cache of images that start all the time",
    expect="the cache keeps at least 5 points more of its hits than LRU would",
)
def test_scans_of_a_cache(probe: ChunkProbe, happened: Happened) -> None:
    rates = probe.ask("scans", capacity=400)
    happened(f"hits {100 * rates['lru2']:.1f} %, LRU {100 * rates['lru']:.1f} %")
    assert rates["lru2"] >= rates["lru"] + 0.05


@case(
    "I26",
    f"a client sends {FLOOD_MB} MB of stripes to a cache node with {NODE_MEMORY_MB} MB, and takes no answers",
    expect="the node stays below its limits, and serves another client",
)
def test_a_flood_of_stripes(broken: str, happened: Happened) -> None:
    node = CacheNode("--memory-mb", str(NODE_MEMORY_MB), command=command(broken, "node"))
    with ExitStack() as stack:
        stack.callback(node.kill)
        node.start()
        before_mb = resident_mb(node.pid)
        flood = stack.enter_context(closing(http.client.HTTPConnection(node.address)))
        stripe = split(random.Random(0).randbytes(512 << 10))[0]
        for number in range((FLOOD_MB << 20) // len(stripe)):
            name = hashlib.sha256(b"%d" % number).digest()
            flood.request("PUT", stripe_path(name, 0), stripe)
            assert flood.getresponse().read() == b""
        for _ in range(100):
            greedy = stack.enter_context(closing(http.client.HTTPConnection(node.address)))
            for _ in range(20):
                greedy.send(f"GET {stripe_path(name, 0)} HTTP/1.1\r\n\r\n".encode())  # connects, too
        other = stack.enter_context(closing(http.client.HTTPConnection(node.address)))
        other.request("GET", stripe_path(name, 0))
        assert other.getresponse().read() == stripe
        after_mb = resident_mb(node.pid)
        happened(f"resident {before_mb} MB before, {after_mb} MB after")
        assert after_mb - before_mb <= NODE_MEMORY_MB + NODE_REST_MB


def resident_mb(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20
