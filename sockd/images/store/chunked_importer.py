"""An importer that keeps images as encrypted chunks in the chunk store, and serves them through the agent.

With the copies beside an image's record (`kept_copies`) a start needs no request to the store but for chunks that no cache has;
with a warm cache an image starts while the store is down. A start without startup data of its own records a profile; it uses one
that is derived from another build's (`derived_profile`). An image that the store has already, of this tenant, is not fetched from
its registry, unless its chunks are damaged (`ImageUpload`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import msgspec

from sockd.base.blocking import in_thread
from sockd.base.errors import (
    ChunkStoreFailed,
    ImageUnavailable,
    SockdError,
    StorageFull,
    StoreUnavailable,
    Tampered,
)
from sockd.images.agent.agent_wire import REPORT_PERIOD_S, error_of
from sockd.images.agent_keeper.image_agent import ImageAgent
from sockd.images.chunks.catalog import Catalog
from sockd.images.chunks.checking import WRONG
from sockd.images.chunks.manifest import Manifest
from sockd.images.chunks.store import ChunkStore
from sockd.images.profiles.profile import OpenProfile
from sockd.images.registry.reference import Reference
from sockd.images.store.derived_profile import derived_profile
from sockd.images.store.full_disk import is_full, storage_full
from sockd.images.store.image_record import ImageRecord, digest_of
from sockd.images.store.image_upload import ImageHeader, ImageUpload
from sockd.images.store.import_runs import FILE, Compile, ImportRuns
from sockd.images.store.importer import Progress
from sockd.images.store.kept_copies import (
    forget_profile,
    keep_manifest,
    keep_profile,
    kept_manifest,
    kept_profile,
    renewed,
    stored_manifest,
    stored_profile,
)
from sockd.images.store.store_waits import StoreWaits

PROFILE_THREADS = 8
"""Starts that fetch a startup profile from the store at a time; others wait for a thread."""
QUIET_S, LATEST_S = 5.0, 50.0
"""An image's first start on this worker has ended when no chunk was used for so long; or so long after it was opened, which is
before its startup data is dropped (START_S)."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChunkParts:
    """What imports and starts use of one chunk store."""

    store: ChunkStore
    catalog: Catalog


@dataclass(frozen=True, slots=True)
class _Start:
    """The first start of an image, which is under way."""

    record: ImageRecord
    directory: Path
    latest_s: float
    used: int = 0
    """Chunks, when they were counted last."""


class ImageRecords(Protocol):
    """The worker's images, which an importer imports for."""

    def all(self) -> Sequence[ImageRecord]:
        """All images of the worker."""

    def lose_mount(self, digest: str, error: ImageUnavailable) -> None:
        """Called when an image's mount serves nothing any more, with the cause."""


