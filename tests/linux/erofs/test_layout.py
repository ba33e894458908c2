"""Where files are in an image, and what images with files in common have in common."""

from __future__ import annotations

import hashlib
import random
import stat
import tracemalloc
from collections.abc import Callable, Sequence

import pytest

from sockd.base.errors import BadImage
from sockd.base.file_tree import FileTree, Inode
from sockd.images.chunks import chunk
from sockd.linux.erofs.layout import CHUNK_BYTES, Layout, starts_chunk
from tests.support.images.image_files import Layers, directory, reader_of, symlink, written

SIZES = 0, 300, 4000, 9000, 20_000


def a_system(layers: Layers, *, seed: int = 1, files: int = 1500, sizes: Sequence[int] = SIZES) -> FileTree:
    """Files as a distribution has them: many small ones, a few large ones."""
    noise, tree = random.Random(seed), {"": directory(), "usr": directory()}
    for number in range(files):
        size = noise.choice(sizes)
        tree[f"usr/{number:05d}"] = layers.file(noise.randbytes(size))
    tree["usr/large"] = layers.file(noise.randbytes(3 << 20))
    return tree


def chunks_of(tree: FileTree, layers: Layers) -> set[bytes]:
    return {hashlib.sha256(chunk).digest() for chunk in Layout.plan(tree).chunks(layers)}


def test_files_are_aligned_to_the_chunks_of_the_store() -> None:
    assert CHUNK_BYTES == chunk.CHUNK_BYTES


def test_large_files_start_a_chunk_and_so_do_some_small_ones() -> None:
    layers = Layers()
    tree = a_system(layers)
    reader = reader_of(written(tree, layers))
    starts = {path: inode.pieces[0][0] for path, inode in reader.walk() if stat.S_ISREG(inode.mode) and inode.size}
    cut = [path for path in starts if starts_chunk(path.encode(), tree[path].size)]
    assert "usr/large" in cut and 2 <= len(cut) <= 20
    assert all(starts[path] % CHUNK_BYTES == 0 for path in cut)
    assert all(start % 4096 == 0 for start in starts.values())


