"""Startup profiles of a worker's images: kept, found by other workers, and refused when they are not of these bytes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import resource
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sockd.agent_keeper import agent_link, image_agent
from sockd.agent_keeper.agent_link import AgentSettings
from sockd.agent_keeper.image_agent import ImageAgent
from sockd.chunk_agent.agent_wire import SourceSettings
from sockd.chunks.catalog import Catalog
from sockd.chunks.chunk import CHUNK_BYTES
from sockd.chunks.directory_store import DirectoryStore
from sockd.chunks.image_keys import ImageKeys
from sockd.chunks.manifest import Manifest
from sockd.chunks.store_settings import StoreSettings
from sockd.chunks.upload import upload
from sockd.confined.confined_process import Ground
from sockd.image_store import chunked_importer, kept_copies
from sockd.image_store.chunked_importer import ChunkedImporter, ChunkParts
from sockd.image_store.image_record import ImageRecord
from sockd.image_store.image_upload import ImageHeader, ImageUpload
from sockd.image_store.import_runs import ImportRuns, ImportSettings
from sockd.image_store.kept_copies import PROFILE, copy_of, kept_manifest, stored_profile
from sockd.oci.image import ImageConfig
from sockd.oci.limits import Limits
from sockd.plain.errors import SockdError
from sockd.startup_profiles.profile import Profile, seal_profile
from tests.support.chunked_images import chunk_path, digest_of, flip_bit, random_image, read_at
from tests.support.ground import ground_at
from tests.support.own_descriptors import descriptors
from tests.support.startup_profiles import unsealed, whole

CHUNKS = 20
IMAGE = random_image(CHUNKS)
DIGEST = "sha256:" + 64 * "7"
RECORD = ImageRecord(
    digest=DIGEST, reference="test/image:1", config=ImageConfig(), size_bytes=len(IMAGE), layers=1, imported_at=0.0
)
BUILD = b"\1" + IMAGE[1 : 8 * CHUNK_BYTES] + random.Random(9).randbytes(2 * CHUNK_BYTES) + IMAGE[8 * CHUNK_BYTES :]
"""The next build: its first chunk was changed, and from chunk 8 on there is something else before what IMAGE has."""
BUILD_RECORD = msgspec.structs.replace(
    RECORD, digest="sha256:" + 64 * "8", reference="test/image:2", size_bytes=len(BUILD), imported_at=1.0
)
UID = 0x0FFFFE00
SECRET = bytes(range(32))
READS = (0, 5, 11, 12)
"""Chunks that a start reads 4 KiB of."""
BUILD_READS = (0, 5, 13, 14)
"""Those that a start of BUILD reads: the same files."""

Trouble = Callable[[str, SockdError], None]

pytestmark = [pytest.mark.root, pytest.mark.anyio]


class Worker:
    """One that shares a chunk store with others. It has a cache of its own, and no functions."""

    def __init__(self, name: str, tmp_path: Path, ground: Ground, profile_mb: int, stall_s: float) -> None:
        self._state = tmp_path / name
        self._store_path = tmp_path / "store"
        self.directory = self._state / "images" / RECORD.hex
        self.directory.mkdir(parents=True)
        self._ground = ground
        self.store = store = DirectoryStore.create(self._store_path)
        self.catalog = Catalog(store, ImageKeys(SECRET), worker=name)
        self.agent: ImageAgent | None = None
        runs = ImportRuns(
            ImportSettings(uid=UID - 1, limits=Limits(max_bytes=1, max_layers=1, max_files=1), deadline_s=1.0),
            self._state / "tmp",
            ground.take_cgroup,
            ground.give_back_cgroup,
        )
        self.importer = ChunkedImporter(
            self._state / "images",
            lambda: ChunkParts(store, self.catalog),
            self._start_agent,
            runs,
            profile_bytes=profile_mb << 20,
            stall_s=stall_s,
        )
        self.importer.records = lambda: [RECORD, BUILD_RECORD]

    async def _start_agent(self, on_trouble: Trouble, on_refused: Callable[[str], None]) -> ImageAgent:
        source = SourceSettings(store=StoreSettings(url=str(self._store_path)), l1_bytes=64 << 20)
        settings = AgentSettings(uid=UID, source=source, standby=False)
        self.agent = await ImageAgent.start(self._ground, settings, self._state / "agent", on_trouble, on_refused)
        return self.agent

    def publish(self, data: bytes, record: ImageRecord = RECORD) -> Manifest:
        """Have an image, with these bytes, in the store and here."""
        target = self.catalog.begin(record.stored_name)
        pieces = (data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES))
        done = upload(pieces, self.store, root=target.root, salt=target.salt)
        header = ImageHeader(config=ImageConfig(), layers=1, notes=(), metadata_chunks=1)
        manifest = self.catalog.publish(target, done.chunks, done.size_bytes, msgspec.json.encode(header))
        self._keep(manifest, record)
        return manifest

    def adopt(self, record: ImageRecord = RECORD) -> Manifest:
        """Have an image that another worker has published."""
        target = self.catalog.begin(record.stored_name)
        manifest = self.catalog.existing(target)
        assert manifest is not None
        self.catalog.adopt(target)
        self._keep(manifest, record)
        return manifest

    def _keep(self, manifest: Manifest, record: ImageRecord) -> None:
        self.directory_of(record).mkdir(exist_ok=True)
        (self.directory_of(record) / "manifest").write_bytes(copy_of(self.catalog, manifest))

    def directory_of(self, record: ImageRecord) -> Path:
        return self.directory.parent / record.hex

    async def upload(self, known: set[str], progress: Callable[[str], None] = lambda text: None) -> ImageUpload:
        """Args: known: stored names of the worker's images."""
        parts = await self.importer.parts()
        return ImageUpload(parts.store, parts.catalog, known, progress=progress)

    async def start(self, data: bytes = IMAGE) -> dict[str, float]:
        """Open the image and read what a start reads. Returns: the agent's counters."""
        path = await self.importer.open(RECORD, self.directory)
        await read(path, data, READS)
        assert self.agent is not None
        return await self.agent.counters()

    async def start_build(self) -> dict[str, float]:
        """As `start`: the next build."""
        path = await self.importer.open(BUILD_RECORD, self.directory_of(BUILD_RECORD))
        await read(path, BUILD, BUILD_READS)
        assert self.agent is not None
        return await self.agent.counters()

    async def check(self, data: bytes = IMAGE) -> None:
        """That the whole image is right."""
        path = await self.importer.open(RECORD, self.directory)
        assert await asyncio.to_thread(digest_of, path) == hashlib.sha256(data).hexdigest()
        await self.importer.close(RECORD)

    async def record(self) -> None:
        """What a timer does."""
        await self.importer.record_profile(RECORD, self.directory)

    def stored(self) -> bytes | None:
        return self.catalog.profile(self.catalog.open(RECORD.stored_name))

    @property
    def copy(self) -> Path:
        return self.directory / PROFILE


