"""Images that were written are read back whole: by the kernel, by fsck.erofs, and by our own reader."""

from __future__ import annotations

import os
import random
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sockd.base.file_tree import FileTree, Inode
from sockd.linux.erofs.layout import Layout
from tests.support.examples import examples
from tests.support.images.image_files import (
    Facts,
    Layers,
    directory,
    facts_of_directory,
    facts_of_reader,
    facts_of_tree,
    mounted,
    reader_of,
    symlink,
    written,
)
from tests.support.images.image_tools import needs

BLOCK, CHUNK = 4096, 512 << 10
SIZES = (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK - 1, CHUNK, CHUNK + 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20)
NAMES = st.binary(min_size=1, max_size=12).filter(lambda name: not set(name) & {0, 0x2F} and name not in (b".", b".."))


def check(tree: FileTree, layers: Layers, scratch: Path) -> dict[str, Facts]:
    """All readers agree with the tree."""
    image = written(tree, layers)
    (scratch / "image").write_bytes(image)
    expected = facts_of_tree(tree, layers)
    assert facts_of_reader(reader_of(image)) == expected
    with mounted(scratch / "image") as top:
        assert facts_of_directory(top) == expected
    return expected


def passes_fsck(image: Path) -> None:
    run = subprocess.run(["fsck.erofs", "--extract", str(image)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.root
def test_files_of_each_size_boundary_are_whole(tmp_path: Path) -> None:
    layers, noise = Layers(), random.Random(1)
    tree: FileTree = {"": directory()}
    for number, size in enumerate(SIZES * 2):
        tree[f"{number:02d}-{size}"] = layers.file(noise.randbytes(size), layer=number % 3)
    check(tree, layers, tmp_path)


@pytest.mark.root
def test_each_kind_of_file_keeps_its_metadata(tmp_path: Path) -> None:
    layers = Layers()
    hard = layers.file(b"hard")
    capability = bytes.fromhex("0100000200200000000000000000000000000000")
    tree: FileTree = {
        "": directory(0o711),
        "a": hard,
        "d": directory(0o1777),
        "d/b": hard,
        "d/e": directory(0o2750),
        "d/e/c": hard,
        "setuid": layers.file(b"#!", mode=0o4755),
        "link": symlink("d/e/../b"),
        "dangling": symlink("/nowhere/" + "x" * 4000),
        "long link": symlink("y" * 4095),
        "null": Inode(mode=stat.S_IFCHR | 0o666, rdev=os.makedev(1, 3)),
        "disk": Inode(mode=stat.S_IFBLK | 0o660, rdev=os.makedev(259, 70_000)),
        "fifo": Inode(mode=stat.S_IFIFO | 0o600),
        "owned": Inode(mode=stat.S_IFREG | 0o400, uid=4_000_000_000, gid=70_000),
        "past": Inode(mode=stat.S_IFREG, mtime_s=-86_400, mtime_ns=999_999_999),
        "future": Inode(mode=stat.S_IFREG, mtime_s=1 << 35, mtime_ns=1),
        "attributes": Inode(mode=stat.S_IFREG, xattrs={"user.a": b"1", "user.b": bytes(3000), "trusted.c": b""}),
        "capable": Inode(mode=stat.S_IFREG | 0o755, xattrs={"security.capability": capability}),
        "d/big attributes": Inode(mode=stat.S_IFREG, xattrs={f"user.{n}": bytes([n]) * 60_000 for n in range(4)}),
        "\udcff\udcfe": layers.file(b"a name that is not UTF-8"),
        "n" * 255: layers.file(b"the longest name"),
    }
    expected = check(tree, layers, tmp_path)
    assert expected["d/e/c"].links == 3


@pytest.mark.root
def test_directories_of_each_size_boundary_are_whole(tmp_path: Path) -> None:
    for names in (0, 1, 100, 160, 161, 162, 163, 164, 165, 166, 167, 320, 5000):
        tree: FileTree = {"": directory(), "d": directory()}
        tree |= {f"d/{number:08d}xxxx": Inode(mode=stat.S_IFREG) for number in range(names)}
        check(tree, Layers(), tmp_path)


@pytest.mark.root
def test_a_directory_with_attributes_and_links_that_just_fit_a_block_is_whole(tmp_path: Path) -> None:
    for size in range(4096 - 64 - 40, 4096 - 64 + 2):
        plain: FileTree = {"": directory(), "a": symlink("x" * size), "b": symlink("z")}
        check(plain, Layers(), tmp_path)
        tree = {"": directory(), "d": directory()}
        tree["d"].xattrs["user.long"] = bytes(size)
        tree |= {f"d/{number}": Inode(mode=stat.S_IFREG) for number in range(9)}
        check(tree, Layers(), tmp_path)


@pytest.mark.root
@needs("fsck.erofs")
def test_fsck_finds_no_error_in_a_system_s_files(tmp_path: Path) -> None:
    tree, layers = files_of(Path(os.__file__).parent / "asyncio")
    tree["long link"] = symlink("l" * 4090)
    tree["hard"] = tree["events.py"]
    tree["sub"] = directory()
    tree |= {f"sub/{number}": Inode(mode=stat.S_IFREG, xattrs={"user.n": b"1"}) for number in range(3000)}
    (tmp_path / "image").write_bytes(written(tree, layers))
    passes_fsck(tmp_path / "image")


def files_of(top: Path) -> tuple[FileTree, Layers]:
    tree: FileTree = {"": directory()}
    layers = Layers()
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        tree[name] = directory() if path.is_dir() else layers.file(path.read_bytes())
    return tree, layers


@st.composite
def trees(draw: st.DrawFn) -> tuple[FileTree, Layers]:
    """Any small tree: names of any bytes, hard links, files around block sizes, attributes."""
    layers, tree = Layers(), {"": directory()}
    directories, files = [""], list[str]()
    for number in range(draw(st.integers(0, 25))):
        parent = draw(st.sampled_from(directories))
        name = os.fsdecode(draw(NAMES))
        path = f"{parent}/{name}" if parent else name
        if path in tree:
            continue
        kind = draw(st.sampled_from("dfflh"))
        if kind == "d":
            tree[path] = directory(draw(st.integers(0, 0o7777)))
            directories.append(path)
        elif kind == "l":
            target = draw(st.binary(min_size=1, max_size=4095).filter(lambda raw: 0 not in raw))
            tree[path] = symlink(os.fsdecode(target))
        elif kind == "h" and files:
            tree[path] = tree[draw(st.sampled_from(files))]
        else:
            size = draw(st.sampled_from((0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 1 << 20)))
            tree[path] = layers.file(bytes([number]) * size, layer=draw(st.integers(0, 2)))
            files.append(path)
        if kind != "h" and kind != "l":
            names = st.text("abc", min_size=1, max_size=9).map("user.{}".format)
            tree[path].xattrs |= draw(st.dictionaries(names, st.binary(max_size=50), max_size=3))
        tree[path].mtime_s = draw(st.integers(-(1 << 33), 1 << 33))
    return tree, layers


@pytest.mark.root
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(made=trees(), shuffled=st.randoms(use_true_random=False))
def test_any_tree_is_whole_and_in_any_order_the_same_bytes(
    tmp_path: Path, made: tuple[FileTree, Layers], shuffled: random.Random
) -> None:
    tree, layers = made
    check(tree, layers, tmp_path)
    paths = [*tree]
    shuffled.shuffle(paths)
    again = Layout.plan({path: tree[path] for path in paths})
    assert b"".join(again.chunks(layers)) == (tmp_path / "image").read_bytes()
