"""Images that are attached in a directory and in a namespace: what is in them, and that nothing of their making stays behind."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from sockd.isolation.roots import base as bases
from sockd.isolation.roots import image_base
from sockd.isolation.roots.image_mounting import ImageMounting
from sockd.linux import mounts, syscalls
from sockd.linux.erofs.mount_points import add_mount_points
from sockd.linux.mount_namespaces import MountNamespaces
from sockd.linux.ways import Ways
from tests.support.images.image_files import Layers, directory, written
from tests.support.ledger import Ledger

pytestmark = pytest.mark.root


@pytest.fixture
def base(tmp_path: Path) -> Iterator[bases.Base]:
    (tmp_path / "packages").mkdir()
    base = bases.Base.build(tmp_path / "base", bases.plan(tmp_path / "packages"))
    try:
        yield base
    finally:
        base.close()


@pytest.fixture
def mounting(tmp_path: Path) -> Iterator[ImageMounting]:
    mounting = ImageMounting.open(Ways.find((6, 1)), tmp_path / "mounted", (6, 1))
    assert mounting.try_in(tmp_path) == ""
    try:
        yield mounting
    finally:
        mounting.close()


@pytest.fixture
def source(tmp_path: Path) -> str:
    layers = Layers()
    tree = {"": directory(), "etc": directory(), "etc/conf": layers.file(b"of the image")}
    add_mount_points(tree, directories=image_base.DIRECTORIES, files=image_base.FILES)
    (tmp_path / "image.erofs").write_bytes(written(tree, layers))
    return str(tmp_path / "image.erofs")


def test_a_copy_of_its_namespace_is_the_image_and_nothing_else(
    base: bases.Base, mounting: ImageMounting, source: str
) -> None:
    namespaces = MountNamespaces.open()
    image = mounting.mount(source, base)
    namespace, root = namespaces.copy(image.namespace, mounts.new_tmp(size_bytes=1 << 20, inodes=10))
    try:
        at = Path(f"/proc/self/fd/{root}")
        assert (at / "etc" / "conf").read_text() == "of the image"
        assert "sandbox:x:1000" in (at / "etc" / "passwd").read_text() and (at / "dev" / "null").is_char_device()
        assert os.path.samefile(at / "..", at) and not (at / "home").exists()
        assert os.statvfs(at).f_flag & os.ST_RDONLY and os.statvfs(at / "tmp").f_files == 10
    finally:
        mounts.close_all((namespace, root))
        image.close()
        namespaces.close()


CALLS: list[tuple[ModuleType, str]] = [
    *((syscalls, name) for name in ("open_tree", "move_mount", "mount_setattr", "new_filesystem", "unshare")),
    *((os, name) for name in ("open", "mkdir")),
    (fcntl, "ioctl"),
]


@pytest.mark.parametrize(("module", "call"), CALLS, ids=[name for _, name in CALLS])
def test_an_image_that_cannot_be_attached_leaves_nothing(
    base: bases.Base,
    mounting: ImageMounting,
    source: str,
    nth_call: Callable[..., Iterator[int]],
    module: ModuleType,
    call: str,
) -> None:
    mounting.mount(source, base).close()
    ledger = Ledger()
    for _ in nth_call(module, call):
        with suppress(OSError):
            mounting.mount(source, base).close()
        assert os.listdir(Path(source).parent / "mounted") == []
    ledger.check()
