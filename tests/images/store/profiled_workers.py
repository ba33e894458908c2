"""Workers that share a chunk store, two builds of an image, and what their starts read."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from sockd.base.errors import ImageUnavailable, SockdError
from sockd.images.agent.agent_wire import SourceSettings
from sockd.images.agent_keeper.agent_link import AgentSettings
from sockd.images.agent_keeper.image_agent import ImageAgent
from sockd.images.chunks.catalog import Catalog
from sockd.images.chunks.chunk import CHUNK_BYTES
from sockd.images.chunks.directory_store import DirectoryStore
from sockd.images.chunks.image_keys import ImageKeys
from sockd.images.chunks.manifest import Manifest
from sockd.images.chunks.store_settings import StoreSettings
from sockd.images.chunks.upload import upload
from sockd.images.registry.image import ImageConfig
from sockd.images.registry.limits import Limits
from sockd.images.store.chunked_importer import ChunkedImporter
from sockd.images.store.image_record import ImageRecord
from sockd.images.store.image_upload import ImageHeader, ImageUpload
from sockd.images.store.import_runs import ImportRuns, ImportSettings
from sockd.images.store.kept_copies import PROFILE, copy_of
from sockd.images.store.opened_store import ChunkParts
from sockd.linux.confined.confined_process import Jail
from tests.support.images.chunked_images import digest_of, random_image, read_at

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
"""The chunks that a start of BUILD reads: the same files."""

Trouble = Callable[[str, SockdError], None]


class Records:
    """The records of a worker's images, which an importer asks for."""

    def __init__(self, records: Sequence[ImageRecord]) -> None:
        self._records = records

    def all(self) -> Sequence[ImageRecord]:
        return self._records

    def lose_mount(self, digest: str, error: ImageUnavailable) -> None:
        raise AssertionError(f"the mount of {digest} was lost: {error.message}")


class Worker:
    """One that shares a chunk store with others. It has a cache of its own, and no functions."""

    def __init__(self, name: str, tmp_path: Path, jail: Jail, profile_mb: int, stall_s: float) -> None:
        self._state = tmp_path / name
        self._store_path = tmp_path / "store"
        self.directory = self._state / "images" / RECORD.hex
        self.directory.mkdir(parents=True)
        self._jail = jail
        self.store = store = DirectoryStore.create(self._store_path)
        self.catalog = Catalog(store, ImageKeys(SECRET), worker=name)
        self.agent: ImageAgent | None = None
        runs = ImportRuns(
            ImportSettings(uid=UID - 1, limits=Limits(max_bytes=1, max_layers=1, max_files=1), deadline_s=1.0),
            self._state / "tmp",
            jail.take_cgroup,
            jail.give_back_cgroup,
        )
        self.importer = ChunkedImporter(
            self._state / "images",
            lambda: ChunkParts(store, self.catalog),
            self._start_agent,
            runs,
            profile_bytes=profile_mb << 20,
            stall_s=stall_s,
        )
        self.importer.import_for(Records([RECORD, BUILD_RECORD]))

    async def _start_agent(self, on_trouble: Trouble, on_refused: Callable[[str], None]) -> ImageAgent:
        source = SourceSettings(store=StoreSettings(url=str(self._store_path)), l1_bytes=64 << 20)
        settings = AgentSettings(uid=UID, source=source, standby=False)
        self.agent = await ImageAgent.start(self._jail, settings, self._state / "agent", on_trouble, on_refused)
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
        parts = await self.importer.store.parts()
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
        await self.importer.starts.record(RECORD, self.directory)

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
    """The workers of a test."""

    def __init__(self, tmp_path: Path, jail: Jail, stack: AsyncExitStack) -> None:
        self._tmp_path = tmp_path
        self._jail = jail
        self._stack = stack
        self._names: Iterator[str] = (f"w{number}" for number in range(99))

    def new(self, profile_mb: int = 32, stall_s: float = 2.5) -> Worker:
        worker = Worker(next(self._names), self._tmp_path, self._jail, profile_mb, stall_s)
        self._stack.push_async_callback(worker.importer.aclose)
        return worker
