"""The worker's part in the garbage collection of its chunk store: it follows images to new roots, and collects when it is asked.

Once a minute, while this daemon uses the store: references of this worker are checked, images that were copied to the active root
are read from there, roots that this worker reads are checked for expiry (an alarm), and a collection that somebody began goes on.
A failure is logged when it is a new one, and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from sockd.base.blocking import in_thread
from sockd.base.errors import BadRequest, SockdError
from sockd.images.chunks.collection import Delete, Migrate, Wait
from sockd.images.chunks.collector import Collector, Step
from sockd.images.chunks.layout import Image
from sockd.images.chunks.root_table import RootState
from sockd.images.chunks.root_watch import RootWatch
from sockd.images.store.chunked_importer import ChunkedImporter
from sockd.images.store.image_record import ImageRecord

EVERY_S = 60.0
STEPS_AT_ONCE = 200
"""Steps of a collection that continues by itself; the rest follows a minute later."""

_log = logging.getLogger(__name__)


class ImageGarbage:
    """The garbage collection of one worker's images. `start`, `collect`, `aclose`. Owns the timer and the task of the
    minute's work."""

    def __init__(
        self, importer: ChunkedImporter, collector: Callable[[], Collector], watch: Callable[[], RootWatch]
    ) -> None:
        """Args: collector, watch: called once, when the store has been opened."""
        self._importer = importer
        self._make_collector = collector
        self._make_watch = watch
        self._collector: Collector | None = None
        self._watch: RootWatch | None = None
        self._working = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._last_failure = ""

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._begin)

    async def aclose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def collect(
        self, *, clear_alarms: bool = False, restore: bool = False, forget_worker: str = ""
    ) -> dict[str, Any]:
        """Collect what can be collected now, and the state of the store.

        Args:
            clear_alarms: the cause of the alarms is removed, so that deletion may go on.
            restore: copy what is referenced in expired roots that were read, instead.
            forget_worker: a worker that is gone for ever, whose references are dropped.

        Raises: ChunkStoreFailed; BadRequest: this is no worker's name."""
        await self._importer.store.parts()
        async with self._working:
            collector = self._opened()[0]
            if clear_alarms or restore:
                await in_thread(collector.clear_alarms, restore=restore)
            if forget_worker:
                try:
                    await in_thread(collector.forget_worker, forget_worker)
                except ValueError as error:
                    raise BadRequest(str(error)) from None
            if await in_thread(has_garbage, collector):
                await in_thread(collector.rotate)
            steps = await in_thread(_steps, collector, None)
            await self._importer.follow()
            steps += await in_thread(_steps, collector, None)
            return await in_thread(state_of, collector, steps)

    async def chunk_names(self, record: ImageRecord) -> frozenset[bytes]:
        """As `ChunkedImporter.chunk_names`."""
        return await self._importer.chunk_names(record)

    async def once(self) -> None:
        """The work of one minute. Raises: ChunkStoreFailed, ImageUnavailable."""
        if self._importer.store.opened is None:
            return
        async with self._working:
            collector, watch = self._opened()
            await self._importer.follow()
            for root in self._importer.served.roots():
                await in_thread(watch.reading, root)
            await in_thread(_steps, collector, STEPS_AT_ONCE)

    def _opened(self) -> tuple[Collector, RootWatch]:
        if self._collector is None or self._watch is None:
            self._collector, self._watch = self._make_collector(), self._make_watch()
        return self._collector, self._watch

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._minute())

    async def _minute(self) -> None:
        try:
            await self.once()
            self._last_failure = ""
        except SockdError as error:
            if error.message != self._last_failure:
                _log.warning("the garbage collection of images waits: %s", error.message)
            self._last_failure = error.message
        self.start()


def has_garbage(collector: Collector) -> bool:
    """Whether the active root has an image that no worker uses, or chunks of an upload that failed or is under way."""
    held = collector.holdings()
    root = held.table.active
    stored = held.manifests.get(root, frozenset[Image]())
    return bool(stored - {each.image for each in held.references}) or collector.has_stray_chunks(root, stored)


def state_of(collector: Collector, steps: list[Step]) -> dict[str, Any]:
    """What `sockd images gc` shows of the store."""
    held = collector.holdings()
    waits = [step.action for step in steps if isinstance(step.action, Wait)]
    return {
        "roots": [
            {
                "root": root,
                "state": str(each.state),
                "images": len(held.manifests.get(root, ())),
                "workers": sorted({reference.worker for reference in held.references if reference.root == root}),
                "alarms": sorted(held.alarms.get(root, ())),
            }
            for root, each in held.table.roots.items()
            if each.state is not RootState.DELETED or held.alarms.get(root)
        ],
        "copied": sum(step.done for step in steps if isinstance(step.action, Migrate)),
        "deleted": sum(step.done for step in steps if isinstance(step.action, Delete)),
        "problems": [step.problem for step in steps if step.problem],
        "waits": list(waits[-1].reasons) if waits else [],
    }


def _steps(collector: Collector, most: int | None) -> list[Step]:
    return list(collector.run(max_steps=most))
