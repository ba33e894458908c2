"""The chunk store of a worker's images, which is opened when it is first needed: a worker without images opens none.

Owns the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sockd.base.blocking import in_thread
from sockd.base.errors import ImageUnavailable, Tampered
from sockd.images.chunks.catalog import Catalog
from sockd.images.chunks.manifest import Manifest
from sockd.images.chunks.store import ChunkStore
from sockd.images.store.image_record import ImageRecord, digest_of
from sockd.images.store.kept_copies import keep_manifest, kept_manifest, stored_manifest
from sockd.images.store.store_waits import StoreWaits

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChunkParts:
    """What imports and starts use of one chunk store."""

    store: ChunkStore
    catalog: Catalog
    blob_key: bytes = b""
    """What seals files of functions in the store, which the workers of a group share."""


class ImageRecords(Protocol):
    """The worker's images, which an importer imports for."""

    def all(self) -> Sequence[ImageRecord]:
        """All images of the worker."""

    def lose_mount(self, digest: str, error: ImageUnavailable) -> None:
        """Called when an image's mount serves nothing any more, with the cause."""


class OpenedStore:
    """The store, the worker's references in it, and the manifests of its images."""

    def __init__(self, images: Path, open_parts: Callable[[], ChunkParts], waits: StoreWaits) -> None:
        """Args:
        images: the directory of `ImageStore`.
        open_parts: blocks. Raises: SockdError."""
        self.images = images
        self._open_parts = open_parts
        self._waits = waits
        self.opened: ChunkParts | None = None
        """None: nothing has needed it yet."""
        self._is_reconciled = False
        self._opening, self._reconciling = asyncio.Lock(), asyncio.Lock()
        self.records: ImageRecords | None = None

    def use_records(self, records: ImageRecords) -> None:
        """Have the images of these records in the store."""
        self.records = records

    def all(self) -> Sequence[ImageRecord]:
        """Return the worker's images."""
        return self.records.all() if self.records is not None else ()

    def known(self) -> set[str]:
        """Return the stored names of the worker's images."""
        return {record.stored_name for record in self.all()}

    async def open(self) -> ChunkParts:
        """The store, which was asked nothing yet: an image starts from copies and caches while it is down. Raises: SockdError."""
        async with self._opening:
            if self.opened is None:
                self.opened = await in_thread(self._open_parts)
            return self.opened

    async def parts(self) -> ChunkParts:
        """The store, opened now if need be; references of uploads that died are dropped. Raises: SockdError."""
        parts = await self.open()
        async with self._reconciling:
            if not self._is_reconciled:
                await in_thread(self._reconcile, parts.catalog, self.known())
                self._is_reconciled = True
        return parts

    async def manifest(self, record: ImageRecord, directory: Path) -> Manifest:
        """Return the manifest of an image: its copy, or the store's. Raises: ChunkStoreFailed."""
        parts = await self.open()
        kept = await in_thread(kept_manifest, parts.catalog, record, directory)
        if kept is not None:
            return kept

        async def stored() -> Manifest:
            await self.parts()
            return await in_thread(stored_manifest, parts.catalog, record, directory)

        return await self._waits.answer(parts.store, stored)

    def keep(self, catalog: Catalog, manifest: Manifest) -> None:
        """Keep a copy of a manifest with its image's record. Blocks."""
        directory = self.directory_of(manifest.image)
        if directory.is_dir():
            keep_manifest(catalog, manifest, directory)

    def directory_of(self, image: str) -> Path:
        """Return the directory of an image by its stored name."""
        return self.images / digest_of(image).removeprefix("sha256:")

    def close(self) -> None:
        """Close the store; what waits for it ends."""
        if self.opened is not None:
            self.opened.store.close()

    def _reconcile(self, catalog: Catalog, known: set[str]) -> None:
        for image in catalog.reconcile(known):
            if (manifest := adopted(catalog, image)) is not None:
                self.keep(catalog, manifest)
            else:
                _log.warning("the chunk store does not have the image %s; deploy its functions again", image[:19])


def adopted(catalog: Catalog, image: str) -> Manifest | None:
    """Hold an image that another worker has stored, or whose references were lost; None: the store does not have it. Blocks."""
    target = catalog.begin(image)
    with contextlib.suppress(Tampered):
        if (manifest := catalog.existing(target)) is not None:
            catalog.adopt(target)
            return manifest
    catalog.abandon(target)
    return None
