"""Blobs: files that every worker of a group can get, by name.

A blob is written once, by the first worker that has the file; its row in PostgreSQL owns the bytes in the chunk store. Owns the
task that collects garbage.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from sockd.base.blocking import in_thread
from sockd.base.errors import SockdError, StoreUnavailable
from sockd.functions.blobs.blob_objects import BlobObjects
from sockd.functions.blobs.blob_table import BlobTable, Stored
from sockd.images.chunks.store import ChunkStore

UNUSED_S = 3600.0
"""How long a blob is kept that no deploy needs: its deploy may be under way."""
COLLECT_S = 600.0
"""From one collection to the next, by whichever worker."""
BATCH = 500

OpenFile = Callable[[], AbstractContextManager[BinaryIO]]
"""Opens a file that is to be stored, in a thread."""

_log = logging.getLogger(__name__)


class Blobs:
    """The blobs of one group, as one worker uses them. `aclose` last."""

    def __init__(self, table: BlobTable, open_store: Callable[[], Awaitable[tuple[ChunkStore, bytes]]]) -> None:
        """Args: open_store: gives the chunk store, and the key of blobs. Raises: SockdError."""
        self._table = table
        self._open_store = open_store
        self._collecting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Collect garbage now and then."""
        self._collecting = asyncio.create_task(self._collect(), name="collecting blobs")

    async def aclose(self) -> None:
        """Collect no more. Safe to call twice."""
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.wait([self._collecting])

    async def put(self, name: str, open_file: OpenFile) -> None:
        """Store a file, unless it is there. It is kept for an hour, and as long as a deploy needs it.

        Raises: DatabaseUnavailable, ChunkStoreFailed, SecretsLocked, OSError."""
        objects = await self._objects()
        stored = await self._table.use(name)
        if stored is not None and await in_thread(objects.has, *stored):
            return
        generation = await self._table.reserve(name)
        parts = await in_thread(_write, objects, name, generation, open_file)
        if not await self._table.complete(name, generation, parts):
            raise StoreUnavailable("of the group", f"storing {name[:40]} took too long")
        if stored is not None:
            await self._table.forget(stored.generation)  # its bytes are lost

    async def get(self, name: str, path: Path) -> bool:
        """Write a blob to a new file; False: there is none, or the chunk store has lost it, and there is no file.

        Raises: as `put`; Tampered."""
        stored = await self._table.find(name)
        return stored is not None and await in_thread(_read, await self._objects(), name, stored, path)

    async def collect(self, unused_s: float = UNUSED_S) -> int:
        """Delete what no deploy needs, and the bytes that killed workers have left. Returns: how many were deleted.

        Args: unused_s: for so many seconds no worker has used it. Raises: as `put`."""
        objects = await self._objects()
        garbage = set(await self._table.collect(unused_s))
        # First the bytes are listed, then the rows are read: a row is there before its first byte.
        listed = await in_thread(lambda: list(objects.generations()))
        for begin in range(0, len(listed), BATCH):
            garbage |= await self._table.unknown(listed[begin : begin + BATCH])
        for generation in garbage:
            await in_thread(objects.delete, generation)
        return len(garbage)

    async def _collect(self) -> None:
        while True:
            try:
                if await self._table.is_due(COLLECT_S):
                    await self.collect()
            except (SockdError, OSError) as error:
                _log.warning("the files of removed functions are not collected now: %s", error)
            await asyncio.wait([self._due()])

    def _due(self) -> asyncio.Future[None]:
        """Return what is done when the next collection is due."""
        loop = asyncio.get_running_loop()
        due = loop.create_future()
        loop.call_later(COLLECT_S, due.set_result, None)
        return due

    async def _objects(self) -> BlobObjects:
        store, key = await self._open_store()
        return BlobObjects(store, key, self._table.space)


def _write(objects: BlobObjects, name: str, generation: str, open_file: OpenFile) -> int:
    with open_file() as file:
        return objects.write(name, generation, file)


def _read(objects: BlobObjects, name: str, stored: Stored, path: Path) -> bool:
    is_whole = False
    try:
        with open(path, "xb") as file:
            is_whole = objects.read(name, *stored, file)
        return is_whole
    finally:
        if not is_whole:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
