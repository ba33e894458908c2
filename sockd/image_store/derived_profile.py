"""A startup profile for an image that has none: that of an image like it, such as the build before it.

Nearly all chunks of a new build are those of the build before, and its start reads nearly the same. Nothing is stored: the
start is recorded, and the image's own profile is there from then on. A profile opens with the key of this worker's tenant alone,
so none is derived across tenants. All functions block.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from sockd.chunk_agent.profile import OpenProfile
from sockd.chunks.catalog import Catalog
from sockd.chunks.manifest import Manifest, chunk_names
from sockd.image_store.image_record import ImageRecord
from sockd.image_store.kept_copies import (
    PROFILE,
    kept_copy,
    kept_profile,
    opened_manifest,
    sealed_manifest,
    stored_profile,
)
from sockd.plain.errors import ChunkStoreFailed, Tampered

MOST_COMPARED = 16
"""Images whose manifests are read."""
MOST_TRIED = 3
"""Of them, whose profiles are opened."""
LEAST_SHARE = 0.5
"""Of an image's chunks, which the other one has, too."""
MOST_CHUNKS = 1 << 16
"""Of an image, 32 GB: for more, to find the counterparts takes too long."""

_log = logging.getLogger(__name__)


class Parent(NamedTuple):
    """An image whose profile may do for another one."""

    record: ImageRecord
    directory: Path
    manifest: bytes
    """The kept copy."""
    share: float
    """Of the other image's chunks."""
    is_build: bool
    """Whether both are of one repository."""
    has_copy: bool
    """Whether this worker has its profile."""


def derived_profile(
    catalog: Catalog,
    record: ImageRecord,
    manifest: Manifest,
    others: Sequence[ImageRecord],
    images: Path,
    stack: ExitStack,
    *,
    asks_store: bool,
) -> OpenProfile | None:
    """A profile for an image, which the stack closes; None: no other image is like it, or has a profile.

    Args:
        others: this worker's images; the image may be among them.
        images: the directory of `ImageStore`.
        asks_store: whether the store may be asked for one profile."""
    if len(manifest.chunks) > MOST_CHUNKS:
        return None
    compared = (_compared(record, manifest, other, images) for other in likely_parents(record, others))
    for parent in chosen_parents([each for each in compared if each is not None]):
        try:
            parent_manifest = opened_manifest(catalog, parent.manifest, parent.record.stored_name)
        except Tampered:  # it may be of the tenant that this worker had before
            continue
        if len(parent_manifest.chunks) > MOST_CHUNKS:
            continue
        profile = kept_profile(catalog, parent_manifest, parent.directory)
        if profile is None and asks_store and parent.is_build:
            asks_store = False
            with contextlib.suppress(ChunkStoreFailed):
                profile = stored_profile(catalog, parent_manifest, parent.directory)
        if profile is None:
            continue
        stack.callback(profile.close)
        _log.info(
            "image %s starts from the startup profile of %s, which has %d %% of its chunks",
            record.digest[:19],
            parent.record.digest[:19],
            100 * parent.share,
        )
        return profile.derived(parent_manifest, manifest)
    return None


def likely_parents(record: ImageRecord, others: Sequence[ImageRecord]) -> list[ImageRecord]:
    """POLICY: which images are compared with one: those of its repository first, then others, each the latest import first."""
    found = [each for each in others if each.digest != record.digest]
    return sorted(found, key=lambda each: (each.repository != record.repository, -each.imported_at))[:MOST_COMPARED]


def chosen_parents(compared: Sequence[Parent]) -> list[Parent]:
    """POLICY: whose profiles are tried. Builds of the repository first, of them those whose profiles are here; then the images
    that share most chunks, if their profiles are here, as other programs on a common base read other things.

    Args: compared: as `likely_parents` orders them."""
    alike = [each for each in compared if each.share >= LEAST_SHARE and (each.is_build or each.has_copy)]
    return sorted(alike, key=lambda each: (not each.is_build, not each.has_copy, 0 if each.is_build else -each.share))[
        :MOST_TRIED
    ]


def _compared(record: ImageRecord, manifest: Manifest, other: ImageRecord, images: Path) -> Parent | None:
    """None: it has no manifest here. What its chunks are called is not authenticated yet."""
    directory = images / other.hex
    try:
        copy = kept_copy(directory)
        theirs = chunk_names(sealed_manifest(copy))
    except (OSError, Tampered):
        return None
    names = {chunk.name for chunk in manifest.chunks if chunk is not None}
    return Parent(
        other,
        directory,
        copy,
        share=len(names & theirs) / len(names) if names else 0.0,
        is_build=other.repository == record.repository,
        has_copy=(directory / PROFILE).is_file(),
    )
