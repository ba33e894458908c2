"""Docker archives: what `docker save` writes, by its manifest.json. Newer ones are OCI layouts at the same time.

Its layers have no digest of their own that could be checked; each is checked against the configuration's diff_id when it is
unpacked.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import BinaryIO, cast

import msgspec

from sockd.base.errors import BadImage, NoSuchImage
from sockd.images.registry import documents
from sockd.images.registry.archive import Archive
from sockd.images.registry.documents import Descriptor, Manifest
from sockd.images.registry.image import Layer, OciImage, Platform
from sockd.images.registry.limits import Limits
from sockd.images.registry.reference import Reference, familiar

MANIFEST = "manifest.json"


class _Image(msgspec.Struct, frozen=True, rename="pascal"):
    config: str
    layers: tuple[str, ...]
    repo_tags: tuple[str, ...] | None = None


class DockerArchiveSource:
    """One image of a docker archive; see `image.Source`. Owns the archive."""

    def __init__(self, archive: Archive, tag: str, platform: Platform, limits: Limits) -> None:
        """Args: tag: NAME:TAG; empty: the archive has one image."""
        self._archive = archive
        self._tag = tag
        self._platform = platform
        self._limits = limits
        self._members: dict[str, str] = {}

    def resolve(self, on_digest: Callable[[str], None] = lambda digest: None) -> OciImage:
        data = self._archive.read(MANIFEST, documents.MOST_MANIFEST_BYTES)
        image = self._named(documents.decoded(tuple[_Image, ...], data, MANIFEST))
        config = self._archive.read(_name(image.config), documents.MOST_CONFIG_BYTES)
        digest = documents.digest_of(config)
        label = f"the image {self._tag or digest[:19]}"
        configuration = documents.configuration_of(config, label)
        diff_ids = documents.diff_ids_of(configuration, len(image.layers), label)
        layers = tuple(
            Descriptor(diff_id, self._archive.size_bytes(_name(layer)))
            for diff_id, layer in zip(diff_ids, image.layers, strict=True)
        )
        self._members = {diff_id: _name(layer) for diff_id, layer in zip(diff_ids, image.layers, strict=True)}
        manifest = Manifest(Descriptor(digest), layers)
        documents.check_layers(manifest, label, self._limits.max_layers)
        on_digest(digest)
        return documents.image_of(digest, manifest, config, self._platform, label)

    def open_layer(self, layer: Layer) -> BinaryIO:
        return cast(BinaryIO, self._archive.open_member(self._members[layer.digest]))

    def close(self) -> None:
        self._archive.close()

    def _named(self, images: tuple[_Image, ...]) -> _Image:
        names = [name for image in images for name in image.repo_tags or ()]
        if self._tag:
            for image in images:
                if self._tag in map(_familiar, image.repo_tags or ()):
                    return image
            raise NoSuchImage(f"the archive has no image {self._tag!r}; it has {', '.join(names)[:300] or 'none'}")
        if not images:
            raise NoSuchImage("the archive has no image")
        if len(images) > 1:
            raise BadImage(f"the archive has several images; name one of them: {', '.join(names)[:300]}")
        return images[0]


def _familiar(name: str) -> str:
    """As `Reference.parse` leaves a tag of an archive: skopeo writes docker's defaults, docker does not."""
    try:
        return familiar(Reference.parse(name))
    except BadImage:
        return name


def _name(text: str) -> str:
    return posixpath.normpath(text).lstrip("/")
