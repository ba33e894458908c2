"""The references of one worker to images in a chunk store: objects that keep an image from the garbage collector.

Owns what the worker holds, as read from the store once, and which uploads are under way. It has no lock: its owner has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sockd.images.chunks.layout import REFERENCES, Reference
from sockd.images.chunks.store import ChunkStore
from sockd.images.chunks.tenant_images import TenantImages


class References:
    """`load`, then everything else. Methods that write may raise StoreUnavailable and StoreFull."""

    def __init__(self, store: ChunkStore, worker: str, images: TenantImages) -> None:
        self._store = store
        self._worker = worker
        self._images = images
        self._held: dict[str, list[str]] = {}
        """Roots from which this worker uses an image, the newest first."""
        self._uploading: Counter[tuple[str, str]] = Counter()
        self.is_loaded = False

    def load(self, order: Sequence[str]) -> None:
        """Read the references that the store has. Args: order: all roots, the newest last."""
        for reference in self._written():
            if reference.image.tenant == self._images.tenant:
                self._held.setdefault(reference.image.name, []).append(reference.root)
        for roots in self._held.values():
            roots.sort(key=lambda root: -order.index(root) if root in order else 1)
        self.is_loaded = True

    def images(self) -> list[str]:
        """The images that this worker holds."""
        return sorted(self._held)

    def roots(self, image: str) -> list[str]:
        """The roots from which it uses an image, the newest first; none: it does not hold the image."""
        return list(self._held.get(image, ()))

    def write(self, image: str, root: str) -> None:
        """Write a reference. It protects the image if the root is active afterwards."""
        self._store.put_object(self._reference(image, root).key, b"")

    def write_lost(self) -> None:
        """Write again what was deleted by others."""
        held = {(image, root) for image, roots in self._held.items() for root in roots} | set(self._uploading)
        written = set(self._written())
        for image, root in held:
            if self._reference(image, root) not in written:
                self.write(image, root)

    def begin_upload(self, image: str, root: str) -> None:
        """Keep the reference until `end_upload` was called as often, held or not."""
        self._uploading[image, root] += 1

    def end_upload(self, image: str, root: str) -> None:
        """Note the end of an upload; `hold` or `drop_unused` must follow."""
        self._uploading[image, root] -= 1
        if self._uploading[image, root] <= 0:
            del self._uploading[image, root]

    def hold(self, image: str, root: str) -> None:
        """Use an image from this root, for which there is a reference. Its order among the others stays if it is among them."""
        roots = self._held.setdefault(image, [])
        if root not in roots:
            roots.insert(0, root)

    def prefer(self, image: str, root: str) -> None:
        """Use a held image from this root first, for which there is a reference."""
        self._held[image] = [root, *(each for each in self._held[image] if each != root)]

    def hold_only(self, image: str, root: str) -> None:
        """Use a held image from this root alone."""
        others, self._held[image] = self._held[image], [root]
        for each in others:
            self.drop_unused(image, each)

    def remove(self, image: str) -> None:
        """Hold an image no more; one that is not held is fine."""
        for root in self._held.pop(image, []):
            self.drop_unused(image, root)

    def drop_unused(self, image: str, root: str) -> None:
        """Delete a reference unless the image is held from this root or being uploaded to it."""
        if root not in self._held.get(image, ()) and not self._uploading[image, root]:
            self._store.delete_object(self._reference(image, root).key)

    def _written(self) -> list[Reference]:
        return [Reference.parse(key) for key in self._store.list_objects(f"{REFERENCES}{self._worker}/")]

    def _reference(self, image: str, root: str) -> Reference:
        return Reference(self._worker, root, self._images.named(image))
