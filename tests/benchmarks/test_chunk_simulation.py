"""The simulated fleet: its shares are shares, and larger caches serve more."""

from __future__ import annotations

from benchmarks.instruments.chunk_simulation import Fleet, HitRates, Lru2Cache, LruCache, fleet_hit_rates

FLEET = Fleet(workers=4, images=30, starts=400, first_counted=200)


def rates(l1: int, l2: int) -> HitRates:
    return fleet_hit_rates(FLEET, [Lru2Cache(l1) for _ in range(FLEET.workers)], Lru2Cache(l2))


def test_larger_caches_serve_more() -> None:
    small, large_l1, large_l2 = rates(200, 800), rates(800, 800), rates(200, 3000)
    for each in (small, large_l1, large_l2):
        assert abs(each.l1 + each.l2 + each.origin - 1) < 1e-9
    assert large_l1.l1 > small.l1
    assert large_l2.origin < small.origin and large_l2.l2_own > small.l2_own


def test_popular_images_and_shared_bases_need_little_of_the_origin() -> None:
    found = rates(600, 3000)
    assert found.origin < 0.05
    lru = fleet_hit_rates(FLEET, [LruCache(600) for _ in range(FLEET.workers)], LruCache(3000))
    assert found.l1 > lru.l1
