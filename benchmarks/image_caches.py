"""`image_caches`: the caches of images' chunks: hits by tier, lost and slow nodes, eviction, and balance.

All nodes are processes on this machine, so that a network is missing and CPUs are shared. `benchmarks.instruments.chunk_probe`, a
process, measures; the nodes' own times are in their /status.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from blake3 import blake3

from benchmarks.harness.results import Result, quantile
from benchmarks.harness.run import Run, main
from benchmarks.harness.worker import REPOSITORY, sockd
from benchmarks.peers.stripe_floor import StripeFloor, connected

CHUNKS = 60
NODES = 6
SLOW_SHARE, SLOW_MS = 0.01, 20.0
L1_MB = 64
STRIPE_BYTES = 128 << 10
DATA_STRIPES = 4
"""That make a chunk."""
LEAST_HIT = "four stripes from four processes, their digest and decryption"
MOVE = "send(2) and recv(2) of a stripe"
BUFFER_BYTES = 512 << 10
"""The buffer of a socket that receives stripes; a worker's connections have as much."""
NODE_ROUNDS = 1000
"""Rounds of 50 GETs and 50 PUTs: five requests of each kind are beyond the p99.99."""
SIZED = "L1 sized to the paper's 67 %"
DEFAULT = "default sizes"
FLEETS = {SIZED: (700, 6600), DEFAULT: (4096, 4096)}
"""Chunks that L1 and L2 hold. One L1 is chosen so that its hit rate is that of AWS's paper, and L2's is then a result. The other
fleet has what a worker (`images.cache_mb`) and five cache nodes have without settings, of these four fifths for data."""
SCANNED_CAPACITY = 400


class Probe:
    """`python -m benchmarks.instruments.chunk_probe`."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "benchmarks.instruments.chunk_probe"]
        self._process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def begin(self, do: str, **arguments: Any) -> None:
        """Send a command; `end` waits for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def end(self) -> Any:
        assert self._process.stdout is not None
        answer = json.loads(self._process.stdout.readline())
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def ask(self, do: str, **arguments: Any) -> Any:
        self.begin(do, **arguments)
        return self.end()

    def read(self, count: int, *, seed: int, via: str, decrypts: bool = False) -> list[float]:
        """Milliseconds of each read; all are hits."""
        answer = self.ask("read", count=count, seed=seed, of=CHUNKS, via=via, decrypts=decrypts)
        assert answer["hits"] == count, f"{count - answer['hits']} misses of {count}"
        return list(answer["ms"])

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


@contextmanager
def probe() -> Iterator[Probe]:
    made = Probe()
    try:
        yield made
    finally:
        made.close()


@contextmanager
def nodes(count: int) -> Iterator[list[tuple[str, subprocess.Popen[str]]]]:
    """Cache nodes: address and process of each."""
    command = [*sockd(), "cache-node", "--listen", "127.0.0.1:0", "--memory-mb", "256"]
    with _processes([command] * count) as started:
        yield started


@contextmanager
def slow_nodes(count: int) -> Iterator[list[tuple[str, subprocess.Popen[str]]]]:
    """Stand-ins that answer some reads late."""
    module = [sys.executable, "-m", "benchmarks.peers.stripe_server", str(SLOW_SHARE), str(SLOW_MS)]
    with _processes([[*module, str(number)] for number in range(count)]) as started:
        yield started


@contextmanager
def least_hits() -> Iterator[StripeFloor]:
    """What reads a chunk from four processes, and does nothing else."""
    module = [sys.executable, "-m", "benchmarks.peers.stripe_floor", str(STRIPE_BYTES)]
    with (
        _processes([module] * DATA_STRIPES) as started,
        connected([address for address, _ in started], STRIPE_BYTES) as floor,
    ):
        yield floor


