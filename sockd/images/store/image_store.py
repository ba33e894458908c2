"""The worker's images: which there are, where their file systems are mounted, and which of them may go.

    images/<hex of the digest>/record.json    an `ImageRecord`; written last, so that an image without one is none
    images/<hex of the digest>/...            the image's files: the importer's
    tmp/image-<uuid>/                         being imported or removed

An image is imported once, however many functions run in it, and mounted once, while any of them uses it: the mount is closed with
its last user. Owns the directories, the mounts, and imports that run. For one event loop; what reads or writes files is done in
threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from itertools import repeat
from pathlib import Path
from typing import Protocol

import msgspec

from sockd.base.blocking import in_thread
from sockd.base.errors import (
    BadImage,
    DamagedImage,
    ImageLost,
    ImageNotReady,
    ImagesUnavailable,
    ImageUnavailable,
    SockdError,
    StorageFull,
    TooManyRequests,
    UnknownImage,
)
from sockd.base.single_flight import SingleFlight
from sockd.images.registry.reference import Reference, canonical
from sockd.images.store.full_disk import is_full
from sockd.images.store.image_record import DIGEST, ImageRecord
from sockd.isolation.roots.base import Base
from sockd.isolation.roots.image_base import ImageBase
from sockd.isolation.roots.image_mounting import ImageMounting
from sockd.isolation.roots.owner_maps import Owner

RECORD = "record.json"
TEMPORARY = "image-"
COLD_WAIT_S = 5.0
"""How long a start waits while as many others as may be are mounting their images."""
MOST_NAMED = 5
"""Beginnings of digests that an error names."""
GRACE_S = 3600.0
"""How long an image that no function uses is kept after its import: it may be uploaded before its function is deployed. And after
the import of the next build."""

Progress = Callable[[str], None]

_log = logging.getLogger(__name__)


class Importer(Protocol):
    """Fetches images and writes their file systems."""

    async def check_store(self) -> None:
        """Whether what images are kept in can be reached. Raises: SockdError."""

    async def prepare(self) -> None:
        """Start what imports and opens need, so that the first need not wait for it. Raises: SockdError, OSError."""

    async def import_image(self, reference: str, directory: Path, progress: Progress, *, path: str = "") -> ImageRecord:
        """Write an image's files into an empty directory.

        Args: path: of an archive that was uploaded; empty: the reference is for a registry.
        Raises: BadImage and its kinds, RegistryUnavailable, ImageAccessDenied, StorageFull."""

    def storage_full(self) -> StorageFull:
        """What is said of a disk without space. Blocks."""

    async def renew(self, record: ImageRecord, directory: Path, imported: Path) -> None:
        """An image that is here was imported again, into a directory of its own: what is lost here is taken from that.

        Raises: SockdError, OSError."""

    async def open(self, record: ImageRecord, directory: Path) -> str:
        """The path of the image's EROFS file, valid until `close`. Raises: SockdError, OSError."""

    def used(self) -> None:
        """Somebody may wait for a read of what `open` gave."""

    def failure_since(self, record: ImageRecord, begun_ns: int) -> SockdError | None:
        """As `ImageInUse` says."""

    async def settled(self) -> None:
        """As `ImageBase.settled`."""

    async def close(self, record: ImageRecord) -> None:
        """Nobody uses what `open` gave any more."""

    async def remove(self, record: ImageRecord) -> None:
        """The image is removed: whatever the importer has of it outside of its directory goes. Raises: SockdError."""

    async def aclose(self) -> None:
        """All images are unmounted."""


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
        self._why_not: str | None = None
        """None: nobody has tried yet."""
        self._most_cold = most_cold
        self._root = root
        self._tmp = tmp
        self._base = base
        self._importer = importer
        self._records: dict[str, ImageRecord] = {}
        self._unreadable: set[str] = set()
        """Directories of images, by name, whose records could not be read; the next import of the image replaces one."""
        self._mounts: dict[str, ImageBase] = {}
        self._mounting: SingleFlight[str, ImageBase] = SingleFlight()
        self._importing: SingleFlight[str, ImageRecord] = SingleFlight()
        self._held: Counter[str] = Counter()
        self._losses: dict[str, ImageUnavailable] = {}
        """Why the mounts of images were lost, since they were last begun."""
        self._lost = 0
        """How many were, ever."""
        self._awaited: Counter[str] = Counter()
        """Starts that wait for a mount, by the image's digest."""
        self._closing: set[asyncio.Task[None]] = set()
        self.removed: list[Callable[[ImageRecord], None]] = []
        """Listeners, called with the record of an image that is gone."""
        self.added: list[Callable[[ImageRecord], None]] = []
        """Listeners, called with the record of an image that is there and was not."""
        self._let_go = asyncio.Event()
        """Set for a moment when somebody has let go of an image."""

    def recover(self) -> None:
        """Find the images of an earlier daemon, and remove what a killed one left half done. Blocks briefly."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for leftover in self._tmp.glob(f"{TEMPORARY}*"):
            shutil.rmtree(leftover)
        for directory in self._root.iterdir():
            try:
                record = msgspec.json.decode((directory / RECORD).read_bytes(), type=ImageRecord)
            except (OSError, msgspec.MsgspecError) as error:
                _log.warning("images/%s has no record that can be read: %s", directory.name, error)
                self._unreadable.add(directory.name)
                continue
            self._records[record.digest] = record

    async def prepare(self) -> None:
        """Start what images need before the first is needed; a failure is logged, and the first will meet it again."""
        try:
            await self._check_host()
            await self._importer.prepare()
            _log.info("images are ready")
        except SockdError as error:
            _log.warning("images are not prepared: %s", error.message)
        except OSError as error:
            _log.warning("images are not prepared: %s", error)

    # -- which images there are

    def get(self, digest: str) -> ImageRecord:
        """Raises: UnknownImage."""
        record = self._records.get(digest)
        if record is None:
            raise UnknownImage(digest)
        return record

    def all(self) -> list[ImageRecord]:
        """The latest import first."""
        return sorted(self._records.values(), key=lambda record: -record.imported_at)

    def is_mounted(self, digest: str) -> bool:
        return digest in self._mounts

    def is_in_use(self, digest: str) -> bool:
        """Whether a deploy holds it, or a sandbox runs in it."""
        return bool(self._held[digest]) or digest in self._mounts

    async def until_unused(self, digest: str) -> None:
        """Wait until no deploy holds it and no sandbox runs in it."""
        while self.is_in_use(digest):
            await self._let_go.wait()

    def find(self, text: str) -> ImageRecord:
        """By a digest, the first digits of one, or a reference, also a short one. Raises: UnknownImage, BadImage."""
        digits = text.removeprefix("sha256:")
        found = [each for each in self.all() if each.hex.startswith(digits)] if len(digits) >= 4 else []
        names = {text, canonical(text)}
        found = found or [each for each in self.all() if not names.isdisjoint((each.reference, each.resolved))][:1]
        if len(found) > 1:
            raise BadImage(f"{text} is the beginning of {len(found)} digests; write {self._told_apart(found)}")
        if not found:
            raise UnknownImage(text)
        return found[0]

    def _told_apart(self, records: list[ImageRecord]) -> str:
        """The shortest beginnings that no other image has, of the first few."""
        others = [each.hex for each in self.all()]
        shortest = (
            next(
                each.hex[:size]
                for size in range(5, 65)
                if sum(map(str.startswith, others, repeat(each.hex[:size]))) == 1
            )
            for each in records[:MOST_NAMED]
        )
        return " or ".join([*shortest, *(["another"] if len(records) > MOST_NAMED else [])])

    async def resolve(self, text: str, progress: Progress) -> ImageRecord:
        """The image that settings name: one that is here, by its digest, or one that is imported now.

        Raises: BadImage and its kinds, UnknownImage, RegistryUnavailable, ImageAccessDenied, StorageFull."""
        if DIGEST.fullmatch(text):
            return self.get(text)
        return await self.add(text, progress)

    async def ensure(self, digest: str, reference: str) -> ImageRecord:
        """An image that a function was deployed with: if it is lost, it is imported again, by its digest.

        Raises: as `resolve`; ImageLost: it was uploaded."""
        if (record := self._records.get(digest)) is not None:
            return record
        if DIGEST.fullmatch(reference):
            raise ImageLost(digest, is_unreadable=digest.removeprefix("sha256:") in self._unreadable)
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
        await self._check_host()
        await self._importer.check_store()
        try:
            yield
        except OSError as error:
            if is_full(error):
                raise await in_thread(self._importer.storage_full) from error
            raise

    @property
    def why_not(self) -> str:
        """Why this worker runs no functions in images; empty if it does, or if nobody has tried (`try_host`)."""
        return self._why_not or ""

    async def try_host(self) -> None:
        """Find out whether the kernel mounts images, once."""
        if self._why_not is None:
            self._why_not = await in_thread(self.mounting.try_in, self._tmp)

    async def _check_host(self) -> None:
        """Raises: ImagesUnavailable."""
        await self.try_host()
        if self._why_not:
            raise ImagesUnavailable(f"this worker runs no functions in container images: {self._why_not}")

    async def _add(self, reference: str, path: str, progress: Progress) -> ImageRecord:
        await self._check_host()
        building = self._new_tmp()
        await in_thread(building.mkdir, 0o700)
        try:
            record = await self._importer.import_image(reference, building, progress, path=path)
            if (known := self._records.get(record.digest)) is not None:
                await self._importer.renew(known, self._directory(known), building)
                return known
            await in_thread(self._publish, record, building)
        finally:
            await in_thread(shutil.rmtree, building, True)
        self._records[record.digest] = record
        for listener in self.added:
            listener(record)
        return record

    def _publish(self, record: ImageRecord, building: Path) -> None:
        with open(building / RECORD, "wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(file.fileno())
        if record.hex in self._unreadable:
            shutil.rmtree(self._directory(record))
            self._unreadable.discard(record.hex)
        building.rename(self._directory(record))

    # -- use

    def use(self, digest: str) -> ImageUse:
        """For one program, which closes it. Raises: UnknownImage."""
        return ImageUse(self, self.get(digest))

    async def mounted(self, record: ImageRecord, within_s: float | None = None) -> ImageBase:
        """An image's mount, which the caller holds in the same step. A mount that takes longer than `within_s` goes on for other
        starts, and is given up when it is there and nobody waits for it.

        Raises: TooManyRequests; ImageNotReady; SockdError, OSError."""
        begun_ns = time.monotonic_ns()
        self._awaited[record.digest] += 1
        try:
            async with asyncio.timeout(within_s) as limit:
                mounted = await self._mounted(record)
        except BaseException as error:
            self._await_no_more(record.digest)
            self._unmount_unless_wanted(record)
            if within_s is not None and isinstance(error, TimeoutError) and limit.expired():
                raise self.failure_since(record, begun_ns) or ImageNotReady(within_s, record.digest) from None
            raise
        self._await_no_more(record.digest)
        return mounted

    async def _mounted(self, record: ImageRecord) -> ImageBase:
        until = time.monotonic() + COLD_WAIT_S
        while (mounted := self._mounts.get(record.digest)) is None:
            if record.digest in self._mounting or len(self._mounting) < self._most_cold:
                break
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TooManyRequests(
                    f"{len(self._mounting)} images are being started for the first time (images.cold_starts)"
                )
            await self._mounting.one_ended(left_s)
        while mounted is None:
            found = await self._mounting.do(record.digest, lambda: self._mount_wanted(record))
            found.check()
            mounted = found if self.is_current(found) else None  # None: it was given up in the meantime
        return mounted

    async def _mount_wanted(self, record: ImageRecord) -> ImageBase:
        mounted = await self._mount(record)
        self._unmount_unless_wanted(record)
        return mounted

    def _unmount_unless_wanted(self, record: ImageRecord) -> None:
        mounted = self._mounts.get(record.digest)
        if mounted is not None and record.digest not in self._awaited and not mounted.holders:
            self._unmount(record)

    def _await_no_more(self, digest: str) -> None:
        self._awaited[digest] -= 1
        if not self._awaited[digest]:
            del self._awaited[digest]

    def is_current(self, mounted: ImageBase) -> bool:
        """Whether new users of an image get this mount."""
        return any(each is mounted for each in self._mounts.values())

    async def _mount(self, record: ImageRecord) -> ImageBase:
        begun_ns = time.monotonic_ns()
        self._losses.pop(record.digest, None)
        source = await self._importer.open(record, self._directory(record))
        self._importer.used()
        try:
            mounted = await in_thread(self.mounting.mount, source, self._base, Owner(*record.facts.owner))
        except BaseException as error:
            await self._importer.close(record)
            if isinstance(error, OSError | DamagedImage) and (why := self._why_failed(record, begun_ns)) is not None:
                raise why from error
            raise
        if (lost := self._losses.get(record.digest)) is not None:  # while it was mounted
            await self._closed(mounted, record, self._lost)
            raise lost.again()
        mounted.on_unused = lambda base: self._unmount(record)
        mounted.settled = self._importer.settled
        self._mounts[record.digest] = mounted
        return mounted

    def _unmount(self, record: ImageRecord) -> None:
        mounted = self._mounts.pop(record.digest, None)
        if mounted is not None:
            self._wake()
            self._close_beside(self._closed(mounted, record, self._lost))
            _log.info("image %s is unmounted: nothing uses it", record.digest[:19])

    def _close_beside(self, closing: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _closed(self, mounted: ImageBase, record: ImageRecord, lost: int) -> None:
        # In a thread: an unmount waits for pages that are being read through the agent (truncate_inode_pages), and the loop may
        # have to start the agent anew before they come.
        await in_thread(mounted.close)
        if lost == self._lost:  # otherwise the importer has forgotten it, and may have opened it again
            await self._importer.close(record)

    def lose_mount(self, digest: str, error: ImageUnavailable) -> None:
        """Mount an image anew for its next user; reads of its present users fail, and its watchers are called with the
        error."""
        self._losses[digest] = error
        self._lost += 1
        mounted = self._mounts.pop(digest, None)
        if mounted is None:
            return
        mounted.on_unused = self._close_lost
        try:
            mounted.lose(error)
        except Exception:  # what ends the agent has to go on
            _log.exception("the users of the image %s were not ended", digest[:19])
        if not mounted.holders:
            self._close_lost(mounted)
        self._wake()

    def _close_lost(self, base: ImageBase) -> None:
        base.on_unused = _nothing
        self._close_beside(in_thread(base.close))

    def _why_failed(self, record: ImageRecord, begun_ns: int) -> SockdError | None:
        lost = self._losses.get(record.digest)
        return self.failure_since(record, begun_ns) if lost is None else lost.again()

    def used(self) -> None:
        """As `ImageInUse` says."""
        self._importer.used()

    def failure_since(self, record: ImageRecord, begun_ns: int) -> SockdError | None:
        """Why reads of an image have failed, if one has since then (CLOCK_MONOTONIC)."""
        return self._importer.failure_since(record, begun_ns)

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
        self._let_go.clear()  # whoever waited continues all the same

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
        await self._importer.remove(record)
        self._records.pop(digest, None)
        for listener in self.removed:
            listener(record)
        leaving = self._new_tmp()
        await in_thread(self._directory(record).rename, leaving)
        await in_thread(shutil.rmtree, leaving, True)

    async def aclose(self) -> None:
        """Unmount everything; what runs in an image keeps it."""
        await self._importing.aclose()
        await self._mounting.aclose()
        mounts, self._mounts = list(self._mounts.values()), {}
        for mounted in mounts:
            await in_thread(mounted.close)
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._importer.aclose()

    def directory(self, record: ImageRecord) -> Path:
        """Where its files are; what is put beside them goes with the image."""
        return self._directory(record)

    def _directory(self, record: ImageRecord) -> Path:
        return self._root / record.hex

    def _new_tmp(self) -> Path:
        return self._tmp / f"{TEMPORARY}{uuid.uuid4().hex}"


def pinned(reference: str, digest: str) -> str:
    """A reference for a registry, with this digest instead of what it says."""
    return str(Reference.parse(reference).pinned(digest))


def _nothing(base: ImageBase) -> None:
    return None


class ImageUse:
    """One program's use of an image (`sockd.isolation.roots.program.ImageInUse`)."""

    def __init__(self, store: ImageStore, record: ImageRecord) -> None:
        self._store = store
        self._record = record
        self._base: ImageBase | None = None

    async def mounted(self, within_s: float) -> ImageBase:
        if self._base is not None and not self._store.is_current(self._base):
            self.close()  # what served its blocks has ended
        if self._base is None:
            base = await self._store.mounted(self._record, within_s)
            if self._base is None:  # another start may have waited, too
                base.hold()
                self._base = base
        return self._base

    def used(self) -> None:
        self._store.used()

    def failure_since(self, begun_ns: int) -> SockdError | None:
        return self._store.failure_since(self._record, begun_ns)

    def close(self) -> None:
        base, self._base = self._base, None
        if base is not None:
            base.let_go()