def test_what_python_reads_while_it_starts_is_side_by_side() -> None:
    layers = Layers()
    tree = a_system(layers)
    noise = random.Random(1)
    library = "usr/local/lib/python3.12"
    early = [f"{library}/__pycache__/{name}.cpython-312.pyc" for name in ("functools", "ssl", "types")]
    early += [f"{library}/json/__pycache__/decoder.cpython-312.pyc", f"{library}/lib-dynload/math.cpython-312-musl.so"]
    others = [f"{library}/__pycache__/m{number}.cpython-312.pyc" for number in range(300)]
    others += [f"{library}/ssl.py", f"{library}/site-packages/ssl/__pycache__/a.cpython-312.pyc", "ssl.cpython-312.pyc"]
    for path in (*early, *others):
        parts = path.split("/")
        tree |= {"/".join(parts[:depth]): directory() for depth in range(1, len(parts))}
        tree[path] = layers.file(noise.randbytes(20_000))
    reader = reader_of(written(tree, layers))
    starts = {path: inode.pieces[0][0] for path, inode in reader.walk() if stat.S_ISREG(inode.mode) and inode.size}
    assert len({starts[path] // CHUNK_BYTES for path in early}) == 1
    assert not {starts[path] // CHUNK_BYTES for path in early} & {starts[path] // CHUNK_BYTES for path in others}


def test_a_changed_file_changes_the_chunks_that_it_is_in_and_those_of_the_metadata() -> None:
    layers = Layers()
    tree = a_system(layers)
    before = chunks_of(tree, layers)
    tree["usr/00700"] = layers.file(b"changed")
    assert len(chunks_of(tree, layers) - before) <= 1 + Layout.plan(tree).metadata_chunks + CHUNKS_TO_A_CUT


CHUNKS_TO_A_CUT = 12
"""No more with these paths: files after the changed one move until one starts a chunk."""


def test_a_layer_on_top_leaves_the_data_of_the_others_where_it_is() -> None:
    layers = Layers()
    tree = a_system(layers)
    before = chunks_of(tree, layers)
    tree["usr/00000-new"] = layers.file(b"new" * 5000, layer=1)
    layout = Layout.plan(tree)
    assert len(chunks_of(tree, layers) - before) <= layout.metadata_chunks + 1


def test_other_code_in_the_last_layer_changes_its_chunk_and_the_first_one() -> None:
    layers = Layers()
    tree = a_system(layers, files=9000, sizes=(0, 300))
    tree |= {"app": directory(), "app/a.py": layers.file(b"a = 1", layer=1), "app/b.py": layers.file(b"b = 1", layer=1)}
    before = chunks_of(tree, layers)
    assert Layout.plan(tree).metadata_chunks == 2
    tree["app/a.py"] = layers.file(b"a = 1000", layer=1, mtime_s=1_800_000_000)
    tree["app/new.py"] = layers.file(b"", layer=1)
    assert len(chunks_of(tree, layers) - before) == 2


def test_files_of_one_day_are_together_and_move_others_once() -> None:
    layers, noise = Layers(), random.Random(7)
    tree: FileTree = {"": directory()}
    for number in range(40):
        tree[f"{number:02d}"] = directory()
        for part in range(20):
            day = 1_700_000_000 + 86_400 * (part % 10)
            tree[f"{number:02d}/{part}"] = layers.file(noise.randbytes(20_000), mtime_s=day)
    before = chunks_of(tree, layers)
    for number in range(40):
        tree[f"{number:02d}/new"] = layers.file(noise.randbytes(5000), mtime_s=1_700_000_000 + 86_400 * 5)
    layout = Layout.plan(tree)
    assert len(chunks_of(tree, layers) - before) < len(layout.extents) * 21_000 / CHUNK_BYTES * 0.75


def test_the_metadata_is_in_the_first_chunks() -> None:
    layers = Layers()
    tree = a_system(layers)
    layout, image = Layout.plan(tree), written(tree, layers)
    metadata = image[: layout.metadata_chunks * CHUNK_BYTES]
    reader = reader_of(metadata + bytes(len(image) - len(metadata)))
    assert {path for path, _ in reader.walk()} == set(tree)


def test_a_file_of_more_than_4_gib_is_streamed_with_little_memory() -> None:
    class Zeros:
        def read(self, layer: int, offset: int, size: int) -> bytes:
            return bytes(size)

    big = Inode(mode=stat.S_IFREG | 0o644, size=(5 << 30) + 1, layer=0, offset=0)
    layout = Layout.plan({"": directory(), "big": big, "later": Inode(mode=stat.S_IFREG, size=3, layer=0)})
    assert layout.size_bytes > 5 << 30
    chunks = layout.chunks(Zeros())
    first = [next(chunks) for _ in range(layout.metadata_chunks)]
    reader = reader_of(b"".join(first).ljust(layout.size_bytes >> 12, b"\0"))
    assert reader.super_block.size_bytes >= (5 << 30) + 4096
    tracemalloc.start()
    assert sum(len(next(chunks)) for _ in range(200)) == 200 * CHUNK_BYTES
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * CHUNK_BYTES


def test_a_layer_that_ends_early_is_an_error() -> None:
    layers = Layers()
    tree: FileTree = {"": directory(), "a": layers.file(b"abc")}
    tree["a"].size = 10
    with pytest.raises(EOFError, match="3 bytes instead of 10"):
        list(Layout.plan(tree).chunks(layers))


HOSTILE: dict[str, Callable[[], FileTree]] = {
    "no root": lambda: {"a": directory()},
    "a file as root": lambda: {"": symlink("a")},
    "no parent": lambda: {"": directory(), "a/b": symlink("c")},
    "a file as parent": lambda: {"": directory(), "a": symlink("b"), "a/b": symlink("c")},
    "a leading slash": lambda: {"": directory(), "/a": symlink("b")},
    "dot dot": lambda: {"": directory(), "..": directory()},
    "NUL": lambda: {"": directory(), "a\0b": directory()},
    "a long name": lambda: {"": directory(), "a" * 256: directory()},
    "the same name twice": lambda: {"": directory(), "é": symlink("a"), "\udcc3\udca9": symlink("b")},
    "a long path": lambda: {"": directory()} | {"/".join(["a" * 100] * n): directory() for n in range(1, 45)},
    "an empty link": lambda: {"": directory(), "a": symlink("")},
    "a long link": lambda: {"": directory(), "a": symlink("b" * 4096)},
    "a link with NUL": lambda: {"": directory(), "a": symlink("b\0c")},
    "no type": lambda: {"": directory(), "a": Inode(mode=0o644)},
    "a size without data": lambda: {"": directory(), "a": Inode(mode=stat.S_IFREG, size=1)},
    "a time out of range": lambda: {"": directory(), "a": Inode(mode=stat.S_IFREG, mtime_s=1 << 63)},
    "an owner out of range": lambda: {"": directory(), "a": Inode(mode=stat.S_IFREG, uid=1 << 32)},
    "a long attribute": lambda: {"": directory(), "a": Inode(mode=stat.S_IFREG, xattrs={"user.a": bytes(65536)})},
    "more data than addresses": lambda: {"": directory(), "a": Inode(mode=stat.S_IFREG, size=1 << 45, layer=0)},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_image_can_hold_is_refused(name: str) -> None:
    with pytest.raises(BadImage):
        Layout.plan(HOSTILE[name]())


def test_a_directory_with_two_names_is_refused() -> None:
    twice = directory()
    with pytest.raises(BadImage, match="hard link to a directory"):
        Layout.plan({"": directory(), "a": twice, "b": twice})


def test_attributes_of_other_classes_are_left_out() -> None:
    tree: FileTree = {"": directory()}
    tree["a"] = Inode(mode=stat.S_IFREG, xattrs={"com.apple.provenance": b"1", "user.": b"2", "user.kept": b"3"})
    reader = reader_of(written(tree, Layers()))
    assert reader.xattrs(reader.stat("a")) == {"user.kept": b"3"}
