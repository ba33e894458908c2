"""The first starts of images on this worker, whose startup profiles are recorded when they have ended.

Owns the timers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path

from sockd.base.blocking import in_thread
from sockd.base.errors import SockdError
from sockd.images.store.image_record import ImageRecord
from sockd.images.store.kept_copies import keep_profile
from sockd.images.store.opened_store import OpenedStore
from sockd.images.store.served_images import ServedImages

QUIET_S, LATEST_S = 5.0, 50.0
"""An image's first start on this worker has ended when no chunk was used for so long; or so long after it was opened, which is
before its startup data is dropped (START_S)."""
_log = logging.getLogger(__name__)


class BackgroundTasks:
    """Tasks that no request waits for. Owns them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Begin a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self, timeout_s: float) -> None:
        """Wait until all have ended, for at most so long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    async def aclose(self) -> None:
        """Wait until all have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _Start:
    """The first start of an image, which is under way."""

    record: ImageRecord
    directory: Path
    latest_s: float
    used: int = 0
    """Chunks, when they were counted last."""


class FirstStarts:
    """The starts that are watched, by the digest of the image."""

    def __init__(self, store: OpenedStore, images: ServedImages, tasks: BackgroundTasks, *, most_bytes: int) -> None:
        """Args: most_bytes: of an image's startup data; 0: none is recorded."""
        self._store = store
        self._images = images
        self._tasks = tasks
        self._most_bytes = most_bytes
        self._timers: dict[str, asyncio.TimerHandle] = {}
        images.closed.append(self._forget)

    def watch(self, record: ImageRecord, directory: Path) -> None:
        """Record the profile of a start that has begun, when it has ended."""
        if record.digest not in self._timers:
            self._watch(_Start(record, directory, time.monotonic() + LATEST_S))

    def close(self) -> None:
        """Watch no start any more."""
        for timer in self._timers.values():
            timer.cancel()

    def _watch(self, start: _Start) -> None:
        def look() -> None:
            del self._timers[start.record.digest]
            self._tasks.begin(self._look(start))

        self._timers[start.record.digest] = asyncio.get_running_loop().call_later(QUIET_S, look)

    async def _look(self, start: _Start) -> None:
        """Record the profile of a start that has ended; otherwise look again later."""
        manifest = self._images.manifests.get(start.record.digest)
        if self._images.agent is None or manifest is None:
            return
        try:
            used = await self._images.agent.used(manifest.image)
        except SockdError as error:
            _log.warning("the start of %s was not recorded: %s", start.record.digest[:19], error.message)
            return
        if (used and used == start.used) or time.monotonic() >= start.latest_s:
            await self.record(start.record, start.directory)
        elif start.record.digest in self._images.manifests and start.record.digest not in self._timers:
            self._watch(replace(start, used=used))

    async def record(self, record: ImageRecord, directory: Path) -> None:
        """Keep what was read of an open image. Without a profile starts are slower, so failures are logged only."""
        manifest = self._images.manifests.get(record.digest)
        if self._images.agent is None or self._store.opened is None or manifest is None:
            return
        try:
            profile = await self._images.agent.profile(manifest, self._most_bytes)
            if profile is not None and profile.order:
                await in_thread(keep_profile, self._store.opened.catalog, manifest, profile, directory)
        except (SockdError, OSError) as error:
            _log.warning("the startup profile of %s is not kept: %s", record.digest[:19], error)

    def _forget(self, digest: str) -> None:
        if (timer := self._timers.pop(digest, None)) is not None:
            timer.cancel()
