"""Images as OCI layouts, from layers that are tar files: an image without a builder of images.

The layers are not compressed: what is compared is what is in them. Of the same layers an image has the same digest."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


def write_layer(path: Path, files: Iterable[tuple[str, Path]], *, mtime_s: int | None = None) -> Path:
    """A layer with files of this machine. Args: files: names in the image, and where the files are. mtime_s: of all."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, source in files:
            member = tar.gettarinfo(str(source), name)
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = int(member.mtime) if mtime_s is None else mtime_s
            if member.isreg():
                with source.open("rb") as file:
                    tar.addfile(member, file)
            else:
                tar.addfile(member)
    return path


def write_text_layer(path: Path, texts: Mapping[str, str], *, mtime_s: int, mode: int = 0o644) -> Path:
    """A layer with a few files of text."""
    with tarfile.open(path, "w") as tar:
        for name, text in texts.items():
            data = text.encode()
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(data), mtime_s, mode
            tar.addfile(member, io.BytesIO(data))
    return path


def files_below(top: Path, prefix: str) -> list[tuple[str, Path]]:
    """All that is in a directory, by name."""
    return [(f"{prefix}/{path.relative_to(top)}", path) for path in sorted(top.rglob("*"))]


def write_layout(directory: Path, layers: Sequence[Path], config: Mapping[str, Any] | None = None) -> None:
    """An OCI layout with one image of these layers, which it links to. Args: config: `Cmd`, `Env` and so on."""
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    described = [_link(blobs, layer) for layer in layers]
    settings = {
        "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
        "os": "linux",
        "config": dict(config or {}),
        "rootfs": {"type": "layers", "diff_ids": [each["digest"] for each in described]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _json(blobs, settings, CONFIG),
        "layers": described,
    }
    index = {"schemaVersion": 2, "manifests": [_json(blobs, manifest, MANIFEST)]}
    (directory / "index.json").write_text(json.dumps(index))
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def unpack(layers: Iterable[Path], directory: Path) -> None:
    """The files of an image in a directory, for tools that read one; the layers have no whiteouts."""
    for layer in layers:
        with tarfile.open(layer) as tar:
            tar.extractall(directory, filter=_as_it_is)


def _as_it_is(member: tarfile.TarInfo, _: str) -> tarfile.TarInfo:
    return member


def _link(blobs: Path, layer: Path) -> dict[str, Any]:
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not (blobs / digest).exists():
        os.link(layer, blobs / digest)
    return {"mediaType": LAYER, "digest": f"sha256:{digest}", "size": layer.stat().st_size}


def _json(blobs: Path, value: Mapping[str, Any], media_type: str) -> dict[str, Any]:
    data = json.dumps(value, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def is_file(path: Path) -> bool:
    """A regular file or a symbolic link, and readable; not a directory's name."""
    try:
        return stat.S_ISREG(path.lstat().st_mode) or path.is_symlink()
    except OSError:
        return False
