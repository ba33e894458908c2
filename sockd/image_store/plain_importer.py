"""An importer that keeps each image whole, as one EROFS file on the worker's disk."""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from sockd.erofs.layout import Layout
from sockd.erofs.mount_points import add_mount_points
from sockd.image_store.image_record import ImageRecord
from sockd.image_store.image_store import Progress
from sockd.images import image_base
from sockd.oci.limits import Limits
from sockd.oci.merge import apply_layers
from sockd.oci.reference import Kind, Reference
from sockd.oci.sources import open_source
from sockd.oci.unpacked import UnpackedLayers
from sockd.plain.blocking import in_thread

FILE = "image.erofs"


class PlainImporter:
    """An `Importer`."""

    async def import_image(self, reference: str, directory: Path, progress: Progress, *, path: str = "") -> ImageRecord:
        return await in_thread(_import, reference, path, directory)

    async def open(self, record: ImageRecord, directory: Path) -> str:
        return str(directory / FILE)

    async def close(self, record: ImageRecord) -> None:
        return

    async def remove(self, record: ImageRecord) -> None:
        return

    async def aclose(self) -> None:
        return


def uploaded(reference: Reference) -> Reference:
    """How an upload is read: a client sends the directory of a layout as an archive, and what it has on its standard input."""
    kinds: dict[Kind, Kind] = {"oci": "oci-archive", "stdin": "path"}
    return replace(reference, kind=kinds.get(reference.kind, reference.kind))


def _import(reference: str, path: str, directory: Path) -> ImageRecord:
    parsed, limits = Reference.parse(reference), Limits()
    opened = uploaded(parsed) if path else parsed
    with closing(open_source(opened, str(directory), path=path, limits=limits)) as source:
        image = source.resolve()
        with closing(UnpackedLayers.fetch(source, image.layers, str(directory), limits)) as layers:
            merged = apply_layers(layers, limits)
            add_mount_points(merged.tree, directories=image_base.DIRECTORIES, files=image_base.FILES)
            layout = Layout.plan(merged.tree)
            with open(directory / FILE, "wb") as file:
                for chunk in layout.chunks(layers):
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
    return ImageRecord(
        digest=image.digest,
        reference=str(parsed),
        config=image.config,
        size_bytes=layout.size_bytes,
        layers=len(image.layers),
        imported_at=time.time(),
        notes=merged.notes,
    )
