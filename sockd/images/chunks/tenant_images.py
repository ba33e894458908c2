"""The manifests and startup profiles of one tenant's images in a chunk store: their keys, and the seal of manifests.

Owns nothing. Any thread may call; reads and writes block.
"""

from __future__ import annotations

from sockd.base.errors import Tampered
from sockd.images.chunks.image_keys import ImageKeys
from sockd.images.chunks.layout import Image, check_part, manifest_key, profile_key
from sockd.images.chunks.manifest import Manifest, seal, unseal
from sockd.images.chunks.store import ChunkStore, check_root


class TenantImages:
    """Each method that reads or writes may raise StoreUnavailable and StoreFull."""

    def __init__(self, store: ChunkStore, keys: ImageKeys, tenant: str) -> None:
        self.tenant = check_part(tenant, "a tenant's name")
        self._store = store
        self._keys = keys

    @property
    def key(self) -> bytes:
        """What seals this tenant's manifests and startup profiles."""
        return self._keys.tenant_key(self.tenant)

    def seal(self, manifest: Manifest) -> bytes:
        """A manifest as it may lie on a disk."""
        return seal(manifest, self.key)

    def unseal(self, data: bytes, *, root: str, image: str) -> Manifest:
        """Raises: Tampered; also when `root` may not name a root."""
        try:
            check_root(root)
        except ValueError:
            raise Tampered("a copy of a manifest does not say of which root it is") from None
        return unseal(data, self.key, root=root, image=image)

    def manifest(self, root: str, image: str) -> Manifest | None:
        """The manifest of an image in a root, None without one. Raises: Tampered."""
        data = self.sealed_manifest(root, image)
        return self.unseal(data, root=root, image=image) if data is not None else None

    def sealed_manifest(self, root: str, image: str) -> bytes | None:
        """As `manifest`, still sealed."""
        return self._read(manifest_key(root, self.named(image)))

    def put_manifest(self, manifest: Manifest) -> None:
        """Write a manifest, whose chunks are all in its root."""
        self._store.put_object(manifest_key(manifest.root, self.named(manifest.image)), self.seal(manifest))

    def profile(self, root: str, image: str) -> bytes | None:
        """The startup profile of an image in a root, None without one; it says itself of which bytes it is."""
        return self._read(profile_key(root, self.named(image)))

    def put_profile(self, root: str, image: str, data: bytes) -> None:
        """Write the startup profile of an image."""
        self._store.put_object(profile_key(root, self.named(image)), data)

    def named(self, image: str) -> Image:
        """An image of this tenant."""
        return Image(self.tenant, image)

    def _read(self, key: str) -> bytes | None:
        found = self._store.get_object(key)
        return found.data if found is not None else None
