"""The images of one worker in a chunk store: uploads, references, and the move to another root.

What protects an image from the garbage collector is a reference: an object that names worker, root and image. The order of
writes makes it safe while a collector of another worker runs, without a lock:

    upload    reference to the active root; read the table: still active? (otherwise again); chunks; manifest
    move      the collector has copied the manifest: reference to the active root; still active?; use the new manifest;
              drop the old reference

A root expires only if no reference names it, and the collector lists references after the root was retired. A reference that was
written before the root was seen active is therefore in that list.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec

from sockd.base.errors import ChunkStoreFailed, ManifestMissing, SecretsLocked, StoreUnavailable
from sockd.images.chunks.chunk import Chunk
from sockd.images.chunks.image_keys import ImageKeys
from sockd.images.chunks.layout import check_part
from sockd.images.chunks.manifest import Manifest
from sockd.images.chunks.references import References
from sockd.images.chunks.root_table import RootState, RootTable, changed_table, ensured_table
from sockd.images.chunks.root_watch import RootWatch
from sockd.images.chunks.store import ChunkStore
from sockd.images.chunks.tenant_images import TenantImages

_ATTEMPTS = 20


class UploadTarget(msgspec.Struct, frozen=True):
    """Where an image's chunks go. Plain data: a confined process uploads."""

    image: str
    root: str
    salt: bytes

    def __repr__(self) -> str:
        return f"UploadTarget({self.image!r}, root={self.root!r})"


class EarlyManifest(NamedTuple):
    """A sealed manifest as it was read before its image was reserved."""

    root: str
    data: bytes


