"""First starts of an image's next build from the startup profile of the build before."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from sockd.images.agent_keeper import startup_feed
from sockd.images.profiles.profile import Profile
from sockd.images.store import first_starts
from sockd.images.store.kept_copies import PROFILE
from tests.images.store.profiled_workers import (
    BUILD,
    BUILD_READS,
    BUILD_RECORD,
    DIGEST,
    Records,
    Worker,
    Workers,
)
from tests.support.images.chunked_images import digest_of, flip_bit
from tests.support.images.startup_profiles import unsealed, whole

pytestmark = [pytest.mark.root, pytest.mark.anyio]


async def recorded_build(worker: Worker) -> Profile:
    """What is kept of a start of the next build, in the store, too."""
    directory = worker.directory_of(BUILD_RECORD)
    await worker.importer.starts.record(BUILD_RECORD, directory)
    sealed = (directory / PROFILE).read_bytes()
    assert worker.catalog.profile(worker.catalog.open(BUILD_RECORD.stored_name)) == sealed
    manifest = worker.catalog.open(BUILD_RECORD.stored_name)
    return whole(unsealed(sealed, manifest, worker.catalog.tenant_images.key))


async def test_the_first_start_of_a_new_build_fetches_changed_chunks_and_is_recorded(
    workers: Workers, profiled: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    second = workers.new()
    second.adopt()
    second.publish(BUILD, BUILD_RECORD)
    counters = await second.start_build()
    assert (counters["startup_reads"], counters["origin_chunks"]) == (len(BUILD_READS) - 1, 1)
    assert f"{BUILD_RECORD.digest[:19]} starts from the startup profile of {DIGEST[:19]}, which has 84 %" in caplog.text
    found = await recorded_build(second)
    await second.importer.close(BUILD_RECORD)
    third = workers.new()
    third.adopt(BUILD_RECORD)
    counters = await third.start_build()
    assert (counters["startup_reads"], counters["origin_chunks"]) == (len(BUILD_READS), 0), "it has its own profile now"
    elsewhere = workers.new()
    elsewhere.importer.import_for(Records([BUILD_RECORD]))
    elsewhere.publish(BUILD, BUILD_RECORD)
    elsewhere.catalog.set_profile(BUILD_RECORD.stored_name, b"none")
    counters = await elsewhere.start_build()
    assert counters.get("startup_reads", 0) == 0 and counters["origin_chunks"] >= len(BUILD_READS)
    assert await recorded_build(elsewhere) == found, "as of a start without any profile"


async def test_a_new_build_is_served_whole_while_it_starts_from_the_older_builds_profile(
    workers: Workers, profiled: Worker
) -> None:
    profiled.publish(BUILD, BUILD_RECORD)
    path = await profiled.importer.open(BUILD_RECORD, profiled.directory_of(BUILD_RECORD))
    assert await asyncio.to_thread(digest_of, path) == hashlib.sha256(BUILD).hexdigest()
    assert profiled.agent is not None and (await profiled.agent.counters())["starting_images"] == 1
    await recorded_build(profiled)
    after = workers.new()
    after.adopt(BUILD_RECORD)
    path = await after.importer.open(BUILD_RECORD, after.directory_of(BUILD_RECORD))
    assert await asyncio.to_thread(digest_of, path) == hashlib.sha256(BUILD).hexdigest()
    assert after.agent is not None and (await after.agent.counters())["origin_chunks"] == 0, "all was recorded"


async def test_changed_startup_data_of_the_older_build_is_not_read_and_its_copy_removed(
    workers: Workers, profiled: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    flip_bit(profiled.copy, 8 * (profiled.copy.stat().st_size - 5000))
    profiled.publish(BUILD, BUILD_RECORD)
    counters = await profiled.start_build()
    assert counters.get("startup_reads", 0) == 0
    assert f"the startup data of {DIGEST[:19]} is not used" in caplog.text
    while profiled.copy.exists():
        await asyncio.sleep(0)
    assert (await recorded_build(profiled)).order == BUILD_READS


async def test_a_start_whose_data_of_another_build_is_gone_is_not_recorded(
    workers: Workers, profiled: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record would lack what it has read from there."""
    assert first_starts.LATEST_S + 5.0 <= startup_feed.START_S - 5.0
    monkeypatch.setattr(startup_feed, "START_S", 0.0)
    second = workers.new()
    second.adopt()
    second.copy.write_bytes(profiled.copy.read_bytes())
    second.publish(BUILD, BUILD_RECORD)
    await second.start_build()
    assert second.agent is not None
    while (await second.agent.counters())["starting_images"]:
        await asyncio.sleep(0)
    directory = second.directory_of(BUILD_RECORD)
    await second.importer.starts.record(BUILD_RECORD, directory)
    assert (
        not (directory / PROFILE).exists()
        and second.catalog.profile(second.catalog.open(BUILD_RECORD.stored_name)) is None
    )