async def read(path: str, data: bytes, chunks: tuple[int, ...]) -> None:
    """What a start reads of these chunks, which is right."""
    for number in chunks:
        at = number * CHUNK_BYTES + 8192
        assert await asyncio.to_thread(read_at, path, at, 4096) == data[at : at + 4096]


class Workers:
    """Those of a test."""

    def __init__(self, tmp_path: Path, ground: Ground, stack: AsyncExitStack) -> None:
        self._tmp_path = tmp_path
        self._ground = ground
        self._stack = stack
        self._names: Iterator[str] = (f"w{number}" for number in range(99))

    def new(self, profile_mb: int = 32, stall_s: float = 2.5) -> Worker:
        worker = Worker(next(self._names), self._tmp_path, self._ground, profile_mb, stall_s)
        self._stack.push_async_callback(worker.importer.aclose)
        return worker


@pytest.fixture
async def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Workers]:
    """Their starts are recorded by `record` alone, however long a test takes."""
    monkeypatch.setattr(chunked_importer, "QUIET_S", 600.0)
    async with ground_at(tmp_path / "ground", agent_link.places()) as ground, AsyncExitStack() as stack:
        yield Workers(tmp_path, ground, stack)


@pytest.fixture
async def profiled(workers: Workers) -> Worker:
    """A worker after the first start of the image."""
    first = workers.new()
    first.publish(IMAGE)
    counters = await first.start()
    assert counters["origin_chunks"] >= len(READS) - 1
    await first.record()
    return first


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