class ChunkedImporter:
    """An `Importer`. `prepare`, or the first import, opens the store and starts the agent: a worker without images has neither.

    Owns the agent, the store and the import processes; `aclose` after the images are unmounted."""

    def __init__(
        self,
        images: Path,
        open_parts: Callable[[], ChunkParts],
        start_agent: Callable[[Callable[[str, SockdError], None], Callable[[str], None]], Awaitable[ImageAgent]],
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
        start_agent: with what it calls when reads of an image have failed, and when its startup data was refused. Raises:
            SockdError, OSError.
        keeps_ready: whether, from the first import on, a process waits for the next.
        profile_bytes: of an image's startup data, at most; 0: none is recorded, and none of a profile that has it is used.
        cache: the file of L1, which may take the disk that imports need.
        stall_s: how long a start waits for a store that sends nothing."""
        self._cache = cache
        self._images = images
        self._open_parts = open_parts
        self._start_agent = start_agent
        self._runs = runs
        self._keeps_ready = keeps_ready
        self._profile_bytes = profile_bytes
        self._waits = StoreWaits(stall_s)
        self._stall_s = stall_s
        self._threads = ThreadPoolExecutor(PROFILE_THREADS, "startup profiles")
        """That wait for the store; those which all share must not."""
        self._parts: ChunkParts | None = None
        self._is_reconciled = False
        self._agent: ImageAgent | None = None
        self._opening, self._reconciling, self._starting = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self._open: dict[str, Manifest] = {}
        """By digest, of images that are served."""
        self._users: Counter[str] = Counter()
        self._failures: dict[str, tuple[int, SockdError]] = {}
        """By digest: when a read failed last, and why."""
        self._doubted: set[str] = set()
        """Stored names of images of which the store did not give a chunk as it was stored, since they were checked last."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._beside: set[asyncio.Task[None]] = set()
        """Profiles that are recorded, and the agent's start beside an import."""
        self._records: ImageRecords | None = None

    def import_for(self, records: ImageRecords) -> None:
        """Import images for these records; called before the first import."""
        self._records = records

    def _all(self) -> Sequence[ImageRecord]:
        return self._records.all() if self._records is not None else ()

    def compile_with(self, compile_sources: Compile) -> None:
        """Have imports compile what has no bytecode; called before the first."""
        self._runs.compile = compile_sources

    # -- Importer

    async def check_store(self) -> None:
        opened = await self._opened()

        async def check() -> None:
            parts = await self.parts()
            await in_thread(parts.catalog.check)

        await self._waits.answer(opened.store, check)

    async def prepare(self) -> None:
        _, _, agent = await asyncio.gather(self.parts(), self._runs.ready(), self._served())
        await agent.ready()

    async def import_image(self, reference: str, directory: Path, progress: Progress, *, path: str = "") -> ImageRecord:
        parsed = Reference.parse(reference)
        if self._agent is None:
            self._do_beside(self._serve_early())
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
        self._doubted.discard(upload.image)
        return await in_thread(upload.record, str(parsed), directory)

    async def _abandon(self, upload: ImageUpload, error: BaseException) -> None:
        if not isinstance(error, StoreUnavailable | asyncio.CancelledError):
            await in_thread(upload.abandon)
            return

        async def abandon() -> None:  # its caller does not wait for such a store once more
            try:
                await in_thread(upload.abandon)
            except SockdError as again:
                _log.warning("the reference of an upload stays until the worker's next start: %s", again.message)

        self._do_beside(abandon())

    def storage_full(self) -> StorageFull:
        return storage_full(self._cache)

    async def renew(self, record: ImageRecord, directory: Path, imported: Path) -> None:
        parts = await self.parts()
        manifest = await in_thread(renewed, parts.catalog, record, directory, imported)
        if manifest is not None:
            _log.info("image %s is read from the root %s from now on", record.digest[:19], manifest.root)
            await self._switch(manifest)

    async def open(self, record: ImageRecord, directory: Path) -> str:
        parts = await self._opened()
        with contextlib.ExitStack() as stack:
            try:
                manifest = await self._manifest(parts, record, directory)
            except Tampered as error:
                raise with_remedy(error, record.digest) from error
            profile = own = await self._profile(parts, manifest, directory, stack)
            header = msgspec.json.decode(manifest.header, type=ImageHeader)
            agent = await self._served()
            if own is None and not agent.why_whole:
                profile = await self._derived(parts, record, manifest, stack)
            if profile is not None and not self._profile_bytes:
                profile = replace(profile, segments=None)
            served = await agent.open(manifest, profile, metadata_chunks=header.metadata_chunks)
        self._open[record.digest] = manifest
        self._users[record.digest] += 1
        is_complete = own is not None and (own.segments is not None or not self._profile_bytes)
        if not is_complete and record.digest not in self._timers:
            self._watch_start(_Start(record, directory, time.monotonic() + LATEST_S))
        return served

    def used(self) -> None:
        if self._agent is not None:
            self._agent.look()

    def failure_since(self, record: ImageRecord, begun_ns: int) -> SockdError | None:
        failed_ns, error = self._failures.get(record.digest, (0, None))
        # The agent is silent for a moment after each report: one from just before may be all that is heard of this failure.
        if error is None or failed_ns + int(REPORT_PERIOD_S * 1e9) < begun_ns:
            return None
        return error.again()

    async def settled(self) -> None:
        if self._agent is not None:
            await self._agent.settled()

    async def close(self, record: ImageRecord) -> None:
        self._users[record.digest] -= 1
        if self._users[record.digest] <= 0:
            self._forget(record.digest)
        if self._agent is not None:
            await self._agent.close(record.stored_name)

    async def remove(self, record: ImageRecord) -> None:
        parts = await self.parts()
        await in_thread(parts.catalog.remove, record.stored_name)

    async def aclose(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        if self._beside:
            await asyncio.wait(self._beside, timeout=self._stall_s)
        await self._runs.aclose()
        if self._agent is not None:
            await self._agent.aclose()
        if self._parts is not None:
            self._parts.store.close()  # ends what still waits for it
        await asyncio.gather(*self._beside, return_exceptions=True)
        await self._waits.aclose()
        self._threads.shutdown()

    # -- for `ImageGarbage` and statistics

    @property
    def is_used(self) -> bool:
        """Whether this daemon has opened the store."""
        return self._parts is not None

    async def parts(self) -> ChunkParts:
        """The store, opened now if need be; references of uploads that died are dropped. Raises: SockdError."""
        parts = await self._opened()
        async with self._reconciling:
            if not self._is_reconciled:
                await in_thread(self._reconcile, parts.catalog, self._known())
                self._is_reconciled = True
        return parts

    async def follow(self) -> list[str]:
        """Read images from the root that the garbage collector has copied them to. Raises: SockdError."""
        parts = await self.parts()
        loop = asyncio.get_running_loop()

        def switch(manifest: Manifest) -> None:
            asyncio.run_coroutine_threadsafe(self._switch(manifest), loop).result()
            self._keep(parts.catalog, manifest)

        return await in_thread(parts.catalog.follow, switch)

    def roots_in_use(self) -> set[str]:
        return {manifest.root for manifest in self._open.values()}

    async def counters(self) -> dict[str, float]:
        """The agent's; nothing while no image has been started. Raises: ImageUnavailable."""
        return await self._agent.counters() if self._agent is not None else {}

    async def chunk_names(self, record: ImageRecord) -> frozenset[bytes]:
        """The chunks of an image, each once; what two images share has one name. Raises: ChunkStoreFailed."""
        manifest = await self._manifest(await self._opened(), record, self._images / record.hex)
        return frozenset(chunk.name for chunk in manifest.chunks if chunk is not None)

    # -- parts

    async def _new_upload(self, progress: Callable[[str], object]) -> ImageUpload:
        parts = await self.parts()
        return ImageUpload(parts.store, parts.catalog, self._known(), self._doubted, progress)

    def _known(self) -> set[str]:
        return {record.stored_name for record in self._all()}

    async def _opened(self) -> ChunkParts:
        """The store, which was asked nothing yet: an image starts from copies and caches while it is down. Raises: SockdError."""
        async with self._opening:
            if self._parts is None:
                self._parts = await in_thread(self._open_parts)
            return self._parts

    def _reconcile(self, catalog: Catalog, known: set[str]) -> None:
        for image in catalog.reconcile(known):
            if (manifest := _adopted(catalog, image)) is not None:
                self._keep(catalog, manifest)
            else:
                _log.warning("the chunk store does not have the image %s; deploy its functions again", image[:19])

    async def _manifest(self, parts: ChunkParts, record: ImageRecord, directory: Path) -> Manifest:
        """Raises: ChunkStoreFailed."""
        kept = await in_thread(kept_manifest, parts.catalog, record, directory)
        if kept is not None:
            return kept

        async def stored() -> Manifest:
            await self.parts()
            return await in_thread(stored_manifest, parts.catalog, record, directory)

        return await self._waits.answer(parts.store, stored)

    async def _profile(
        self, parts: ChunkParts, manifest: Manifest, directory: Path, stack: contextlib.ExitStack
    ) -> OpenProfile | None:
        """The startup profile, which the stack closes, also after a cancellation; None: a start goes on without."""

        def kept() -> OpenProfile | None:
            found = kept_profile(parts.catalog, manifest, directory)
            if found is not None:
                stack.callback(found.close)
            return found

        if (found := await in_thread(kept)) is not None:
            return found

        def stored() -> Awaitable[OpenProfile | None]:
            loop = asyncio.get_running_loop()
            return loop.run_in_executor(self._threads, stored_profile, parts.catalog, manifest, directory)

        try:
            found = await self._waits.answer(parts.store, stored, _close)
        except ChunkStoreFailed as error:
            _log.warning("the image %s starts without a startup profile: %s", manifest.image[:19], error.message)
            return None
        if found is not None:
            stack.callback(found.close)
        return found

    async def _derived(
        self, parts: ChunkParts, record: ImageRecord, manifest: Manifest, stack: contextlib.ExitStack
    ) -> OpenProfile | None:
        """As `_profile`, from that of another image."""
        known = (parts.catalog, record, manifest, self._all(), self._images)

        def kept() -> OpenProfile | None:
            found = derived_profile(*known, asks_store=False)
            if found is not None:
                stack.callback(found.close)
            return found

        def stored() -> Awaitable[OpenProfile | None]:
            derive = functools.partial(derived_profile, *known, asks_store=True)
            return asyncio.get_running_loop().run_in_executor(self._threads, derive)

        try:
            found = await self._waits.answer(parts.store, stored, _close)
        except StoreUnavailable:  # it is silent: a profile on the disk may do
            return await in_thread(kept)
        if found is not None:
            stack.callback(found.close)
        return found

    def _keep(self, catalog: Catalog, manifest: Manifest) -> None:
        directory = self._directory(manifest.image)
        if directory.is_dir():
            keep_manifest(catalog, manifest, directory)

    def _directory(self, image: str) -> Path:
        return self._images / digest_of(image).removeprefix("sha256:")

    async def _served(self) -> ImageAgent:
        async with self._starting:
            if self._agent is None:
                self._agent = await self._start_agent(self._trouble, self._refused)
            return self._agent

    async def _serve_early(self) -> None:
        """Start the agent while an image is imported. A failure is ignored here: opening the image reports it."""
        with contextlib.suppress(SockdError, OSError):
            await self._served()

    def _do_beside(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def _switch(self, manifest: Manifest) -> None:
        digest = digest_of(manifest.image)
        if digest in self._open and self._agent is not None:
            await self._agent.switch(manifest)
            self._open[digest] = manifest

    def _trouble(self, image: str, error: SockdError) -> None:
        _log.warning("reads of the image %s fail: %s", image[:19], error.message)
        if isinstance(error, WRONG):
            self._doubted.add(image)
        self._failures[digest_of(image)] = time.monotonic_ns(), with_remedy(error, image)
        if isinstance(error, ImageUnavailable):
            digest = digest_of(image)
            self._forget(digest)
            if self._records is not None:
                self._records.lose_mount(digest, error)

    def _refused(self, image: str) -> None:
        self._do_beside(in_thread(forget_profile, self._directory(image)))

    def _forget(self, digest: str) -> None:
        self._open.pop(digest, None)
        self._users.pop(digest, None)
        if (timer := self._timers.pop(digest, None)) is not None:
            timer.cancel()

    def _watch_start(self, start: _Start) -> None:
        def look() -> None:
            del self._timers[start.record.digest]
            self._do_beside(self._look_at_start(start))

        self._timers[start.record.digest] = asyncio.get_running_loop().call_later(QUIET_S, look)

    async def _look_at_start(self, start: _Start) -> None:
        """Record the profile of a start that has ended; otherwise look again later."""
        manifest = self._open.get(start.record.digest)
        if self._agent is None or manifest is None:
            return
        try:
            used = await self._agent.used(manifest.image)
        except SockdError as error:
            _log.warning("the start of %s was not recorded: %s", start.record.digest[:19], error.message)
            return
        if (used and used == start.used) or time.monotonic() >= start.latest_s:
            await self.record_profile(start.record, start.directory)
        elif start.record.digest in self._open and start.record.digest not in self._timers:
            self._watch_start(replace(start, used=used))

    async def record_profile(self, record: ImageRecord, directory: Path) -> None:
        """Keep what was read of an open image. Without a profile starts are slower, so failures are logged only."""
        manifest = self._open.get(record.digest)
        if self._agent is None or self._parts is None or manifest is None:
            return
        try:
            profile = await self._agent.profile(manifest, self._profile_bytes)
            if profile is not None and profile.order:
                await in_thread(keep_profile, self._parts.catalog, manifest, profile, directory)
        except (SockdError, OSError) as error:
            _log.warning("the startup profile of %s is not kept: %s", record.digest[:19], error)


def _close(profile: OpenProfile | None) -> None:
    if profile is not None:
        profile.close()


def with_remedy(error: SockdError, image: str) -> SockdError:
    """What failed, with what an operator can do if the store has lost or changed what it had. Args: image: its digest or name."""
    if not isinstance(error, WRONG):
        return error
    return error_of(type(error).__name__, f"{error.message}; it is of the image {image[:19]}: deploy that again")


def _adopted(catalog: Catalog, image: str) -> Manifest | None:
    """Hold an image again whose references were lost; None: the store does not have it."""
    target = catalog.begin(image)
    with contextlib.suppress(Tampered):
        if (manifest := catalog.existing(target)) is not None:
            catalog.adopt(target)
            return manifest
    catalog.abandon(target)
    return None
