"""One image on its way into the chunk store, or found there.

An image that is found has its chunks checked, so that a deploy mends a damaged store: in a directory always, where it takes a
fraction of an import; in a store that keeps its bytes itself, when a read of the image has failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from sockd.base.errors import Tampered
from sockd.images.chunks.catalog import Catalog, UploadTarget
from sockd.images.chunks.checking import wrong_chunks
from sockd.images.chunks.chunk import CHUNK_BYTES
from sockd.images.chunks.manifest import Manifest
from sockd.images.chunks.store import ChunkStore
from sockd.images.chunks.upload import upload
from sockd.images.registry.image import ImageConfig
from sockd.images.store.image_facts import ImageFacts
from sockd.images.store.image_record import ImageRecord, form_of, stored_name
from sockd.images.store.import_wire import Imported
from sockd.images.store.kept_copies import keep_manifest, keep_stored_profile

FORM = "4"
"""The form of the file system that is made of an image's layers; raised when the same layers give other bytes."""


class ImageHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a manifest."""

    config: ImageConfig
    layers: int
    notes: tuple[str, ...]
    metadata_chunks: int
    """How many of the first chunks are metadata of EROFS."""
    facts: ImageFacts = ImageFacts()


class ImageUpload:
    """`begin`, then `publish` if the store does not have it, then `record`; or `abandon`.

    All methods block; each may raise ChunkStoreFailed."""

    def __init__(
        self,
        store: ChunkStore,
        catalog: Catalog,
        known: set[str],
        doubted: Collection[str] = (),
        progress: Callable[[str], object] = lambda text: None,
    ) -> None:
        """Args:
        known: stored names of the worker's images.
        doubted: stored names of images whose chunks are checked in every store.
        progress: called in the thread that `begin` is."""
        self._store = store
        self._catalog = catalog
        self._forms = dict(form_of(name) for name in known)
        self._doubted = doubted
        self._progress = progress
        self._target: UploadTarget | None = None
        self._digest, self._form = "", FORM
        self._manifest: Manifest | None = None
        self._profile: bytes | None = None
        """Sealed; of an image that the store has."""
        self._wrong: frozenset[bytes] = frozenset()
        """Chunks to replace."""

    @property
    def image(self) -> str:
        """Its stored name."""
        return stored_name(self._digest, self._form)

    def begin(self, digest: str) -> bool:
        """Refer to the image. False: the store has it, with all of its chunks as far as they are checked."""
        catalog = self._catalog
        self._digest = digest
        self._form = self._forms.get(digest, FORM)  # one that is here keeps its form
        image = self.image
        with ThreadPoolExecutor(2, thread_name_prefix="early") as pool:
            manifest, profile = pool.submit(catalog.early_manifest, image), pool.submit(catalog.early_profile, image)
            self._target = target = catalog.begin(image)
            try:
                found = catalog.existing(target, manifest.result())
            except Tampered:
                return True  # it is written anew
            if found is None:
                return True
            stored_profile = profile.result()
        if self._is_damaged(found):
            return True
        catalog.adopt(target)
        self._manifest, self._profile = found, stored_profile
        return False

    def _is_damaged(self, manifest: Manifest) -> bool:
        """Whether chunks are to be stored again."""
        if self._store.keeps_bytes and manifest.image not in self._doubted:
            return False
        self._progress(f"checking {manifest.size_bytes >> 20} MB in the chunk store")
        self._wrong = wrong_chunks(manifest, self._store)
        if self._wrong:
            self._progress(
                f"{len(self._wrong)} of its chunks in the chunk store are missing or damaged; the image is stored again"
            )
        return bool(self._wrong)

    def publish(self, imported: Imported, file: Path) -> None:
        """Store the chunks of a file system, whose file is removed, and then the manifest."""
        target = self._target
        assert target is not None and imported.digest == self._digest, "the digest was asked for before"
        with open(file, "rb", buffering=0) as image:
            pieces = iter(lambda: image.read(CHUNK_BYTES), b"")
            done = upload(pieces, self._store, root=target.root, salt=target.salt, wrong=self._wrong)
        header = ImageHeader(
            config=imported.config,
            layers=imported.layers,
            notes=imported.notes,
            metadata_chunks=imported.metadata_chunks,
            facts=imported.facts,
        )
        self._manifest = self._catalog.publish(target, done.chunks, done.size_bytes, msgspec.json.encode(header))
        file.unlink()

    def abandon(self) -> None:
        """After a failure; fine if nothing was begun."""
        if self._target is not None and self._manifest is None:
            self._catalog.abandon(self._target)

    def record(self, reference: str, directory: Path) -> ImageRecord:
        """Return the record of the image, after copying its manifest and startup profile to a directory. Raises: OSError."""
        assert self._manifest is not None
        header = msgspec.json.decode(self._manifest.header, type=ImageHeader)
        keep_manifest(self._catalog, self._manifest, directory)
        if self._profile is not None:
            keep_stored_profile(self._profile, directory)
        return ImageRecord(
            digest=self._digest,
            reference=reference,
            config=header.config,
            size_bytes=self._manifest.size_bytes,
            layers=header.layers,
            imported_at=time.time(),
            notes=header.notes,
            facts=header.facts,
            form=self._form,
        )
