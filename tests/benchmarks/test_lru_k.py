"""LRU-2: against a model that keeps every use, and against LRU under scans."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.instruments.chunk_simulation import Lru2Cache, LruCache, hot_hit_rate, scans_between_hot_reads
from sockd.images.caches.lru_k import Lru2

NEVER = float("-inf")
KEYS = st.integers(0, 12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("use"), KEYS, st.integers(1, 9)), st.tuples(st.sampled_from(["evict", "discard"]), KEYS)
    ),
    max_size=300,
)


class Model:
    """The rule as the paper states it: each key's last two uses, correlated ones collapsed; nothing is incremental."""

    def __init__(self, remembered: int, correlated: int) -> None:
        self.remembered, self.correlated = remembered, correlated
        self.uses: dict[int, tuple[float, float]] = {}
        self.evicted: dict[int, float] = {}

    def use(self, key: int, now: int) -> None:
        before, last = self.uses[key] if key in self.uses else (NEVER, self.evicted.pop(key, NEVER))
        self.uses[key] = (before if now - last <= self.correlated else last, now)

    def evict(self) -> int:
        victim = min(self.uses, key=self.uses.__getitem__)
        self.evicted[victim] = self.uses.pop(victim)[1]
        for key in list(self.evicted)[: max(0, len(self.evicted) - self.remembered)]:
            del self.evicted[key]
        return victim


@given(steps=STEPS, remembered=st.integers(0, 6), correlated=st.integers(0, 12))
def test_victims_are_those_of_the_model(
    steps: list[tuple[str, int] | tuple[str, int, int]], remembered: int, correlated: int
) -> None:
    order: Lru2[int] = Lru2(remembered=remembered, correlated=correlated)
    model = Model(remembered, correlated)
    now = 0
    for step in steps:
        match step:
            case ("use", key, passed):
                now += passed
                order.use(key, now)
                model.use(key, now)
            case ("discard", key):
                order.discard(key)
                model.uses.pop(key, None)
            case _ if model.uses:
                assert order.evict() == model.evict()
            case _:
                with pytest.raises(KeyError):
                    order.evict()
        assert len(order) == len(model.uses)
        assert all(key in order for key in model.uses)
    while model.uses:
        assert order.evict() == model.evict()


def test_parts_of_one_start_are_one_use() -> None:
    order: Lru2[str] = Lru2(remembered=4, correlated=2)
    order.use("hot", 0)
    order.use("hot", 100)
    for now in (200, 201, 202):
        order.use("scanned", now)
    assert order.evict() == "scanned"


def test_a_key_that_returns_after_its_eviction_has_two_uses() -> None:
    order: Lru2[str] = Lru2(remembered=1)
    order.use("a", 0)
    assert order.evict() == "a"
    order.use("a", 10)
    order.use("b", 11)
    assert order.evict() == "b"


def test_keys_that_are_discarded_and_taken_in_again_do_not_fill_the_queue() -> None:
    order: Lru2[int] = Lru2(remembered=0)
    order.use(0, 0)
    order.use(0, 1)
    for now in range(2, 20_000, 2):
        order.use(1, now)
        order.use(1, now + 1)
        order.discard(1)
    assert len(order._queue) < 1000


def test_no_step_of_a_cache_that_remembers_many_keys_allocates_much() -> None:
    order: Lru2[int] = Lru2(remembered=20_000)
    most = 0
    tracemalloc.start()
    try:
        for key in range(50_000):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            order.use(key, key)
            if len(order) > 16:
                order.evict()
            most = max(most, tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert most < 64 << 10


@pytest.mark.parametrize("capacity", [300, 400, 500])
def test_scans_cost_a_cache_with_lru2_fewer_hits_than_one_with_lru(capacity: int) -> None:
    lru = hot_hit_rate(scans_between_hot_reads(), LruCache(capacity))
    lru2 = hot_hit_rate(scans_between_hot_reads(), Lru2Cache(capacity))
    assert lru2 >= lru + 0.05, f"LRU {lru:.3f}, LRU-2 {lru2:.3f}"
