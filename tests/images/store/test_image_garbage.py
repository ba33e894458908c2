"""The minute's work of the garbage collection of a worker's images."""

from __future__ import annotations

import pytest

from sockd.images.chunks.collector import Collector
from sockd.images.chunks.root_watch import RootWatch
from sockd.images.store.image_garbage import ImageGarbage
from tests.images.store.profiled_workers import IMAGE, RECORD, Workers

pytestmark = pytest.mark.anyio


async def test_an_open_image_of_an_expired_root_is_an_alarm_at_the_next_minute(workers: Workers) -> None:
    worker = workers.new()
    root = worker.publish(IMAGE).root
    await worker.importer.store.parts()
    await worker.importer.open(RECORD, worker.directory)
    collector = Collector(worker.store, worker="collector", grace_s=1000.0)
    garbage = ImageGarbage(worker.importer, lambda: collector, lambda: RootWatch(worker.store, "reader", refresh_s=0.0))
    await garbage.once()
    assert list(worker.store.list_objects("alarms/")) == []
    assert collector.forget_worker(worker.directory.parents[1].name) == 1
    collector.rotate()
    list(collector.run())
    await garbage.once()
    assert list(worker.store.list_objects("alarms/")) == [f"alarms/{root}/reader"]
    await worker.importer.close(RECORD)
