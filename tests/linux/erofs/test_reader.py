"""The reader finds files as the kernel would within the image, and raises one error for anything that is no image."""

from __future__ import annotations

import os
import random
import stat
import subprocess
from pathlib import Path

import pytest

from sockd.base.errors import DamagedImage
from sockd.base.file_tree import FileTree, Inode
from sockd.linux.erofs import format
from tests.support.images.erofs_reader import ErofsReader
from tests.support.images.image_files import (
    Layers,
    directory,
    facts_of_directory,
    facts_of_reader,
    mounted,
    reader_of,
    symlink,
    written,
)
from tests.support.images.image_tools import needs


def an_image() -> bytes:
    layers = Layers()
    tree: FileTree = {
        "": directory(),
        "bin": symlink("usr/bin"),
        "usr": directory(),
        "usr/bin": directory(),
        "usr/bin/python3": symlink("python3.13"),
        "usr/bin/python3.13": layers.file(b"\x7fELF", mode=0o755),
        "usr/up": symlink("../../../bin"),
        "usr/absolute": symlink("/usr/bin/python3"),
        "loop": symlink("loop"),
        "big": layers.file(b"x" * 10_000),
        "pipe": Inode(mode=stat.S_IFIFO, xattrs={"trusted.a": b"1"}),
        "long": symlink("x" * 4090),
    }
    tree |= {f"usr/bin/{n}": Inode(mode=stat.S_IFREG, xattrs={"user.n": bytes([n])}) for n in range(250)}
    return written(tree, layers)


@pytest.fixture(scope="module")
def reader() -> ErofsReader:
    return reader_of(an_image())


def test_links_are_followed_within_the_image(reader: ErofsReader) -> None:
    for path in ("bin/python3", "usr/up/python3", "usr/absolute", "/usr//bin/./python3", "bin/../bin/python3"):
        assert reader.resolve(path) == "usr/bin/python3.13"
        assert reader.read_file(path) == b"\x7fELF"
    assert stat.S_ISLNK(reader.stat("bin/python3").mode) and reader.stat("bin/python3.13").size == 4
    assert reader.resolve("../..") == "" and "python3" in reader.list_directory("bin")


def test_lookups_fail_as_system_calls_do(reader: ErofsReader) -> None:
    for path, error in (
        ("nowhere", FileNotFoundError),
        ("big/a", NotADirectoryError),
        ("usr", IsADirectoryError),
        ("loop", OSError),
        ("pipe", OSError),
    ):
        with pytest.raises(error):
            reader.read_file(path)
    with pytest.raises(OSError, match="too large"):
        reader.read_file("big", limit_bytes=9999)


@pytest.mark.root
@needs("mkfs.erofs")
def test_an_image_of_mkfs_erofs_is_read_as_the_kernel_reads_it(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "sub").mkdir(parents=True)
    for size in (0, 1, 4095, 4096, 4097, 70_000):
        (top / f"{size}").write_bytes(random.Random(size).randbytes(size))
    os.link(top / "4097", top / "sub" / "hard")
    (top / "link").symlink_to("sub/hard")
    for number in range(5):
        (top / "sub" / f"{number}").touch()
        os.setxattr(top / "sub" / f"{number}", "user.shared", b"the same")
        os.setxattr(top / "sub" / f"{number}", "user.own", b"%d" % number)
    for options in ([], ["-x0"], ["-T1600000000"]):
        subprocess.run(
            ["mkfs.erofs", "--quiet", *options, tmp_path / "image", top], check=True, stdout=subprocess.DEVNULL
        )
        found = facts_of_reader(reader_of((tmp_path / "image").read_bytes()))
        with mounted(tmp_path / "image") as shown:
            expected = facts_of_directory(shown)
        assert {path: (facts.data, facts.xattrs, facts.mode) for path, facts in found.items()} == {
            path: (facts.data, facts.xattrs, facts.mode) for path, facts in expected.items()
        }


def test_an_image_cut_short_anywhere_is_damaged() -> None:
    image = an_image()
    used = reader_of(image).super_block.size_bytes
    for size in (0, 1023, 4095, 4096, used // 2, used - 4096):
        with pytest.raises(DamagedImage):
            facts_of_reader(reader_of(image[:size]))


def resealed(image: bytearray) -> bytes:
    """With the checksum that belongs to its first block, as somebody who forges an image would have it."""
    at = format.EROFS_SUPER_OFFSET + 4
    image[at : at + 4] = bytes(4)
    image[at : at + 4] = format.checksum(memoryview(image)[: format.BLOCK_BYTES]).to_bytes(4, "little")
    return bytes(image)


@pytest.mark.parametrize("seed", range(4))
def test_forged_images_are_read_or_damaged(seed: int) -> None:
    image, chance = an_image(), random.Random(seed)
    metadata = 40_000  # the rest of the first chunk is zeros, and then comes data
    for _ in range(100):
        forged = bytearray(image)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(format.EROFS_SUPER_OFFSET, metadata)
            size = chance.choice((1, 1, 2, 4, 8))
            forged[at : at + size] = chance.choice((chance.randbytes(size), b"\xff" * size, bytes(size)))
        read = resealed(forged) if chance.random() < 0.9 else bytes(forged)
        try:
            facts_of_reader(reader_of(read))
        except DamagedImage:
            pass


def test_a_directory_in_itself_is_damaged() -> None:
    image = bytearray(written({"": directory(), "d": directory(), "d/e": directory()}, Layers()))
    reader = reader_of(bytes(image))
    outer, inner = reader.stat("d").nid, reader.stat("d/e").nid
    entry = format.DIRENT.pack(inner, 0, 2, 0)[:8]
    at = image.index(entry, outer * format.SLOT_BYTES)
    image[at : at + 8] = outer.to_bytes(8, "little")
    with pytest.raises(DamagedImage, match="in two directories"):
        facts_of_reader(reader_of(resealed(image)))


def test_directories_that_share_their_blocks_are_bounded() -> None:
    tree: FileTree = {"": directory(), "a": directory(), "b": directory()}
    tree |= {f"a/{n:03d}": Inode(mode=stat.S_IFREG) for n in range(900)}
    tree |= {f"b{n:04d}": directory() for n in range(1000)}
    image = bytearray(written(tree, Layers()))
    reader = reader_of(bytes(image))
    nids = {path: inode.nid for path, inode in reader.walk()}
    shared = nids["a"] * format.SLOT_BYTES
    for n in range(1000):
        at = nids[f"b{n:04d}"] * format.SLOT_BYTES
        image[at : at + format.INODE_EXTENDED.size] = image[shared : shared + format.INODE_EXTENDED.size]
    with pytest.raises(DamagedImage):
        facts_of_reader(reader_of(resealed(image)))
