"""The mounts of the worker's images: one for each image that is used, closed with its last user.

Owns the mounts. For one event loop; what reads or writes files is done in threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine

from sockd.base.blocking import in_thread
from sockd.base.errors import DamagedImage, ImageNotReady, ImageUnavailable, SockdError, TooManyRequests
from sockd.base.single_flight import SingleFlight
from sockd.images.store.image_directories import ImageDirectories
from sockd.images.store.image_record import ImageRecord
from sockd.images.store.importer import Importer
from sockd.isolation.roots.base import Base
from sockd.isolation.roots.image_base import ImageBase
from sockd.isolation.roots.image_mounting import ImageMounting
from sockd.isolation.roots.owner_maps import Owner

COLD_WAIT_S = 5.0
"""How long a start waits while as many others as may be are mounting their images."""
_log = logging.getLogger(__name__)


class ImageMounts:
    """The mounts of one worker; `aclose` last."""

    def __init__(
        self,
        directories: ImageDirectories,
        base: Base,
        importer: Importer,
        mounting: ImageMounting,
        *,
        most_cold: int,
        on_unmount: Callable[[], None],
    ) -> None:
        """Args: on_unmount: called when an image has no mount any more."""
        self._directories = directories
        self._base = base
        self._importer = importer
        self._how = mounting
        self._most_cold = most_cold
        self._on_unmount = on_unmount
        self._mounts: dict[str, ImageBase] = {}
        self._mounting: SingleFlight[str, ImageBase] = SingleFlight()
        self._losses: dict[str, ImageUnavailable] = {}
        """Why the mounts of images were lost, since they were last begun."""
        self._lost = 0
        """How many were, ever."""
        self._awaited: Counter[str] = Counter()
        """Starts that wait for a mount, by the image's digest."""
        self._closing: set[asyncio.Task[None]] = set()

    def is_mounted(self, digest: str) -> bool:
        """Return whether new users of an image find it mounted."""
        return digest in self._mounts

    async def mounted(self, record: ImageRecord, within_s: float | None = None) -> ImageBase:
        """An image's mount, which the caller holds in the same step. A mount that takes longer than `within_s` goes on for other
        starts, and is given up when it is there and no start waits for it.

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

    def is_current(self, mounted: ImageBase) -> bool:
        """Whether new users of an image get this mount."""
        return any(each is mounted for each in self._mounts.values())

    def lose(self, digest: str, error: ImageUnavailable) -> None:
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
        self._on_unmount()

    def used(self) -> None:
        """As `ImageInUse` says."""
        self._importer.used()

    def failure_since(self, record: ImageRecord, begun_ns: int) -> SockdError | None:
        """Why reads of an image have failed, if one has since then (CLOCK_MONOTONIC)."""
        return self._importer.failure_since(record, begun_ns)

    async def aclose(self) -> None:
        """Unmount everything; what runs in an image keeps it."""
        await self._mounting.aclose()
        mounts, self._mounts = list(self._mounts.values()), {}
        for mounted in mounts:
            await in_thread(mounted.close)
        await asyncio.gather(*self._closing, return_exceptions=True)

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

    async def _mount(self, record: ImageRecord) -> ImageBase:
        begun_ns = time.monotonic_ns()
        self._losses.pop(record.digest, None)
        source = await self._importer.open(record, self._directories.of(record))
        self._importer.used()
        try:
            mounted = await in_thread(self._how.mount, source, self._base, Owner(*record.facts.owner))
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
            self._on_unmount()
            self._close_in_task(self._closed(mounted, record, self._lost))
            _log.info("image %s is unmounted: nothing uses it", record.digest[:19])

    def _close_in_task(self, closing: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _closed(self, mounted: ImageBase, record: ImageRecord, lost: int) -> None:
        # In a thread: an unmount waits for pages that are being read through the agent (truncate_inode_pages), and the loop may
        # have to start the agent anew before they come.
        await in_thread(mounted.close)
        if lost == self._lost:  # otherwise the importer has forgotten it, and may have opened it again
            await self._importer.close(record)

    def _close_lost(self, base: ImageBase) -> None:
        base.on_unused = _nothing
        self._close_in_task(in_thread(base.close))

    def _why_failed(self, record: ImageRecord, begun_ns: int) -> SockdError | None:
        lost = self._losses.get(record.digest)
        return self.failure_since(record, begun_ns) if lost is None else lost.again()


def _nothing(base: ImageBase) -> None:
    return None


class ImageUse:
    """One program's use of an image (`sockd.isolation.roots.program.ImageInUse`)."""

    def __init__(self, mounts: ImageMounts, record: ImageRecord) -> None:
        self._mounts = mounts
        self._record = record
        self._base: ImageBase | None = None

    async def mounted(self, within_s: float) -> ImageBase:
        if self._base is not None and not self._mounts.is_current(self._base):
            self.close()  # what served its blocks has ended
        if self._base is None:
            base = await self._mounts.mounted(self._record, within_s)
            if self._base is None:  # another start may have waited, too
                base.hold()
                self._base = base
        return self._base

    def used(self) -> None:
        self._mounts.used()

    def failure_since(self, begun_ns: int) -> SockdError | None:
        return self._mounts.failure_since(self._record, begun_ns)

    def close(self) -> None:
        base, self._base = self._base, None
        if base is not None:
            base.let_go()
