"""The fetcher: which tier serves, one fetch per chunk for many threads, and no error of a cache."""

from __future__ import annotations

import hashlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from sockd.base.errors import ChunkMissing, StoreUnavailable, Tampered
from sockd.images.caches.fetcher import Fetcher, open_fetcher, open_l1
from sockd.images.caches.l2_client import L2Client
from sockd.images.chunks.chunk import CHUNK_BYTES, verify
from tests.support.images.cache_nodes import addresses, cache_nodes

ROOT = "r1"
L1_BYTES = 40 * CHUNK_BYTES


class MemoryOrigin:
    """A chunk store that counts, and calls `before` within each request."""

    def __init__(self, *, before: Callable[[], None] = lambda: None) -> None:
        self.chunks: dict[bytes, bytes] = {}
        self.requests: Counter[bytes] = Counter()
        self.before = before
        self._lock = threading.Lock()

    def add(self, number: int) -> bytes:
        chunk = random.Random(number).randbytes(CHUNK_BYTES)
        name = hashlib.sha256(chunk).digest()
        self.chunks[name] = chunk
        return name

    def get(self, root: str, name: bytes) -> bytes:
        with self._lock:
            self.requests[name] += 1
        self.before()
        if name not in self.chunks:
            raise ChunkMissing("memory", root, name)
        verify(name, self.chunks[name])
        return self.chunks[name]


@pytest.fixture
def origin() -> MemoryOrigin:
    return MemoryOrigin()


@contextmanager
def with_l1(origin: MemoryOrigin, directory: Path, *, most_origin_requests: int = 16) -> Iterator[Fetcher]:
    l1 = open_l1(directory / "l1", L1_BYTES)
    with closing(Fetcher(origin, l1=l1, most_origin_requests=most_origin_requests)) as fetcher:
        yield fetcher


def test_a_chunk_is_asked_of_the_origin_once(origin: MemoryOrigin, tmp_path: Path) -> None:
    name = origin.add(1)
    with with_l1(origin, tmp_path) as fetcher:
        assert [fetcher.fetch(ROOT, name) for _ in range(3)] == 3 * [origin.chunks[name]]
        assert fetcher.is_local(name)
        counters = fetcher.counters()
    assert origin.requests == {name: 1}
    assert (counters.l1.fetches, counters.l2.fetches, counters.origin.fetches) == (2, 0, 1)
    assert counters.origin.bytes == CHUNK_BYTES and counters.requests_per_chunk == 1.0


def test_a_part_is_read_from_each_tier(origin: MemoryOrigin, tmp_path: Path) -> None:
    name = origin.add(1)
    with with_l1(origin, tmp_path) as fetcher:
        for _ in range(2):
            assert fetcher.read(ROOT, name, 1000, 50) == origin.chunks[name][1000:1050]
    assert origin.requests == {name: 1}


def test_threads_that_need_one_chunk_cause_one_request(origin: MemoryOrigin, tmp_path: Path) -> None:
    name = origin.add(1)
    with with_l1(origin, tmp_path) as fetcher, ThreadPoolExecutor(20) as threads:
        origin.before = until(lambda: fetcher.counters().joined == 19)
        results = [threads.submit(fetcher.fetch, ROOT, name) for _ in range(20)]
        assert all(result.result() == origin.chunks[name] for result in results)
        assert fetcher.counters().joined == 19
    assert origin.requests == {name: 1}


def test_starts_of_one_image_at_once_ask_for_each_chunk_once(origin: MemoryOrigin, tmp_path: Path) -> None:
    names = [origin.add(number) for number in range(20)]

    def start(seed: int) -> None:
        order = list(names)
        random.Random(seed).shuffle(order)
        for name in order:
            assert fetcher.fetch(ROOT, name) == origin.chunks[name]

    with with_l1(origin, tmp_path) as fetcher, ThreadPoolExecutor(12) as threads:
        for result in [threads.submit(start, seed) for seed in range(12)]:
            result.result()
        assert fetcher.counters().requests_per_chunk == 1.0
    assert set(origin.requests.values()) == {1}