async def test_startup_data_that_was_changed_on_the_disk_is_not_read_and_the_copy_is_replaced_at_the_next_start(
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
    await second.importer.parts()
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
    monkeypatch.setattr(chunked_importer, place, held)
    await second.importer.parts()
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
    monkeypatch.setattr(chunked_importer, "stored_profile", held)
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
    monkeypatch.setattr(chunked_importer, "stored_profile", held)
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
    key = first.catalog.tenant_key
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
    found = whole(unsealed(first.copy.read_bytes(), manifest, first.catalog.tenant_key))
    assert 1 << 19 <= len(found.data) <= 1 << 20 and len(found.order) == CHUNKS
    second = workers.new(profile_mb=1)
    second.adopt()
    await second.start()
    await second.check()


async def test_a_profile_that_somebody_sealed_for_another_image_is_refused(workers: Workers, profiled: Worker) -> None:
    manifest = profiled.catalog.open(RECORD.stored_name)
    other = Manifest("sha256:other-2", manifest.size_bytes, manifest.root, manifest.chunks)
    sealed = seal_profile(other, Profile(READS, b"data"), profiled.catalog.tenant_key)
    profiled.catalog.set_profile(RECORD.stored_name, sealed)
    second = workers.new()
    second.adopt()
    assert (await second.start()).get("startup_reads", 0) == 0


async def test_an_image_that_is_here_keeps_the_form_of_its_file_system(workers: Workers) -> None:
    worker = workers.new()
    worker.publish(IMAGE)
    again = await worker.upload({RECORD.stored_name})
    assert not again.begin(DIGEST), "the store has it in that form"
    assert again.record(RECORD.reference, worker.directory).stored_name == RECORD.stored_name
    new = await worker.upload(set())
    assert new.begin(DIGEST), "the store does not have it in today's form"
    new.abandon()


async def test_an_image_with_a_damaged_chunk_is_not_here_already(workers: Workers, tmp_path: Path) -> None:
    worker = workers.new()
    manifest = worker.publish(IMAGE)
    told: list[str] = []
    flip_bit(chunk_path(tmp_path / "store", manifest.chunks[CHUNKS - 1], manifest.root), 1000)  # which no start reads
    deploy = await worker.upload({RECORD.stored_name}, told.append)
    assert deploy.begin(DIGEST)
    assert "1 of its chunks" in told[-1]
    deploy.abandon()
    assert (await worker.start())["origin_chunks"], "the worker holds the image as before"
    worker.publish(IMAGE)
    assert not (await worker.upload({RECORD.stored_name})).begin(DIGEST)


async def test_an_image_that_was_imported_again_is_read_from_its_new_chunks(workers: Workers, tmp_path: Path) -> None:
    """They may be in the root that has the image already, as other bytecode is other bytes."""
    worker = workers.new()
    changed = IMAGE[:-1] + bytes([IMAGE[-1] ^ 1])
    worker.publish(changed)
    imported = tmp_path / "imported"
    shutil.copytree(worker.directory, imported)
    worker.publish(IMAGE)
    await worker.importer.renew(RECORD, worker.directory, imported)
    await worker.check(changed)


async def test_a_deploy_of_an_image_that_the_store_has_brings_all_that_a_start_asks_the_store(
    workers: Workers, profiled: Worker, tmp_path: Path
) -> None:
    second = workers.new()
    deploy = await second.upload({RECORD.stored_name})
    assert not deploy.begin(DIGEST)
    deploy.record(RECORD.reference, second.directory)
    for kind in ("manifests", "profiles"):
        shutil.rmtree(tmp_path / "store" / "objects" / kind)
    counters = await second.start()
    assert counters["origin_chunks"] == 0 and counters["startup_reads"] == len(READS)


async def test_a_start_is_recorded_when_it_uses_no_further_chunks(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_importer, "QUIET_S", 0.0)
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


async def recorded_build(worker: Worker) -> Profile:
    """What is kept of a start of the next build, in the store, too."""
    directory = worker.directory_of(BUILD_RECORD)
    await worker.importer.record_profile(BUILD_RECORD, directory)
    sealed = (directory / PROFILE).read_bytes()
    assert worker.catalog.profile(worker.catalog.open(BUILD_RECORD.stored_name)) == sealed
    manifest = worker.catalog.open(BUILD_RECORD.stored_name)
    return whole(unsealed(sealed, manifest, worker.catalog.tenant_key))


async def test_the_first_start_of_a_new_build_fetches_the_chunks_that_were_changed_and_is_recorded(
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
    elsewhere.importer.records = lambda: [BUILD_RECORD]
    elsewhere.publish(BUILD, BUILD_RECORD)
    elsewhere.catalog.set_profile(BUILD_RECORD.stored_name, b"none")
    counters = await elsewhere.start_build()
    assert counters.get("startup_reads", 0) == 0 and counters["origin_chunks"] >= len(BUILD_READS)
    assert await recorded_build(elsewhere) == found, "as of a start without any profile"


async def test_a_new_build_is_served_whole_while_it_starts_from_the_profile_of_the_build_before(
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


async def test_startup_data_of_the_build_before_that_was_changed_on_the_disk_is_not_read_and_its_copy_removed(
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
    assert chunked_importer.LATEST_S + 5.0 <= image_agent.START_S - 5.0
    monkeypatch.setattr(image_agent, "START_S", 0.0)
    second = workers.new()
    second.adopt()
    second.copy.write_bytes(profiled.copy.read_bytes())
    second.publish(BUILD, BUILD_RECORD)
    await second.start_build()
    assert second.agent is not None
    while (await second.agent.counters())["starting_images"]:
        await asyncio.sleep(0)
    directory = second.directory_of(BUILD_RECORD)
    await second.importer.record_profile(BUILD_RECORD, directory)
    assert (
        not (directory / PROFILE).exists()
        and second.catalog.profile(second.catalog.open(BUILD_RECORD.stored_name)) is None
    )
