"""The collector runs in quiet moments; a crowd is not looked through."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from sockd.linux.latency.garbage import BACKSTOP, FEW, SURVIVALS, WORTHWHILE, Collector, due

pytestmark = pytest.mark.anyio


@pytest.fixture
def pythons_rule() -> Iterator[None]:
    """Give back what a collector changes."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.parametrize(
    ("counts", "running", "generation"),
    [
        ((WORTHWHILE - 1, SURVIVALS, SURVIVALS), 0, None),
        ((WORTHWHILE, 0, 0), 0, 0),
        ((WORTHWHILE, 0, SURVIVALS), FEW, 0),
        ((WORTHWHILE, SURVIVALS, 0), 0, 1),
        ((WORTHWHILE, SURVIVALS, SURVIVALS), 0, 2),
        ((BACKSTOP, SURVIVALS, SURVIVALS), FEW + 1, None),
    ],
)
def test_what_is_collected_depends_on_what_stayed_and_on_who_waits(
    counts: tuple[int, int, int], running: int, generation: int | None
) -> None:
    assert due(counts, running) == generation


@pytest.mark.usefixtures("pythons_rule")
async def test_a_crowd_of_objects_is_not_looked_through() -> None:
    collections: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collections.append(phase)

    collector = Collector(lambda: FEW + 1)
    collector.start()
    gc.callbacks.append(note)
    try:
        crowd = [[number] for number in range(BACKSTOP // 2)]
    finally:
        gc.callbacks.remove(note)
        collector.close()
    assert len(crowd) == BACKSTOP // 2
    assert collections == []


@pytest.mark.usefixtures("pythons_rule")
async def test_cycles_are_found_when_few_requests_run() -> None:
    collector = Collector(lambda: 0)
    collector.start()
    try:
        for _ in range(2 * WORTHWHILE):
            cycle: list[object] = []
            cycle.append(cycle)
        assert gc.get_count()[0] >= WORTHWHILE
        collector.look()
        assert gc.get_count()[0] < WORTHWHILE
    finally:
        collector.close()