@contextmanager
def _processes(commands: list[list[str]]) -> Iterator[list[tuple[str, subprocess.Popen[str]]]]:
    with ExitStack() as stack:
        started = []
        for command in commands:
            process = subprocess.Popen(
                command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.callback(_end, process)
            started.append(process)
        yield [(_address(process), process) for process in started]


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().split()[-1]


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def measure(run: Run) -> Result:
    """Every part."""
    result = Result("image_caches")
    measure_caches(run, result)
    return result


def measure_caches(run: Run, result: Result) -> None:
    """Append rows and aims."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory, nodes(NODES) as started:
        measure_tiers(run, result, [address for address, _ in started], Path(directory))
        measure_lost_node(run, result, started)
    with nodes(1) as started:
        measure_node(run, result, started[0][0])
    measure_slow_stripes(run, result)
    measure_simulated(result)


def measure_tiers(run: Run, result: Result, addresses: list[str], directory: Path) -> None:
    """A hit in each tier."""
    run.say("hits in L1, L2 and the origin")
    with probe() as caches, probe() as origin, least_hits() as floor:
        caches.ask("open", nodes=addresses, origin=None, l1=str(directory / "l1"), l1_mb=L1_MB)
        origin.ask("open", nodes=[], origin=str(directory / "origin"), l1=None)
        caches.ask("fill", count=CHUNKS, into="l2")
        caches.ask("fill", count=CHUNKS, into="l1")
        origin.ask("fill", count=CHUNKS, into="origin")
        cases: dict[str, tuple[Probe, dict[str, Any]]] = {
            "L1": (caches, {"via": "l1"}),
            "L1, decrypted": (caches, {"via": "l1", "decrypts": True}),
            "L2": (caches, {"via": "l2"}),
            "L2, decrypted": (caches, {"via": "l2", "decrypts": True}),
            "origin in a directory": (origin, {"via": "fetch"}),
            "digest alone": (caches, {"via": "verify"}),
        }
        samples: dict[str, list[float]] = {name: [] for name in cases}
        least: list[float] = []
        rounds, reads = run.pick((40, 100), (5, 60))
        draw = random.Random(0)
        for turn in range(rounds):
            for name in draw.sample(list(cases), len(cases)):
                asked, how = cases[name]
                samples[name] += asked.read(reads, seed=turn, **how)
            least += floor.read(reads)
        counters = caches.ask("counters")["nodes"]
    rows = {name: result.add(name, "a chunk of 512 KiB, verified", "ms", each) for name, each in samples.items()}
    tail = quantile(sorted(samples["L2"]), 0.999)
    result.notes.append(
        f"L2, verified: p99.9 {tail:.2f} ms; {counters['reconstructed']} of {counters['hits']} used the parity"
    )
    least_ms = result.add(LEAST_HIT, "a chunk of 512 KiB", "ms", least).p50
    hit = rows["L2, decrypted"]
    result.aim(f"L2 hit, decrypted, p50, times {LEAST_HIT}", hit.p50 / least_ms, "<= 2")
    result.aim("L2 hit, decrypted, p99, times the p50", (hit.p99 or 0.0) / hit.p50, "<= 4")
    result.aim("L1 hit p50, times the L2 hit's", rows["L1"].p50 / rows["L2"].p50, "<= 0.5")


def measure_node(run: Run, result: Result, address: str) -> None:
    """Stripes of one node, as a client sees it, and as the node measures itself."""
    run.say("GET and PUT of stripes")
    before = status(address)
    body = stripe(random.Random(0).randbytes(STRIPE_BYTES))
    connection = reader_of_stripes(address)
    times: dict[str, list[float]] = {"GET": [], "PUT": []}
    moves: list[float] = []
    digests: list[float] = []
    rounds = run.pick(NODE_ROUNDS, 20)
    for number in range(rounds):
        moves += moves_of_a_stripe(5)
        digests += digests_of(body, 5)
        paths = [f"/stripes/{hashlib.sha256(b'%d %d' % (number, each)).hexdigest()}/0" for each in range(50)]
        for method in ("PUT", "GET"):
            for path in paths:
                begun = time.perf_counter()
                connection.request(method, path, body if method == "PUT" else None)
                answer = connection.getresponse()
                answer.read()
                times[method].append((time.perf_counter() - begun) * 1e6)
                assert answer.status in (200, 204)
    connection.close()
    for method, each in times.items():
        result.add(f"{method} of a stripe", "round trip of http.client", "us", each)
    move_us = result.add(MOVE, "beside a node", "us", moves).p50
    digest_us = result.add("digest of a stripe", "alone", "us", digests).p50
    after = status(address)
    for method, alone, least_us, bound in (
        ("get", "a move of the stripe", move_us, 3.3),
        ("put", "a move of the stripe and its digest", move_us + digest_us, 2),
    ):
        own = after[method]
        assert own["count"] > before[method]["count"]
        result.add(f"{method.upper()} of a stripe", "in the node", "us", [own["p50_us"]], tail=False)
        result.notes.append(
            f"{method.upper()} in the node, {own['count']} requests: p50 {own['p50_us']:.0f}, p99 {own['p99_us']:.0f}, "
            f"p99.99 {own['p9999_us']:.0f} us"
        )
        result.aim(f"{method.upper()} in the node, p50, times {alone} alone", own["p50_us"] / least_us, f"<= {bound}")
        result.aim(f"{method.upper()} in the node, p99.99, times the median", own["p9999_us"] / own["p50_us"], "<= 10")


def reader_of_stripes(address: str) -> http.client.HTTPConnection:
    """A connection to a node. With the kernel's receive buffer, a stripe does not fit TCP's window."""
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port))
    connection.sock = socket.socket()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)  # before the window's scale is agreed
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sock.connect((host, int(port)))
    return connection


def moves_of_a_stripe(count: int) -> list[float]:
    """Microseconds of each send(2) and recv(2) of a stripe through a connection over loopback, in one process."""
    times = []
    body, place = bytes(STRIPE_BYTES), bytearray(STRIPE_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as writer:
        for each in (server, writer):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        writer.connect(server.getsockname())
        with server.accept()[0] as reader:
            for _ in range(count):
                begun = time.perf_counter()
                left = writer.send(body)
                while left:
                    left -= reader.recv_into(place, left)
                times.append((time.perf_counter() - begun) * 1e6)
    return times


def digests_of(data: bytes, count: int) -> list[float]:
    """Microseconds of each digest of the data."""
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        blake3(data).digest()
        times.append((time.perf_counter() - begun) * 1e6)
    return times


def measure_lost_node(run: Run, result: Result, started: list[tuple[str, subprocess.Popen[str]]]) -> None:
    """One of six nodes is killed while chunks are read."""
    run.say("one of six nodes killed")
    reads = run.pick(3000, 600)
    with probe() as reader:
        reader.ask("open", nodes=[address for address, _ in started], origin=None, l1=None)
        reader.ask("fill", count=CHUNKS, into="l2")
        whole = reader.read(reads, seed=1, via="l2")
        reader.begin("read", count=reads, seed=2, of=CHUNKS, via="l2", decrypts=False)
        time.sleep(sum(whole) / 4000)  # a quarter of the reads
        started[-1][1].kill()
        during = reader.end()
        after = reader.read(reads, seed=3, via="l2")
        counters = reader.ask("counters")["nodes"]
    rows = [
        result.add(case, "an L2 read", "ms", each)
        for case, each in (("six nodes", whole), ("one killed meanwhile", during["ms"]), ("five of six left", after))
    ]
    result.notes.append(
        f"after the kill: {counters['failed_requests']} requests failed, {counters['misses']} reads missed"
    )
    result.aim("hit rate while one of six nodes is killed", during["hits"] / reads, ">= 1.0")
    result.aim("p99 while a node is killed, times the one before", (rows[1].p99 or 0) / (rows[0].p99 or 1), "<= 1.5")
    result.aim("p99 without the node, times the one before", (rows[2].p99 or 0) / (rows[0].p99 or 1), "<= 1.5")


def measure_slow_stripes(run: Run, result: Result) -> None:
    """Reads of four of five stripes, and of four of four, where 1 % of the stripes are 20 ms late."""
    run.say("1 % of stripes 20 ms late")
    samples: dict[str, list[float]] = {"4 of 5": [], "4 of 4": []}
    with slow_nodes(5) as started, probe() as coded, probe() as plain:
        addresses = [address for address, _ in started]
        for each, needs_all in ((coded, False), (plain, True)):
            each.ask("open", nodes=addresses, origin=None, l1=None, needs_all=needs_all)
        coded.ask("fill", count=CHUNKS, into="l2")
        for turn in range(run.pick(40, 8)):
            samples["4 of 5"] += coded.read(100, seed=turn, via="l2")
            samples["4 of 4"] += plain.read(100, seed=turn, via="l2")
    five, four = (
        result.add(f"{case}, 1 % of stripes late", "an L2 read", "ms", each) for case, each in samples.items()
    )
    result.aim("p99 of 4 of 4, times the one of 4 of 5", (four.p99 or 0) / (five.p99 or 1), ">= 5")
    result.aim("p50 of 4 of 5, times the one of 4 of 4", five.p50 / four.p50, "<= 1.35")


def measure_simulated(result: Result) -> None:
    """What needs no clock: the same on every machine."""
    with probe() as simulated:
        scans = simulated.ask("scans", capacity=SCANNED_CAPACITY)
        fleets = {name: simulated.ask("fleet", l1=l1, l2=l2) for name, (l1, l2) in FLEETS.items()}
        balance = {count: simulated.ask("placement", nodes=count, keys=20_000) for count in (6, 10, 20)}
    for order, name in (("lru", "LRU"), ("lru2", "LRU-2")):
        result.add(f"{name}, scans by daily images", "hit rate of hot chunks", "%", [100 * scans[order]], tail=False)
        for sizes, fleet in fleets.items():
            case = f"{name}, Zipf trace of images, {sizes}"
            for tier in ("l1", "l2", "origin"):
                result.add(case, f"reads from {tier}", "%", [100 * fleet[order][tier]], tail=False)
            result.add(case, "hit rate of L2", "%", [100 * fleet[order]["l2_own"]], tail=False)
    for sizes, (l1, l2) in FLEETS.items():
        result.notes.append(f"{sizes}: L1 has {l1} chunks, L2 has {l2}")
    for count, each in balance.items():
        result.add(
            f"{count} nodes", "fullest node, share of the key space / mean", "x", [each["max_to_mean"]], tail=False
        )
        result.add(
            f"{count} nodes", "fullest node, of 20,000 chunks / mean", "x", [each["keys_max_to_mean"]], tail=False
        )
        result.add(
            f"{count} nodes", "stripes moved by a lost node / its share", "x", [each["moved"] * count], tail=False
        )
    result.aim("hit rate of hot chunks under scans, LRU-2 - LRU, points", 100 * (scans["lru2"] - scans["lru"]), ">= 5")
    sized = fleets[SIZED]
    result.aim("L1 hit rate, Zipf trace, LRU-2 - LRU, points", 100 * (sized["lru2"]["l1"] - sized["lru"]["l1"]), ">= 5")
    result.aim(
        "load of the fullest node, times the mean", max(each["max_to_mean"] for each in balance.values()), "<= 1.05"
    )
    worst = max(each["moved"] * count for count, each in balance.items())
    result.aim("stripes moved by a lost node, times its share", worst, "<= 1.1")


def status(address: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection(address)
    with contextlib.closing(connection):
        connection.request("GET", "/status")
        found: dict[str, Any] = json.loads(connection.getresponse().read())
    return found


def stripe(data: bytes) -> bytes:
    """A stripe in a node's form: the first of a chunk with four times as many bytes."""
    fields = struct.pack(">4sB3xI", b"sks2", 0, 4 * len(data))
    return fields + blake3(fields + data).digest() + data


if __name__ == "__main__":
    sys.exit(main("image_caches", measure, __doc__ or ""))
