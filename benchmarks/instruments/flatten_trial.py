"""One image flattened into a file, for the benchmark of images and for a look at an image with other tools (dump.erofs, mount).

    python -m benchmarks.instruments.flatten_trial REFERENCE FILE

Prints JSON: the image's digest, bytes, chunks of metadata, seconds until the end of each step, bytes of a sealed manifest. The
import process does the same in a sandbox; this one trusts the image."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

from sockd.images.chunks.chunk import Chunk, is_zero
from sockd.images.chunks.manifest import Manifest, seal
from sockd.images.registry.limits import Limits
from sockd.images.registry.merge import apply_layers
from sockd.images.registry.reference import Reference
from sockd.images.registry.sources import open_source
from sockd.images.registry.unpacked import UnpackedLayers
from sockd.isolation.roots import image_base
from sockd.linux.erofs.layout import Layout
from sockd.linux.erofs.mount_points import add_mount_points


def flatten(reference: str, path: Path) -> dict[str, object]:
    """Write an image's file system. Raises: SockdError, OSError."""
    limits, began, steps = Limits(), time.perf_counter(), {}
    chunks: list[Chunk | None] = []
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(dir=path.parent))
        source = stack.enter_context(closing(open_source(Reference.parse(reference), scratch, limits=limits)))
        image = source.resolve()
        layers = stack.enter_context(closing(UnpackedLayers.fetch(source, image.layers, scratch, limits)))
        steps["unpack"] = time.perf_counter() - began
        merged = apply_layers(layers, limits)
        add_mount_points(
            merged.tree, directories=image_base.DIRECTORIES, files=image_base.FILES, places=image_base.PLACES
        )
        steps["merge"] = time.perf_counter() - began
        layout = Layout.plan(merged.tree)
        steps["plan"] = time.perf_counter() - began
        with open(path, "wb") as file:
            for piece in layout.chunks(layers):
                file.write(piece)
                name = hashlib.sha256(piece).digest()
                chunks.append(None if is_zero(piece) else Chunk(name, name))
        steps["write"] = time.perf_counter() - began
    header = json.dumps({"metadata_chunks": layout.metadata_chunks}).encode()
    sealed = seal(Manifest(image.digest, layout.size_bytes, "root", tuple(chunks), header), os.urandom(32))
    return {
        "digest": image.digest,
        "size_bytes": layout.size_bytes,
        "metadata_chunks": layout.metadata_chunks,
        "inodes": len(merged.tree),
        "seconds_until": steps,
        "manifest_bytes": len(sealed),
    }


if __name__ == "__main__":
    print(json.dumps(flatten(sys.argv[1], Path(sys.argv[2]))))