def test_an_error_reaches_all_waiting_threads_and_is_not_kept(origin: MemoryOrigin, tmp_path: Path) -> None:
    name = origin.add(1)
    with with_l1(origin, tmp_path) as fetcher, ThreadPoolExecutor(4) as threads:
        wait = until(lambda: fetcher.counters().joined == 3)

        def fail() -> None:
            wait()
            raise StoreUnavailable("memory", "it is off")

        origin.before = fail
        results = [threads.submit(fetcher.fetch, ROOT, name) for _ in range(4)]
        assert [type(result.exception()) for result in results] == 4 * [StoreUnavailable]
        origin.before = lambda: None
        assert fetcher.fetch(ROOT, name) == origin.chunks[name]


def test_a_wrong_chunk_of_the_origin_is_refused_and_cached_nowhere(origin: MemoryOrigin, tmp_path: Path) -> None:
    name = origin.add(1)
    right = origin.chunks[name]
    origin.chunks[name] = right[:-1] + b"\0"
    with with_l1(origin, tmp_path) as fetcher:
        with pytest.raises(Tampered):
            fetcher.fetch(ROOT, name)
        assert not fetcher.is_local(name) and fetcher.counters().wrong_chunks == 1
        origin.chunks[name] = right
        assert fetcher.fetch(ROOT, name) == right


def test_a_missing_chunk_is_an_error(origin: MemoryOrigin) -> None:
    with closing(Fetcher(origin)) as fetcher, pytest.raises(ChunkMissing):
        fetcher.fetch(ROOT, bytes(32))


def test_requests_to_the_origin_are_bounded(origin: MemoryOrigin, tmp_path: Path) -> None:
    names = [origin.add(number) for number in range(12)]
    now = 0
    most = 0
    lock = threading.Lock()
    both = threading.Barrier(2)

    def count() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        both.wait(10)
        with lock:
            now -= 1

    origin.before = count
    with (
        with_l1(origin, tmp_path, most_origin_requests=2) as fetcher,
        ThreadPoolExecutor(12) as threads,
    ):
        for result in [threads.submit(fetcher.fetch, ROOT, name) for name in names]:
            result.result()
    assert most == 2


def test_l2_serves_another_worker_and_l1_the_next_read(origin: MemoryOrigin, tmp_path: Path) -> None:
    names = [origin.add(number) for number in range(5)]
    with cache_nodes(5) as nodes:
        for worker in ("one", "two"):
            place = tmp_path / worker
            with closing(
                Fetcher(origin, l1=open_l1(place, L1_BYTES), l2=L2Client(addresses(nodes), deadline_s=5))
            ) as fetcher:
                for name in [*names, *names]:
                    assert fetcher.fetch(ROOT, name) == origin.chunks[name]
                assert fetcher._l2 is not None
                fetcher._l2.flush()
                counters = fetcher.counters()
            assert counters.l1.fetches == 5
    assert counters.l2.fetches == 5 and counters.origin.fetches == 0
    assert set(origin.requests.values()) == {1}


def test_dead_and_lying_nodes_never_fail_a_fetch(origin: MemoryOrigin) -> None:
    names = [origin.add(number) for number in range(6)]
    with cache_nodes(5, lying=2) as nodes, closing(L2Client(addresses(nodes), deadline_s=5)) as l2:
        fetcher = Fetcher(origin, l2=l2)
        for name in names[:3]:
            assert l2.put(name, origin.chunks[name]) == 5
        for number, name in enumerate(names):
            assert fetcher.fetch(ROOT, name) == origin.chunks[name]
            if number == 3:
                for each in nodes:
                    each.kill()
        assert fetcher.counters().origin.fetches == 6
        l2.flush()


def test_an_unforeseen_error_of_l2_is_not_the_callers(
    origin: MemoryOrigin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = origin.add(1)

    def fail(*_: object) -> bytes:
        raise RuntimeError("a bug")

    with closing(open_fetcher(origin, nodes=("127.0.0.1:9",))) as fetcher:
        monkeypatch.setattr(L2Client, "get", fail)
        assert fetcher.fetch(ROOT, name) == origin.chunks[name]
    assert "the origin is asked instead" in caplog.text


def until(condition: Callable[[], bool]) -> Callable[[], None]:
    """A function that returns when the condition holds."""

    def wait() -> None:
        event = threading.Event()
        for _ in range(10_000):
            if condition():
                return
            event.wait(0.001)
        raise AssertionError("the condition did not come true")

    return wait