class Catalog:
    """One worker's images of one tenant. Any thread may call; all methods block.

    Each may raise StoreUnavailable and StoreFull, the first one also SecretsLocked. An error leaves the images as they were."""

    def __init__(
        self,
        store: ChunkStore,
        keys: ImageKeys,
        *,
        worker: str,
        watch: RootWatch | None = None,
        tenant: str = "default",
        zone: str = "",
        epoch: int = 0,
        salt_per_tenant: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Args:
        worker: names this worker among those that share the store; it must not change.
        tenant: seals the manifests.
        zone, epoch: of the salt (ImageKeys.salt).
        salt_per_tenant: chunks are shared within the tenant only."""
        self.tenant_images = TenantImages(store, keys, tenant)
        self._store = store
        self._keys = keys
        self._watch = watch or RootWatch(store, worker)
        self._references = References(store, check_part(worker, "a worker's name"), self.tenant_images)
        self._zone = zone
        self._epoch = epoch
        self._salt_tenant = tenant if salt_per_tenant else ""
        self._clock = clock
        self._lock = threading.RLock()
        self._active = ""
        """The active root when the table of roots was read last."""

    def check(self) -> None:
        """Ask the store for its table of roots: whether it can be reached."""
        self._table()

    def images(self) -> list[str]:
        """What this worker holds."""
        with self._lock:
            return self._held().images()

    def begin(self, image: str) -> UploadTarget:
        """Reserve an image's place. `publish` or `abandon` must follow."""
        check_part(image, "an image")
        with self._lock:
            held = self._held()
            for _ in range(_ATTEMPTS):
                table = self._table()
                if self._refer(image, table.active):
                    held.begin_upload(image, table.active)
                    salt = self._keys.salt(table.origin, zone=self._zone, epoch=self._epoch, tenant=self._salt_tenant)
                    return UploadTarget(image, table.active, salt)
                held.drop_unused(image, table.active)
        raise StoreUnavailable(self._store.name, "its active root changes all the time")

    def early_manifest(self, image: str) -> EarlyManifest | None:
        """For `existing`, in a thread during `begin`, to save a request. None: it is not there, or the store fails."""
        root = self._active
        data = _early(self.tenant_images.sealed_manifest, root, image)
        return EarlyManifest(root, data) if data is not None else None

    def early_profile(self, image: str) -> bytes | None:
        """As `early_manifest`: the startup profile, which says itself of which bytes it is."""
        return _early(self.tenant_images.profile, self._active, image)

    def existing(self, target: UploadTarget, early: EarlyManifest | None = None) -> Manifest | None:
        """The image, when its place has it already: nothing needs to be uploaded. Raises: Tampered.

        Args: early: is used if it is of this place. A root that is active now has been so since the manifest was read, and
            nothing is deleted from it."""
        if early is not None and early.root == target.root:
            return self.tenant_images.unseal(early.data, root=target.root, image=target.image)
        return self.tenant_images.manifest(target.root, target.image)

    def adopt(self, target: UploadTarget) -> None:
        """Hold the existing image of this place; instead of `publish`."""
        with self._lock:
            self._hold(target)

    def publish(
        self, target: UploadTarget, chunks: tuple[Chunk | None, ...], size_bytes: int, header: bytes
    ) -> Manifest:
        """Write the manifest of an image whose chunks are all in the root, and hold it.

        Of an image that is held from an older root, too, `follow` drops the older one."""
        manifest = Manifest(target.image, size_bytes, target.root, chunks, header)
        self.tenant_images.put_manifest(manifest)
        with self._lock:
            self._hold(target)
        return manifest

    def abandon(self, target: UploadTarget) -> None:
        """Give up an upload. Its chunks go with the root."""
        with self._lock:
            self._references.end_upload(target.image, target.root)
            self._references.drop_unused(target.image, target.root)

    def open(self, image: str) -> Manifest:
        """The manifest from the newest root that this worker uses. Raises: ManifestMissing; Tampered."""
        with self._lock:
            roots = self._held().roots(image)
        for root in roots:
            if (manifest := self.tenant_images.manifest(root, image)) is not None:
                self._watch.reading(root)
                return manifest
        raise ManifestMissing(self._store.name, image)

    def remove(self, image: str) -> None:
        """This worker does not use the image any more; one that it does not hold is fine."""
        with self._lock:
            self._held().remove(image)

    def reconcile(self, known: Collection[str]) -> list[str]:
        """Remove what no record of the worker names: uploads that died with a daemon. Call it before the first `begin`.

        Returns: those of `known` that the store does not have for this worker."""
        with self._lock:
            for image in self.images():
                if image not in known:
                    self.remove(image)
            return sorted(set(known) - set(self.images()))

    def follow(self, switch: Callable[[Manifest], None]) -> list[str]:
        """Use images from the active root that the collector has copied there.

        Args:
            switch: makes readers of the image use this manifest of the same bytes; afterwards the old root may go.

        References of this worker that somebody deleted are written again. Call it about once a minute.

        Returns: the images that moved. Raises: Tampered; what `switch` raises."""
        with self._lock:
            self._held().write_lost()
        moved = []
        for image in self.images():
            manifest = self._next_manifest(image)
            if manifest is None:
                continue
            switch(manifest)
            with self._lock:
                if manifest.root in self._held().roots(image):
                    self._held().hold_only(image, manifest.root)
                    moved.append(image)
        return moved

    def profile(self, manifest: Manifest) -> bytes | None:
        """The startup profile in the root of a manifest, None without one. Takes no lock: an upload holds it while it waits for
        the store."""
        return self.tenant_images.profile(manifest.root, manifest.image)

    def set_profile(self, image: str, data: bytes) -> None:
        """Raises: ManifestMissing: the worker does not hold the image."""
        with self._lock:
            roots = self._held().roots(image)
        if not roots:
            raise ManifestMissing(self._store.name, image)
        self.tenant_images.put_profile(roots[0], image, data)

    def _held(self) -> References:
        """This worker's references, read from the store once."""
        if not self._references.is_loaded:
            table = self._table()
            self._check_key(table)
            self._references.load(list(table.roots))
        return self._references

    def _next_manifest(self, image: str) -> Manifest | None:
        """The image in the active root, with a reference to it, if it is not what is used already."""
        with self._lock:
            held = self._held()
            roots, active = held.roots(image), self._table().active
            if not roots or roots == [active]:
                return None
            manifest = self.tenant_images.manifest(active, image)
            if manifest is None:
                return None
            if not self._refer(image, active):
                held.drop_unused(image, active)
                return None
            held.prefer(image, active)
            return manifest

    def _refer(self, image: str, root: str) -> bool:
        """Write a reference. False: the root was not active afterwards, so that the reference protects nothing."""
        self._references.write(image, root)
        return self._table().state(root) is RootState.ACTIVE

    def _hold(self, target: UploadTarget) -> None:
        held = self._held()
        held.end_upload(target.image, target.root)
        held.hold(target.image, target.root)

    def _table(self) -> RootTable:
        """As it is now."""
        table = ensured_table(self._store, new_root_name, self._clock())
        self._active = table.active
        return table

    def _check_key(self, table: RootTable) -> None:
        """Raises: SecretsLocked: the images in the store are another key's."""
        proof = self._keys.proof(table.origin)
        if not table.key:
            table = changed_table(self._store, lambda now: now if now.key else msgspec.structs.replace(now, key=proof))
        if table.key != proof:
            raise SecretsLocked(
                f"the chunk store {self._store.name} has images of another key: give the worker the key of those that use it "
                "(images.key_file, or images.key in the state directory), or another store (images.store)"
            )


def _early(read: Callable[[str, str], bytes | None], root: str, image: str) -> bytes | None:
    """What is read before the table of roots is asked; None also if the store fails: the next caller asks again."""
    try:
        return read(root, image) if root else None
    except ChunkStoreFailed:
        return None


def new_root_name() -> str:
    return f"r-{secrets.token_hex(8)}"
