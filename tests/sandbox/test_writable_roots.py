"""Roots over an image that a sandbox may change: what they are made of, and that nothing of their making stays behind."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

import pytest

from sockd.erofs.mount_points import add_mount_points
from sockd.images import image_base, writable_root
from sockd.images.image_base import ImageBase
from sockd.images.owner_maps import OwnerMaps
from sockd.images.root import Root
from sockd.images.writable_root import WritableRoot
from sockd.kernel import mounts, syscalls, user_namespaces
from sockd.kernel.procfs import ByNamespace
from sockd.kernel.ways import Ways
from tests.support.house import House
from tests.support.image_files import Layers, directory, written
from tests.support.ledger import Ledger

pytestmark = pytest.mark.root

UID = 300_000_001
OTHERS = 33


@pytest.fixture
def image(house: House, tmp_path: Path) -> Iterator[ImageBase]:
    if reason := Ways.find().roots.reason:
        pytest.skip(f"this kernel cannot: {reason}")
    layers = Layers()
    tree = {"": directory(), "etc": directory(), "etc/conf": layers.file(b"of the image"), "srv": directory()}
    tree["srv"].uid = tree["srv"].gid = OTHERS
    add_mount_points(tree, directories=image_base.DIRECTORIES, files=image_base.FILES)
    file = tmp_path / "image.erofs"
    file.write_bytes(written(tree, layers))
    mounted = ImageBase.mount(str(file), house.base)
    try:
        yield mounted
    finally:
        mounted.close()


@pytest.fixture
def maps() -> Iterator[OwnerMaps]:
    maps = OwnerMaps()
    yield maps
    maps.close()


@contextmanager
def writable(house: House, image: ImageBase, maps: OwnerMaps) -> Iterator[Root]:
    root = WritableRoot.over(image, house.limits(tmp_bytes=1 << 20, tmp_inodes=64), UID, maps, ByNamespace())
    try:
        yield root
    finally:
        root.close()


CALLS: list[tuple[ModuleType, str]] = [
    *((syscalls, name) for name in ("open_tree", "move_mount", "mount_setattr", "new_filesystem")),
    *((os, name) for name in ("open", "mkdir", "chmod", "chown")),
    (user_namespaces, "new"),
]


@pytest.mark.parametrize(("module", "call"), CALLS, ids=[name for _, name in CALLS])
def test_a_writable_root_that_cannot_be_made_leaves_nothing(
    house: House, image: ImageBase, nth_call: Callable[..., Iterator[int]], module: ModuleType, call: str
) -> None:
    original = getattr(module, call)
    ledger = Ledger()
    for _ in nth_call(module, call, error=errno.EMFILE):
        maps = OwnerMaps()
        with suppress(OSError), writable(house, image, maps):
            pass
        maps.close()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, call, original)
            ledger.check()


def test_roots_files_are_the_sandboxs_and_others_stay(house: House, image: ImageBase, maps: OwnerMaps) -> None:
    with writable(house, image, maps) as root:
        status = {path: os.stat(path, dir_fd=root.fd) for path in (".", "etc", "etc/conf", "srv", "tmp")}
        assert [status[path].st_uid for path in (".", "etc", "etc/conf", "srv")] == [UID, UID, UID, OTHERS]
        assert [status[path].st_gid for path in (".", "etc", "etc/conf", "srv")] == [UID, UID, UID, OTHERS]
        assert [stat.S_IMODE(status[path].st_mode) for path in (".", "tmp")] == [0o755, 0o1777]


def test_root_and_tmp_are_one_file_system_of_the_limit(house: House, image: ImageBase, maps: OwnerMaps) -> None:
    with writable(house, image, maps) as root, mounts.owned(os.open("tmp", os.O_RDONLY, dir_fd=root.fd)) as tmp:
        sizes = [os.fstatvfs(fd) for fd in (root.fd, tmp)]
        assert [each.f_blocks * each.f_frsize for each in sizes] == [1 << 20] * 2
        assert [each.f_files for each in sizes] == [64] * 2
        with mounts.owned(os.open("etc/new", os.O_WRONLY | os.O_CREAT, dir_fd=root.fd)) as file:
            os.write(file, bytes(1 << 19))
        assert os.fstatvfs(tmp).f_bavail == os.fstatvfs(root.fd).f_bavail <= (1 << 19) // sizes[0].f_frsize


def test_what_stands_over_the_image_stands_over_the_overlay(house: House, image: ImageBase, maps: OwnerMaps) -> None:
    usual, _ = image.at
    with writable(house, image, maps) as root:
        for path in image_base.FURNITURE:
            there, here = os.stat(path, dir_fd=usual), os.stat(path, dir_fd=root.fd)
            assert (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino), path
        assert stat.S_ISCHR(os.stat("dev/null", dir_fd=root.fd).st_mode)


def test_a_kernel_without_overlays_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger()
    assert writable_root.why_no_writable_roots() == ""

    def refuse(*arguments: object) -> int:
        raise OSError(errno.ENODEV, "fsopen: No such device")

    monkeypatch.setattr(mounts, "new_overlay", refuse)
    assert writable_root.why_no_writable_roots() == "fsopen: No such device"
    ledger.check()
