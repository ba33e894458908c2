"""What images have in common, in chunks of 512 KiB: by sockd's layout, by that of mkfs.erofs and of mke2fs, and the floor, which
is the same in blocks of 4 KiB.

For each variant: chunks that are not chunks of A. For all: chunks of each image together, per chunk that is stored. Zeros are not
counted. The paper's uploads have 4.3 % of their chunks to themselves, and 80 % of uploads none.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness.results import Result
from benchmarks.harness.run import Run
from benchmarks.image_parts import oci_layout, variants
from benchmarks.image_parts.variants import NoVariants, Variant

DISK = "/var/tmp"
CHUNK, BLOCK = 512 << 10, 4 << 10
CHANGES = {
    "E": "changed handler",
    "R": "built again",
    "B": "patch of Django",
    "G": "updated base",
    "C": "numpy 2",
    "D": "other packages",
    "F": "Flask alone",
}
OURS, FLOOR = "sockd", "4 KiB blocks"
UUID = "00000000-0000-4000-8000-000000000000"


def measure(run: Run, result: Result) -> None:
    """Needs dpkg(1) and the index of Python packages."""
    run.say("images by pip and this machine's packages")
    with tempfile.TemporaryDirectory(prefix="sockd-images-", dir=DISK) as directory:
        scratch = Path(directory)
        try:
            images = variants.build(scratch, run.pick("AERBGCDF", "AEBG"))
        except NoVariants as error:
            result.notes.append(f"dedup: not measured: {error}")
            return
        found: dict[str, dict[str, list[bytes]]] = {}
        for image in images:
            run.say(f"dedup of {image.name}")
            flattened = flatten(image, scratch / "ours", result)
            add(found, OURS, image.name, digests(scratch / "ours", CHUNK))
            add(found, FLOOR, image.name, digests(scratch / "ours", BLOCK))
            if image.name == "A":
                check_again(image, scratch, flattened, result)
            for layout, write in stock_writers(run).items():
                write(image, scratch, scratch / "stock")
                add(found, layout, image.name, digests(scratch / "stock", CHUNK))
    report(found, result)


def add(found: dict[str, dict[str, list[bytes]]], layout: str, image: str, pieces: list[bytes]) -> None:
    found.setdefault(layout, {})[image] = pieces


def flatten(image: Variant, path: Path, result: Result) -> dict[str, float]:
    """Have sockd write an image in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.instruments.flatten_trial", image.reference, str(path)]
    environment = os.environ | {"PYTHONHASHSEED": str(len(result.rows))}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    facts: dict[str, float] = json.loads(run.stdout)
    return facts


def check_again(image: Variant, scratch: Path, facts: dict[str, float], result: Result) -> None:
    """The same image once more, and what its manifest and its flattening cost."""
    flatten(image, scratch / "again", result)
    before, after = digests(scratch / "ours", CHUNK), digests(scratch / "again", CHUNK)
    (scratch / "again").unlink()
    result.aim("dedup: chunks that the same image has anew", len(set(after) - set(before)), "<= 0")
    manifest = 100 * facts["manifest_bytes"] / facts["size_bytes"]
    result.add("A", "manifest, of the image", "%", [manifest], tail=False)
    result.aim("dedup: manifest, % of the image", manifest, "<= 0.013")


def digests(path: Path, size: int) -> list[bytes]:
    """Return the digest of each piece of a file that is not zeros."""
    zeros, found = bytes(size), []
    with path.open("rb") as file:
        while piece := file.read(size):
            if piece != zeros[: len(piece)]:
                found.append(hashlib.blake2b(piece, digest_size=16).digest())
    return found


def stock_writers(run: Run) -> dict[str, Callable[[Variant, Path, Path], None]]:
    """Writers of file systems that are installed here."""
    writers = {"mkfs.erofs": write_erofs, "mke2fs": write_ext4}
    if run.quick:
        del writers["mke2fs"]
    return {name: write for name, write in writers.items() if shutil.which(name)}


def write_erofs(image: Variant, scratch: Path, path: Path) -> None:
    with unpacked(image, scratch) as top:
        path.unlink(missing_ok=True)
        quietly(["mkfs.erofs", "-U", UUID, str(path), top])


def write_ext4(image: Variant, scratch: Path, path: Path) -> None:
    with unpacked(image, scratch) as top:
        path.unlink(missing_ok=True)
        size_mb = 64 + sum(layer.stat().st_size for layer in image.layers) * 13 // 10 >> 20
        command = ["mke2fs", "-q", "-t", "ext4", "-U", UUID, "-E", f"hash_seed={UUID}", "-d", top]
        quietly([*command, str(path), f"{64 + size_mb}M"])


def unpacked(image: Variant, scratch: Path) -> tempfile.TemporaryDirectory[str]:
    """The files of an image in a directory."""
    top = tempfile.TemporaryDirectory(dir=scratch)
    oci_layout.unpack(image.layers, Path(top.name))
    return top


def quietly(command: list[str]) -> None:
    environment = os.environ | {"E2FSPROGS_FAKE_TIME": str(variants.BUILT_S)}
    subprocess.run(command, check=True, capture_output=True, env=environment)


def report(found: dict[str, dict[str, list[bytes]]], result: Result) -> None:
    """Rows and aims."""
    for layout, images in found.items():
        known = set(images["A"])
        for name, pieces in images.items():
            if name != "A":
                new = 100 * sum(piece not in known for piece in pieces) / len(pieces)
                result.add(CHANGES[name], f"new pieces, {layout}", "%", [new], tail=False)
        stored = len({piece for pieces in images.values() for piece in pieces})
        size = BLOCK if layout == FLOOR else CHUNK
        result.add("all images", f"stored, {layout}", "MB", [stored * size / 1e6], tail=False)
        result.add("all images", f"of each, per stored piece, {layout}", "x", [total(images) / stored], tail=False)
    ours, floor = (result.row("all images", f"of each, per stored piece, {layout}").p50 for layout in (OURS, FLOOR))
    result.aim("dedup: per stored chunk, times that of 4 KiB blocks", ours / floor, ">= 0.9")
    for name, limit in (("E", "<= 0.5"), ("B", "<= 2"), ("G", "<= 15")):
        value = result.row(CHANGES[name], f"new pieces, {OURS}").p50
        result.aim(f"dedup: {CHANGES[name]}, % new chunks", value, limit)


def total(images: dict[str, list[bytes]]) -> int:
    return sum(map(len, images.values()))
