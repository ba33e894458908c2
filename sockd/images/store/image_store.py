"""The worker's images: how they come, which of them are used, and which may go.

An image is imported once, however many functions run in it, and mounted once, while any of them uses it. Owns the directories,
the mounts, and imports that run. For one event loop; what reads or writes files is done in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from sockd.base.blocking import in_thread
from sockd.base.errors import BadImage, ImageLost, ImagesUnavailable, ImageUnavailable, SockdError
from sockd.base.notes import Progress
from sockd.base.single_flight import SingleFlight
from sockd.images.registry.reference import Reference
from sockd.images.store.full_disk import is_full
from sockd.images.store.image_directories import ImageDirectories
from sockd.images.store.image_mounts import ImageMounts, ImageUse
from sockd.images.store.image_record import DIGEST, ImageRecord
from sockd.images.store.importer import Importer
from sockd.isolation.roots.base import Base
from sockd.isolation.roots.image_mounting import ImageMounting

GRACE_S = 3600.0
"""How long an image that no function uses is kept after its import: it may be uploaded before its function is deployed. And after
the import of the next build."""
_log = logging.getLogger(__name__)


class ImageStore:
    """`recover` first; `aclose` last."""

    def __init__(
        self,
        root: Path,
        tmp: Path,
        base: Base,
        importer: Importer,
        mounting: ImageMounting | None = None,
        *,
        most_cold: int = 8,
    ) -> None:
        """Args:
        root, tmp: directories on one file system.
        base: the host's part of a sandbox's root.
        most_cold: images that are mounted for their first start at once.
        mounting: how images are mounted on this kernel; None: as on the newest."""
        self.mounting = mounting or ImageMounting()
        self.directories = ImageDirectories(root, tmp)
        self.mounts = ImageMounts(
            self.directories, base, importer, self.mounting, most_cold=most_cold, on_unmount=self._wake
        )
        self.why_not = ""
        """Why this worker runs no functions in images; empty if it does, or if it was not tried (`try_host`)."""
        self._is_tried = False
        self._tmp = tmp
        self.importer = importer
        self._importing: SingleFlight[str, ImageRecord] = SingleFlight()
        self._held: Counter[str] = Counter()
        self.removed: list[Callable[[ImageRecord], None]] = []
        """Listeners, called with the record of an image that is gone."""
        self.added: list[Callable[[ImageRecord], None]] = []
        """Listeners, called with the record of an image that is there and was not."""
        self._let_go = asyncio.Event()
        """Set for a moment when an image is used by one less."""

    def recover(self) -> None:
        """Find the images of an earlier daemon, and remove what a killed one left half done. Blocks briefly."""
        self.directories.recover()

    async def prepare(self) -> None:
        """Start what images need before the first is needed; a failure is logged, and the first will meet it again."""
        try:
            await self.check_host()
            await self.importer.prepare()
            _log.info("images are ready")
        except SockdError as error:
            _log.warning("images are not prepared: %s", error.message)
        except OSError as error:
            _log.warning("images are not prepared: %s", error)

    # -- which images there are

    def get(self, digest: str) -> ImageRecord:
        """Raises: UnknownImage."""
        return self.directories.get(digest)

    def all(self) -> list[ImageRecord]:
        """The latest import first."""
        return self.directories.all()

    def find(self, text: str) -> ImageRecord:
        """By a digest, the first digits of one, or a reference, also a short one. Raises: UnknownImage, BadImage."""
        return self.directories.find(text)

    async def resolve(self, text: str, progress: Progress) -> ImageRecord:
        """The image that settings name: one that is here, by its digest, or one that is imported now.

        Raises: BadImage and its kinds, UnknownImage, RegistryUnavailable, ImageAccessDenied, StorageFull."""
        if DIGEST.fullmatch(text):
            return self.get(text)
        return await self.add(text, progress)

    async def ensure(self, digest: str, reference: str) -> ImageRecord:
        """An image that a function was deployed with: if it is lost, it is imported again, by its digest.

        Raises: as `resolve`; ImageLost: it was uploaded."""
        if (record := self.directories.records.get(digest)) is not None:
            return record
        if DIGEST.fullmatch(reference):
            raise ImageLost(digest, is_unreadable=self.directories.is_unreadable(digest))
        return await self.add(pinned(reference, digest), _log.info)

    async def add(self, reference: str, progress: Progress) -> ImageRecord:
        """Import an image, or find that its digest is here. Raises: as `resolve`."""
        if Reference.parse(reference).kind != "registry":
            raise BadImage(
                f"image = {reference[:200]!r}: a worker fetches images from registries; `sockd deploy --image` and `sockd "
                "images add` upload local ones"
            )
        return await self._importing.do(reference, lambda: self._add(reference, "", progress))

    async def add_archive(self, path: Path, reference: str, progress: Progress) -> ImageRecord:
        """Import an image from an archive that was uploaded. Args: reference: how its sender names it. Raises: as `resolve`."""
        return await self._add(reference, str(path), progress)

    @contextlib.asynccontextmanager
    async def receiving(self) -> AsyncIterator[None]:
        """While an archive is received for `add_archive`. Raises: ImagesUnavailable, SockdError of the store, at once, before
        gigabytes are sent in vain; StorageFull."""
        await self.check_host()
        await self.importer.check_store()
        try:
            yield
        except OSError as error:
            if is_full(error):
                raise await in_thread(self.importer.storage_full) from error
            raise

    async def try_host(self) -> None:
        """Find out whether the kernel mounts images, once."""
        if not self._is_tried:
            self.why_not = await in_thread(self.mounting.try_in, self._tmp)
            self._is_tried = True

    async def check_host(self) -> None:
        """Raises: ImagesUnavailable."""
        await self.try_host()
        if self.why_not:
            raise ImagesUnavailable(f"this worker runs no functions in container images: {self.why_not}")

    async def _add(self, reference: str, path: str, progress: Progress) -> ImageRecord:
        await self.check_host()
        building = await in_thread(self.directories.new)
        try:
            record = await self.importer.import_image(reference, building, progress, path=path)
            if (known := self.directories.records.get(record.digest)) is not None:
                await self.importer.renew(known, self.directories.of(known), building)
                return known
            await self.publish(record, building)
        finally:
            await in_thread(shutil.rmtree, building, True)
        return record

    async def publish(self, record: ImageRecord, building: Path) -> None:
        """Make a directory of `ImageDirectories.new` that of an image, which is there from now on."""
        await in_thread(self.directories.publish, record, building)
        self.directories.records[record.digest] = record
        for listener in self.added:
            listener(record)

    # -- use

    def use(self, digest: str) -> ImageUse:
        """For one program, which closes it. Raises: UnknownImage."""
        return ImageUse(self.mounts, self.get(digest))

    def lose_mount(self, digest: str, error: ImageUnavailable) -> None:
        """As `ImageMounts.lose`."""
        self.mounts.lose(digest, error)

    def is_in_use(self, digest: str) -> bool:
        """Whether a deploy holds it, or a sandbox runs in it."""
        return bool(self._held[digest]) or self.mounts.is_mounted(digest)

    async def until_unused(self, digest: str) -> None:
        """Wait until no deploy holds it and no sandbox runs in it."""
        while self.is_in_use(digest):
            await self._let_go.wait()

    @contextlib.contextmanager
    def holding(self, digest: str) -> Iterator[None]:
        """An image that is not garbage until the block ends: of a deploy under way."""
        self._held[digest] += 1
        try:
            yield
        finally:
            self._held[digest] -= 1
            self._wake()

    def _wake(self) -> None:
        self._let_go.set()
        self._let_go.clear()  # tasks that waited continue all the same

    # -- removal

    def unused(self, keep: set[str], now_s: float) -> list[ImageRecord]:
        """POLICY: images that no function needs, no deploy holds and no sandbox runs in; but not those of the last hour, nor
        those of which the next build was imported in the last hour: its first start uses their startup profiles."""
        found, next_build_s = [], dict[str, float]()
        for each in self.all():
            latest_s = next_build_s.get(each.repository, each.imported_at)
            next_build_s[each.repository] = each.imported_at
            if each.digest not in keep and not self.is_in_use(each.digest) and now_s - latest_s > GRACE_S:
                found.append(each)
        return found

    async def collect(self, keep: set[str], *, at_once: bool = False, removed: list[ImageRecord] | None = None) -> None:
        """Remove those that are unused.

        Args: keep: digests that functions need; at_once: also those of the last hour; removed: gets each one that is removed,
            also before a failure. Raises: SockdError: the importer's."""
        for record in self.unused(keep, time.time() + (GRACE_S if at_once else 0)):
            await self.remove(record.digest)
            if removed is not None:
                removed.append(record)

    async def remove(self, digest: str) -> None:
        """Raises: UnknownImage; SockdError: the importer's."""
        record = self.get(digest)
        await self.importer.remove(record)
        self.directories.forget(record)
        for listener in self.removed:
            listener(record)
        await in_thread(self.directories.remove, record)

    async def aclose(self) -> None:
        """Unmount everything; what runs in an image keeps it."""
        await self._importing.aclose()
        await self.mounts.aclose()
        await self.importer.aclose()


def pinned(reference: str, digest: str) -> str:
    """A reference for a registry, with this digest instead of what it says."""
    return str(Reference.parse(reference).pinned(digest))


async def adopt(images: ImageStore, record: ImageRecord) -> bool:
    """Add an image that another worker has imported, whose chunks are in the chunk store. False: they are not.

    Raises: ImagesUnavailable; SockdError of the store."""
    await images.check_host()
    building = await in_thread(images.directories.new)
    try:
        if not await images.importer.adopt(record, building):
            return False
        await images.publish(record, building)
        return True
    finally:
        await in_thread(shutil.rmtree, building, True)
