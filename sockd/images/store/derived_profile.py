"""A startup profile for an image that has none: that of an image like it, such as the build before it.

Nearly all chunks of a new build are those of the build before, and its start reads nearly the same. Nothing is stored: the
start is recorded, and the image's own profile is there from then on. A profile opens with the key of this worker's tenant alone,
so none is derived across tenants. All functions block.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sockd.base.errors import ChunkStoreFailed, Tampered
from sockd.images.chunks.catalog import Catalog
from sockd.images.chunks.manifest import Manifest, chunk_names
from sockd.images.profiles.profile import OpenProfile
from sockd.images.store.image_record import ImageRecord
from sockd.images.store.kept_copies import (
    PROFILE,
    kept_copy,
    kept_profile,
    opened_manifest,
    sealed_manifest,
    stored_profile,
)

MOST_TRIED = 3
"""Builds of the repository, and other images, whose profiles are opened."""
MOST_COMPARED = 16
"""Other images whose manifests are read, to find those that share most chunks."""
LEAST_SHARE = 0.5
"""The least share of an image's chunks that the other image must have, too."""
MOST_CHUNKS = 1 << 16
"""The most chunks of an image, 32 GB: for more, to find the counterparts takes too long."""

_log = logging.getLogger(__name__)


class Parent(NamedTuple):
    """An image whose profile may do for another one."""

    record: ImageRecord
    directory: Path
    manifest: bytes
    """The kept copy."""
    share: float
    """The share of the other image's chunks that both have."""


def derived_profile(
    catalog: Catalog,
    record: ImageRecord,
    manifest: Manifest,
    others: Sequence[ImageRecord],
    images: Path,
    *,
    asks_store: bool,
) -> OpenProfile | None:
    """A profile for an image, which the caller closes; None: no other image is like it, or has a profile.

    Args:
        others: this worker's images; the image may be among them.
        images: the directory of `ImageStore`.
        asks_store: whether the store may be asked for one profile."""
    if len(manifest.chunks) > MOST_CHUNKS:
        return None
    for parent in _parents(record, manifest, others, images):
        try:
            parent_manifest = opened_manifest(catalog, parent.manifest, parent.record.stored_name)
        except Tampered:  # it may be of the tenant that this worker had before
            continue
        if len(parent_manifest.chunks) > MOST_CHUNKS:
            continue
        profile = kept_profile(catalog, parent_manifest, parent.directory)
        if profile is None and asks_store and parent.record.repository == record.repository:
            asks_store = False
            with contextlib.suppress(ChunkStoreFailed):
                profile = stored_profile(catalog, parent_manifest, parent.directory)
        if profile is None:
            continue
        _log.info(
            "image %s starts from the startup profile of %s, which has %d %% of its chunks",
            record.digest[:19],
            parent.record.digest[:19],
            100 * parent.share,
        )
        return profile.derived(parent_manifest, manifest)
    return None


def possible_parents(
    record: ImageRecord, others: Sequence[ImageRecord], has_profile: Callable[[ImageRecord], bool]
) -> tuple[list[ImageRecord], list[ImageRecord]]:
    """POLICY: (builds of the repository that are tried, in this order; other images that are compared).

    The latest build first, but those whose profiles are here before those whose profiles the store may have. Of other images
    only those whose profiles are here: programs on a common base read other things besides, which should not be fetched."""
    latest_first = sorted((each for each in others if each.digest != record.digest), key=lambda each: -each.imported_at)
    builds = [each for each in latest_first if each.repository == record.repository]
    strangers = (each for each in latest_first if each.repository != record.repository and has_profile(each))
    return (
        sorted(builds, key=lambda each: not has_profile(each))[:MOST_TRIED],
        list(itertools.islice(strangers, MOST_COMPARED)),
    )


def _parents(record: ImageRecord, manifest: Manifest, others: Sequence[ImageRecord], images: Path) -> Iterator[Parent]:
    """Images that share enough chunks, in the order in which their profiles are tried."""
    names = {chunk.name for chunk in manifest.chunks if chunk is not None}
    builds, strangers = possible_parents(record, others, lambda each: (images / each.hex / PROFILE).is_file())
    for each in builds:
        parent = _compared(names, each, images)
        if parent is not None:
            yield parent
    compared = [parent for each in strangers if (parent := _compared(names, each, images)) is not None]
    yield from sorted(compared, key=lambda parent: -parent.share)[:MOST_TRIED]


def _compared(names: set[bytes], other: ImageRecord, images: Path) -> Parent | None:
    """None: it has no manifest here, or too few of these chunks. That its manifest is the worker's own is not sure yet."""
    directory = images / other.hex
    try:
        copy = kept_copy(directory)
        shared = len(names & chunk_names(sealed_manifest(copy)))
    except (OSError, Tampered):
        return None
    if not names or shared < LEAST_SHARE * len(names):
        return None
    return Parent(other, directory, copy, shared / len(names))
