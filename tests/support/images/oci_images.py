"""Container images for tests: layers from a few lines, layouts on disk, and the independent tools that make and read them.

A fresh machine has none of the tools; tests that need one are skipped there (`needs`).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sockd.images.registry import documents

EPOCH = 1_700_000_000


def needs(*tools: str) -> pytest.MarkDecorator:
    """Skip a test where one of these programs is not installed."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def member(name: str, data: bytes | None = None, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A file with this data, a directory (name/), or what `fields` of TarInfo make of it."""
    info = tarfile.TarInfo(name)
    info.mtime = EPOCH
    info.mode = 0o644
    if name.endswith("/") and data is None:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    for key, value in fields.items():
        setattr(info, key, value)
    info.size = len(data or b"")
    return info, data or b""


def link(name: str, target: str, *, is_hard: bool = False) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.LNKTYPE if is_hard else tarfile.SYMTYPE, linkname=target)


def tar(members: Iterable[tuple[tarfile.TarInfo, bytes]], format: int = tarfile.PAX_FORMAT) -> bytes:
    """A layer with these members in this order."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def descriptor(data: bytes, media_type: str, **fields: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest(data), "size": len(data), **fields}


def configuration(layers: Sequence[bytes], **run: Any) -> bytes:
    """Return the configuration of an image for linux/amd64. Args: layers: uncompressed; run: its `config`."""
    diff_ids = [digest(layer) for layer in layers]
    return json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": run,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }
    ).encode()


class Blobs(dict[str, bytes]):
    """Blobs by digest, and the manifest of one image of them."""

    def keep(self, data: bytes) -> bytes:
        self[digest(data)] = data
        return data

    def image(self, layers: Sequence[bytes], *, compress: bool = True, **run: Any) -> bytes:
        """The manifest of an image with these layers, all blobs kept."""
        stored = [self.keep(gzip.compress(layer, 1, mtime=0) if compress else layer) for layer in layers]
        config = self.keep(configuration(layers, **run))
        kind = "application/vnd.oci.image.layer.v1.tar" + ("+gzip" if compress else "")
        manifest = {
            "schemaVersion": 2,
            "mediaType": documents.OCI_MANIFEST,
            "config": descriptor(config, documents.OCI_CONFIG),
            "layers": [descriptor(layer, kind) for layer in stored],
        }
        return self.keep(json.dumps(manifest).encode())

    def write_layout(self, path: Path, manifests: dict[str, bytes]) -> Path:
        """An OCI layout with these manifests by their tags."""
        (path / "blobs" / "sha256").mkdir(parents=True)
        for name, data in self.items():
            (path / "blobs" / name.replace(":", "/")).write_bytes(data)
        listed = [
            descriptor(data, documents.OCI_MANIFEST, annotations={documents.REF_NAME: tag} if tag else {})
            for tag, data in manifests.items()
        ]
        (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": listed}))
        (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        return path


def layout(path: Path, layers: Sequence[bytes], tag: str = "latest", *, compress: bool = True, **run: Any) -> Path:
    """An OCI layout with one image of these layers."""
    blobs = Blobs()
    return blobs.write_layout(path, {tag: blobs.image(layers, compress=compress, **run)})
