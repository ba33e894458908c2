"""Startup profiles of a worker's images: kept, found by other workers, and refused when they are not of these bytes."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import resource
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sockd.images.agent_keeper.image_agent import ImageAgent
from sockd.images.chunks.directory_store import DirectoryStore
from sockd.images.chunks.manifest import Manifest
from sockd.images.profiles.profile import Profile, seal_profile
from sockd.images.store import first_starts, kept_copies, start_profiles
from sockd.images.store.kept_copies import kept_manifest, stored_profile
from tests.images.store.profiled_workers import (
    CHUNKS,
    IMAGE,
    READS,
    RECORD,
    Worker,
    Workers,
)
from tests.support.images.chunked_images import flip_bit
from tests.support.images.startup_profiles import unsealed, whole
from tests.support.own_descriptors import descriptors

pytestmark = [pytest.mark.root, pytest.mark.anyio]


async def test_a_second_worker_starts_from_the_profile_without_chunks(workers: Workers, profiled: Worker) -> None:
    second = workers.new()
    second.adopt()
    counters = await second.start()
    assert counters["origin_chunks"] == 0 and counters["startup_reads"] == len(READS)
    assert second.copy.read_bytes() == second.stored() == profiled.copy.read_bytes()
    await second.check()


async def test_a_worker_that_was_started_again_needs_neither_store_nor_cache_for_a_start(
    workers: Workers, profiled: Worker, tmp_path: Path
) -> None:
    second = workers.new()
    second.adopt()
    await second.start()
    again = workers.new()
    shutil.copytree(second.directory, again.directory, dirs_exist_ok=True)
    again.adopt()
    shutil.rmtree(tmp_path / "store" / "objects" / "profiles")
    assert (await again.start())["origin_chunks"] == 0


async def test_a_profile_that_was_changed_is_refused_and_the_start_reads_chunks(
    workers: Workers, profiled: Worker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    [stored] = (path for path in (tmp_path / "store" / "objects" / "profiles").rglob("*") if path.is_file())
    sealed, bits = stored.read_bytes(), random.Random(3)
    for part in (
        range(8),
        range(8, 20),
        range(20, 24),
        range(24, 200),
        range(len(sealed) - 10_000, len(sealed) - 16),
        range(len(sealed) - 16, len(sealed)),
    ):
        stored.write_bytes(sealed)
        flip_bit(stored, 8 * bits.choice(part) + bits.randrange(8))
        caplog.clear()
        other = workers.new()
        other.adopt()
        counters = await other.start()
        assert counters.get("startup_reads", 0) == 0 and counters["origin_chunks"] >= len(READS) - 1
        assert "is not used" in caplog.text and not other.copy.exists()
        await other.check()


async def test_a_copy_that_was_changed_is_replaced_by_the_store_s(workers: Workers, profiled: Worker) -> None:
    second = workers.new()
    second.adopt()
    second.copy.write_bytes(profiled.copy.read_bytes())
    flip_bit(second.copy, 300)
    assert (await second.start())["startup_reads"] == len(READS)
    assert second.copy.read_bytes() == profiled.copy.read_bytes()


async def test_startup_data_changed_on_the_disk_is_not_read_and_replaced_at_the_next_start(
    workers: Workers, profiled: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    second = workers.new()
    second.adopt()
    second.copy.write_bytes(profiled.copy.read_bytes())
    flip_bit(second.copy, 8 * (second.copy.stat().st_size - 5000))
    counters = await second.start()
    assert counters.get("startup_reads", 0) == 0 and counters["origin_chunks"] >= len(READS) - 1
    assert "is not used" in caplog.text and not [each for each in caplog.records if each.levelno >= logging.ERROR]
    while second.copy.exists():
        await asyncio.sleep(0)
    third = workers.new()
    shutil.copytree(second.directory, third.directory, dirs_exist_ok=True)
    third.adopt()
    assert (await third.start())["startup_reads"] == len(READS)
    assert third.copy.read_bytes() == profiled.copy.read_bytes()


async def test_a_copy_that_cannot_be_read_is_replaced_by_the_store_s(
    workers: Workers, profiled: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    second = workers.new()
    second.adopt()
    second.copy.symlink_to("/proc/self/mem")  # whose address 0 is EIO
    assert (await second.start())["startup_reads"] == len(READS)
    assert "is not used: [Errno 5]" in caplog.text
    assert second.copy.read_bytes() == profiled.copy.read_bytes()


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir], ids=["fifo", "directory"])
@pytest.mark.parametrize("name", ["manifest", "profile"])
async def test_an_image_starts_where_a_copy_is_something_else(
    workers: Workers, profiled: Worker, name: str, put: Callable[[Path], None]
) -> None:
    second = workers.new()
    second.adopt()
    (second.directory / name).unlink(missing_ok=True)
    put(second.directory / name)
    assert (await second.start())["startup_reads"] == len(READS)


async def test_an_image_opens_without_its_profile_when_there_is_no_memory_for_it(
    workers: Workers, profiled: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    second = workers.new()
    manifest = second.adopt()
    await second.importer.store.parts()
    before, limits = descriptors(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # of files in memory, too
    try:
        assert kept_manifest(second.catalog, RECORD, second.directory) == manifest
        assert stored_profile(second.catalog, manifest, second.directory) is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "is not used: [Errno 27]" in caplog.text and descriptors() == before


class Held:
    """A function that waits, before or after its work, until it may go on."""

    def __init__(self, function: Callable[..., Any], *, before: bool) -> None:
        self._function = function
        self._before = before
        self.called, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *args: Any) -> Any:
        result = None if self._before else self._function(*args)
        self.called.set()
        assert self.go_on.wait(60)
        return self._function(*args) if self._before else result


@pytest.mark.parametrize("place", ["kept_profile", "stored_profile"])
async def test_a_start_that_is_cancelled_while_its_profile_is_read_keeps_no_descriptor(
    workers: Workers, profiled: Worker, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    second = workers.new()
    second.adopt()
    if place == "kept_profile":
        second.copy.write_bytes(profiled.copy.read_bytes())
    held = Held(getattr(kept_copies, place), before=False)
    monkeypatch.setattr(start_profiles, place, held)
    await second.importer.store.parts()
    before = descriptors()
    opening = asyncio.ensure_future(second.importer.open(RECORD, second.directory))
    await asyncio.to_thread(held.called.wait)
    assert descriptors() != before
    opening.cancel()
    held.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    while descriptors() != before:
        await asyncio.sleep(0)


async def test_a_silent_store_is_waited_for_once_and_the_start_goes_on_without_a_profile(
    workers: Workers, profiled: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    second = workers.new()
    second.adopt()
    held = Held(stored_profile, before=True)
    monkeypatch.setattr(start_profiles, "stored_profile", held)
    monkeypatch.setattr(DirectoryStore, "heard_s", 0.0)
    assert (await second.start()).get("startup_reads", 0) == 0
    assert "starts without a startup profile" in caplog.text
    await second.importer.close(RECORD)
    held.called.clear()
    assert (await second.start()).get("startup_reads", 0) == 0
    assert not held.called.is_set(), "it is not asked again before it has answered"
    await second.importer.close(RECORD)
    held.go_on.set()
    while not (await second.start()).get("startup_reads"):
        await second.importer.close(RECORD)


async def test_a_store_that_sends_is_waited_for(
    workers: Workers, profiled: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = workers.new(stall_s=0.001)
    second.adopt()
    held = Held(stored_profile, before=True)
    monkeypatch.setattr(start_profiles, "stored_profile", held)
    starting = asyncio.ensure_future(second.start())
    until_s = time.monotonic() + 0.1
    while time.monotonic() < until_s:
        await asyncio.sleep(0)
    held.go_on.set()
    assert (await starting)["startup_reads"] == len(READS)


async def test_a_profile_of_the_image_s_bytes_before_is_refused_and_recorded_anew(
    workers: Workers, profiled: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """An image that was imported again, with other bytecode, has the same name."""
    changed = IMAGE[:-1] + bytes([IMAGE[-1] ^ 1])
    second = workers.new()
    second.publish(changed)
    second.copy.write_bytes(profiled.copy.read_bytes())
    counters = await second.start(changed)
    assert counters.get("startup_reads", 0) == 0 and "is not used" in caplog.text
    await second.record()
    third = workers.new()
    third.adopt()
    assert (await third.start(changed))["startup_reads"] == len(READS)
    await third.check(changed)


async def test_a_profile_without_data_is_replaced_by_one_with_data(workers: Workers) -> None:
    first = workers.new(profile_mb=0)
    manifest = first.publish(IMAGE)
    await first.start()
    await first.record()
    key = first.catalog.tenant_images.key
    assert whole(unsealed(first.copy.read_bytes(), manifest, key)) == Profile(READS)
    second = workers.new()
    second.adopt()
    counters = await second.start()
    assert counters.get("startup_reads", 0) == 0
    await second.record()
    found = whole(unsealed(second.copy.read_bytes(), manifest, key))
    assert found.order == READS and found.data


async def test_startup_data_that_is_stored_is_not_used_without_the_setting(workers: Workers, profiled: Worker) -> None:
    second = workers.new(profile_mb=0)
    second.adopt()
    counters = await second.start()
    assert counters.get("startup_reads", 0) == 0 and counters["origin_chunks"] >= len(READS) - 1
    assert second.copy.read_bytes() == profiled.copy.read_bytes()


async def test_startup_data_is_bounded_by_the_setting(workers: Workers) -> None:
    first = workers.new(profile_mb=1)
    manifest = first.publish(IMAGE)
    await first.start()
    await first.check()  # 10 MB of noise were read
    await first.record()
    found = whole(unsealed(first.copy.read_bytes(), manifest, first.catalog.tenant_images.key))
    assert 1 << 19 <= len(found.data) <= 1 << 20 and len(found.order) == CHUNKS
    second = workers.new(profile_mb=1)
    second.adopt()
    await second.start()
    await second.check()


async def test_a_profile_that_somebody_sealed_for_another_image_is_refused(workers: Workers, profiled: Worker) -> None:
    manifest = profiled.catalog.open(RECORD.stored_name)
    other = Manifest("sha256:other-2", manifest.size_bytes, manifest.root, manifest.chunks)
    sealed = seal_profile(other, Profile(READS, b"data"), profiled.catalog.tenant_images.key)
    profiled.catalog.set_profile(RECORD.stored_name, sealed)
    second = workers.new()
    second.adopt()
    assert (await second.start()).get("startup_reads", 0) == 0


async def test_a_start_is_recorded_when_it_uses_no_further_chunks(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_starts, "QUIET_S", 0.0)
    worker = workers.new()
    worker.publish(IMAGE)
    has_read = asyncio.Event()
    looks = [0, 0, 3, 5, 5]
    seen: list[int] = []

    async def used(agent: ImageAgent, image: str) -> int:
        assert worker.stored() is None
        await has_read.wait()
        seen.append(looks[len(seen)])
        return seen[-1]

    monkeypatch.setattr(ImageAgent, "used", used)
    await worker.start()
    has_read.set()
    while worker.stored() is None:
        await asyncio.sleep(0)
    assert seen == looks
