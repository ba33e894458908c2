"""Measures caches and nodes from this machine: for benchmarks, and for an operator with a doubt.

    python -m benchmarks.instruments.chunk_probe

It reads one JSON object a line, {"do": COMMAND, ...}, and answers one line each; errors are {"error": words}. Chunks are made
from their number, and are encrypted like an image's.

    open       nodes, origin (a directory) or null, l1 (a file) or null, l1_mb, needs_all (read four stripes, without parity)
    fill       count, into: "l1", "l2", "origin"
    read       count, of: how many chunks, seed of the order, via: "l1", "l2", "fetch", "verify" (the verification alone),
               decrypts: bool -> {"ms": [...], "hits": n, "wrong": chunks with other bytes than were stored}
    starts     parallel, of -> {"seconds": s}: that many threads fetch the same chunks in the same order
    counters   of the fetcher and of L2
    placement  nodes, keys -> {"max_to_mean", "keys_max_to_mean", "moved"}
    scans      capacity -> {"lru", "lru2"}: hit rates of hot chunks
    fleet      l1, l2 -> {"lru": {...}, "lru2": {...}}: hit rates of the tiers
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.instruments.chunk_simulation import (
    Fleet,
    Lru2Cache,
    LruCache,
    fleet_hit_rates,
    hot_hit_rate,
    scans_between_hot_reads,
)
from sockd.base.errors import ChunkMissing, SockdError
from sockd.images.caches.fetcher import Fetcher, open_l1
from sockd.images.caches.l2_client import L2Client, NodeStripe
from sockd.images.caches.placement import PARTITIONS, Placement
from sockd.images.caches.slab import Slab
from sockd.images.caches.stripes import DATA_STRIPES, STRIPES
from sockd.images.chunks.chunk import CHUNK_BYTES, Chunk, decrypt, encrypt, verify
from sockd.images.chunks.directory_store import DirectoryStore

ROOT = "probe"
DEADLINE_S = 5.0
"""The deadline of reads from L2: a busy machine must not turn hits into misses."""
_SALT = b"probe"


class StripesOfData(L2Client):
    """Reads a chunk from four nodes and needs all of them: what a cache without erasure code does."""

    def _slots(self, name: bytes) -> list[NodeStripe]:
        return super()._slots(name)[:DATA_STRIPES]


class Probe:
    """What is open, and the commands."""

    def __init__(self) -> None:
        self._fetcher: Fetcher | None = None
        self._l1: Slab | None = None
        self._l2: L2Client | None = None
        self._origin: DirectoryStore | None = None
        self._chunks: dict[int, tuple[Chunk, bytes]] = {}
        self._by_name: dict[bytes, bytes] = {}
        self.commands: dict[str, Callable[..., Any]] = {
            "open": self.open,
            "fill": self.fill,
            "read": self.read,
            "starts": self.starts,
            "counters": self.counters,
            "placement": placement,
            "scans": scans,
            "fleet": fleet,
        }

    def open(
        self, *, nodes: list[str], origin: str | None, l1: str | None, l1_mb: int = 0, needs_all: bool = False
    ) -> None:
        self.close()
        if nodes:
            self._l2 = (StripesOfData if needs_all else L2Client)(nodes, deadline_s=DEADLINE_S)
        if l1 is not None:
            self._l1 = open_l1(Path(l1), l1_mb << 20)
        self._origin = DirectoryStore.create(Path(origin)) if origin is not None else None
        self._fetcher = Fetcher(self._origin or Nowhere(), l1=self._l1, l2=self._l2)

    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.close()
        if self._origin is not None:
            self._origin.close()
        self._fetcher = self._l1 = self._l2 = self._origin = None

    def fill(self, *, count: int, into: str) -> int:
        """Store chunks; how many stripes or chunks were stored."""
        stored = 0
        for index in range(count):
            chunk, ciphertext = self._chunk(index)
            if into == "l2":
                assert self._l2 is not None
                stored += self._l2.put(chunk.name, ciphertext)
            elif into == "l1":
                assert self._l1 is not None
                stored += self._l1.put(chunk.name, ciphertext)
            elif into == "origin":
                assert self._origin is not None
                stored += self._origin.put(ROOT, chunk.name, ciphertext)
        return stored

    def read(self, *, count: int, seed: int, of: int, via: str, decrypts: bool = False) -> dict[str, Any]:
        """Read random chunks one after the other."""
        get = self._reader(via)
        draw = random.Random(seed)
        chunks = [self._chunk(index)[0] for index in range(of)]
        times = []
        hits = wrong = 0
        for _ in range(count):
            chunk = draw.choice(chunks)
            begun = time.perf_counter()
            data = get(chunk.name)
            if data is not None and decrypts:
                decrypt(data, chunk.key)
            times.append((time.perf_counter() - begun) * 1000)
            hits += data is not None
            wrong += data not in (None, self._by_name[chunk.name])
        return {"ms": times, "hits": hits, "wrong": wrong}

    def starts(self, *, parallel: int, of: int) -> dict[str, float]:
        """Threads that each fetch all chunks."""
        fetcher = self._fetcher
        assert fetcher is not None
        names = [self._chunk(index)[0].name for index in range(of)]

        together = threading.Barrier(parallel)

        def start() -> None:
            together.wait()
            for name in names:
                fetcher.fetch(ROOT, name)

        threads = [threading.Thread(target=start) for _ in range(parallel)]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"seconds": time.perf_counter() - begun}

    def counters(self) -> dict[str, Any]:
        assert self._fetcher is not None
        found = self._fetcher.counters()
        l2 = dataclasses.asdict(self._l2.counters) if self._l2 is not None else {}
        return {**msgspec.to_builtins(found), "requests_per_chunk": found.requests_per_chunk, "nodes": l2}

    def _reader(self, via: str) -> Callable[[bytes], bytes | None]:
        if via == "l1":
            assert self._l1 is not None
            return self._l1.get
        if via == "l2":
            assert self._l2 is not None
            return self._l2.get
        if via == "verify":
            return self._verified
        fetcher = self._fetcher
        assert fetcher is not None
        return lambda name: fetcher.fetch(ROOT, name)

    def _verified(self, name: bytes) -> bytes:
        ciphertext = self._by_name[name]
        verify(name, ciphertext)
        return ciphertext

    def _chunk(self, index: int) -> tuple[Chunk, bytes]:
        if index not in self._chunks:
            made = self._chunks[index] = encrypt(random.Random(index).randbytes(CHUNK_BYTES), _SALT)
            self._by_name[made[0].name] = made[1]
        return self._chunks[index]


class Nowhere:
    """An origin that has nothing."""

    def get(self, root: str, name: bytes) -> bytes:
        raise ChunkMissing("of this probe", root, name)


def placement(*, nodes: int, keys: int) -> dict[str, float]:
    """How even loads are, by shares of the key space and by keys, and what share of the stripes a lost node moves."""
    addresses = [f"10.0.0.{number}:7100" for number in range(nodes)]
    before = Placement(addresses)
    partitions = [number.to_bytes(4, "big") for number in range(PARTITIONS)]
    moved = []
    for lost in addresses[: min(5, nodes)]:
        after = Placement([address for address in addresses if address != lost])
        new = sum(len(set(after.nodes_of(key)) - set(before.nodes_of(key))) for key in partitions)
        moved.append(new / (STRIPES * PARTITIONS))
    names = [hashlib.sha256(b"%d" % number).digest() for number in range(keys)]
    return {
        "max_to_mean": _max_to_mean(before, partitions),
        "keys_max_to_mean": _max_to_mean(before, names),
        "moved": statistics.mean(moved),
    }


def scans(*, capacity: int) -> dict[str, float]:
    """Hit rates of hot chunks while images that start once a day scan the cache."""
    return {
        "lru": hot_hit_rate(scans_between_hot_reads(), LruCache(capacity)),
        "lru2": hot_hit_rate(scans_between_hot_reads(), Lru2Cache(capacity)),
    }


def fleet(*, l1: int, l2: int) -> dict[str, dict[str, float]]:
    """Shares of the reads of a simulated fleet that each tier serves; l1, l2: capacities in chunks."""
    rates = {}
    for name, cache in (("lru", LruCache), ("lru2", Lru2Cache)):
        found = fleet_hit_rates(Fleet(), [cache(l1) for _ in range(Fleet().workers)], cache(l2))
        rates[name] = {**dataclasses.asdict(found), "l2_own": found.l2_own}
    return rates


def _max_to_mean(placed: Placement, keys: list[bytes]) -> float:
    loads = Counter(node for key in keys for node in placed.nodes_of(key))
    return max(loads.values()) * len(placed.nodes) / sum(loads.values())


def main() -> None:
    """Answer commands until stdin ends."""
    probe = Probe()
    try:
        for line in sys.stdin:
            command = json.loads(line)
            try:
                answer = probe.commands[command.pop("do")](**command)
            except (SockdError, OSError, KeyError, TypeError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)
    finally:
        probe.close()


if __name__ == "__main__":
    main()
