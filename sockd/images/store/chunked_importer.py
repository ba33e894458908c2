"""An importer that keeps images as encrypted chunks in the chunk store, and serves them through the agent.

With the copies next to an image's record (`kept_copies`) a start needs no request to the store but for chunks that no cache has;
with a warm cache an image starts while the store is down. A start without startup data of its own records a profile; it uses one
that is derived from another build's (`derived_profile`). An image that the store has already, of this tenant, is not fetched from
its registry, unless its chunks are damaged (`ImageUpload`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from sockd.base.blocking import in_thread
from sockd.base.errors import SockdError, StorageFull, StoreUnavailable, Tampered
from sockd.base.notes import Progress
from sockd.images.chunks.manifest import Manifest
from sockd.images.registry.reference import Reference
from sockd.images.store.first_starts import BackgroundTasks, FirstStarts
from sockd.images.store.full_disk import is_full, storage_full
from sockd.images.store.image_record import ImageRecord
from sockd.images.store.image_upload import ImageHeader, ImageUpload
from sockd.images.store.import_runs import FILE, Compile, ImportRuns
from sockd.images.store.kept_copies import forget_profile, keep_manifest, renewed
from sockd.images.store.opened_store import ChunkParts, ImageRecords, OpenedStore, adopted
from sockd.images.store.served_images import ServedImages, StartAgent, with_remedy
from sockd.images.store.start_profiles import StartProfiles
from sockd.images.store.store_waits import StoreWaits

_log = logging.getLogger(__name__)


class ChunkedImporter:
    """An `Importer`. `prepare`, or the first import, opens the store and starts the agent: a worker without images has neither.

    Owns the agent, the store and the import processes; `aclose` after the images are unmounted."""

    def __init__(
        self,
        images: Path,
        open_parts: Callable[[], ChunkParts],
        start_agent: StartAgent,
        runs: ImportRuns,
        *,
        keeps_ready: bool = True,
        profile_bytes: int = 0,
        cache: Path | None = None,
        stall_s: float = 2.5,
    ) -> None:
        """Args:
        images: the directory of `ImageStore`.
        open_parts: blocks. Raises: SockdError.
        keeps_ready: whether, from the first import on, a process waits for the next.
        profile_bytes: of an image's startup data, at most; 0: none is recorded, and none of a profile that has it is used.
        cache: the file of L1, which may take the disk that imports need.
        stall_s: how long a start waits for a store that sends nothing."""
        self._cache = cache
        self._runs = runs
        self._keeps_ready = keeps_ready
        self._profile_bytes = profile_bytes
        self._stall_s = stall_s
        self._waits = StoreWaits(stall_s)
        self._tasks = BackgroundTasks()
        """Profiles that are recorded, and the agent's start during an import."""
        self.store = OpenedStore(images, open_parts, self._waits)
        self.served = ServedImages(start_agent)
        self.starts = FirstStarts(self.store, self.served, self._tasks, most_bytes=profile_bytes)
        self._profiles = StartProfiles(self.store, self._waits)
        self.served.refused.append(self._forget_profile)

    def import_for(self, records: ImageRecords) -> None:
        """Import images for these records; called before the first import."""
        self.store.use_records(records)
        self.served.lost.append(records.lose_mount)

    def compile_with(self, compile_sources: Compile) -> None:
        """Have imports compile what has no bytecode; called before the first."""
        self._runs.compile = compile_sources

    async def check_store(self) -> None:
        opened = await self.store.open()

        async def check() -> None:
            parts = await self.store.parts()
            await in_thread(parts.catalog.check)

        await self._waits.answer(opened.store, check)

    async def prepare(self) -> None:
        _, _, agent = await asyncio.gather(self.store.parts(), self._runs.ready(), self.served.started())
        await agent.ready()

    async def import_image(self, reference: str, directory: Path, progress: Progress, *, path: str = "") -> ImageRecord:
        parsed = Reference.parse(reference)
        if self.served.agent is None:
            self._tasks.begin(self.served.start_early())
        loop = asyncio.get_running_loop()
        upload = await self._new_upload(lambda text: loop.call_soon_threadsafe(progress, text))
        try:
            imported = await self._runs.run(
                parsed, directory, progress, path=path, is_wanted=lambda digest: in_thread(upload.begin, digest)
            )
            if imported is not None:
                progress("storing chunks")
                await in_thread(upload.publish, imported, directory / FILE)
            else:
                progress(f"{upload.image[:19]} is here already")
        except BaseException as error:
            await self._abandon(upload, error)
            if is_full(error):
                raise await in_thread(self.storage_full) from error
            raise
        finally:
            if self._keeps_ready:
                self._runs.keep_ready_later()
        self.served.doubted.discard(upload.image)
        return await in_thread(upload.record, str(parsed), directory)

    async def adopt(self, record: ImageRecord, directory: Path) -> bool:
        parts = await self.store.parts()
        manifest = await in_thread(adopted, parts.catalog, record.stored_name)
        if manifest is not None:
            await in_thread(keep_manifest, parts.catalog, manifest, directory)
        return manifest is not None

    def storage_full(self) -> StorageFull:
        return storage_full(self._cache)

    async def renew(self, record: ImageRecord, directory: Path, imported: Path) -> None:
        parts = await self.store.parts()
        manifest = await in_thread(renewed, parts.catalog, record, directory, imported)
        if manifest is not None:
            _log.info("image %s is read from the root %s from now on", record.digest[:19], manifest.root)
            await self.served.switch(manifest)

    async def open(self, record: ImageRecord, directory: Path) -> str:
        parts = await self.store.open()
        with contextlib.ExitStack() as stack:
            try:
                manifest = await self.store.manifest(record, directory)
            except Tampered as error:
                raise with_remedy(error, record.digest) from error
            profile = own = await self._profiles.own(parts, manifest, directory, stack)
            header = msgspec.json.decode(manifest.header, type=ImageHeader)
            agent = await self.served.started()
            if own is None and not agent.why_whole:
                profile = await self._profiles.derived(parts, record, manifest, stack)
            if profile is not None and not self._profile_bytes:
                profile = replace(profile, segments=None)
            served = await self.served.open(record, manifest, profile, metadata_chunks=header.metadata_chunks)
        is_complete = own is not None and (own.segments is not None or not self._profile_bytes)
        if not is_complete:
            self.starts.watch(record, directory)
        return served

    def used(self) -> None:
        self.served.look()

    def failure_since(self, record: ImageRecord, begun_ns: int) -> SockdError | None:
        return self.served.failure_since(record, begun_ns)

    async def settled(self) -> None:
        await self.served.settled()

    async def close(self, record: ImageRecord) -> None:
        await self.served.close(record)

    async def remove(self, record: ImageRecord) -> None:
        parts = await self.store.parts()
        await in_thread(parts.catalog.remove, record.stored_name)

    async def aclose(self) -> None:
        self.starts.close()
        await self._tasks.wait(self._stall_s)
        await self._runs.aclose()
        await self.served.aclose()
        self.store.close()
        await self._tasks.aclose()
        await self._waits.aclose()
        self._profiles.close()

    # -- for `ImageGarbage` and statistics

    async def follow(self) -> list[str]:
        """Read images from the root that the garbage collector has copied them to. Raises: SockdError."""
        parts = await self.store.parts()
        loop = asyncio.get_running_loop()

        def switch(manifest: Manifest) -> None:
            asyncio.run_coroutine_threadsafe(self.served.switch(manifest), loop).result()
            self.store.keep(parts.catalog, manifest)

        return await in_thread(parts.catalog.follow, switch)

    async def counters(self) -> dict[str, float]:
        """The agent's; nothing while no image has been started. Raises: ImageUnavailable."""
        return await self.served.counters()

    async def chunk_names(self, record: ImageRecord) -> frozenset[bytes]:
        """The chunks of an image, each once; what two images share has one name. Raises: ChunkStoreFailed."""
        manifest = await self.store.manifest(record, self.store.images / record.hex)
        return frozenset(chunk.name for chunk in manifest.chunks if chunk is not None)

    async def _abandon(self, upload: ImageUpload, error: BaseException) -> None:
        if not isinstance(error, StoreUnavailable | asyncio.CancelledError):
            await in_thread(upload.abandon)
            return

        async def abandon() -> None:  # its caller does not wait for such a store once more
            try:
                await in_thread(upload.abandon)
            except SockdError as again:
                _log.warning("the reference of an upload stays until the worker's next start: %s", again.message)

        self._tasks.begin(abandon())

    async def _new_upload(self, progress: Callable[[str], object]) -> ImageUpload:
        parts = await self.store.parts()
        return ImageUpload(parts.store, parts.catalog, self.store.known(), self.served.doubted, progress)

    def _forget_profile(self, image: str) -> None:
        self._tasks.begin(in_thread(forget_profile, self.store.directory_of(image)))
