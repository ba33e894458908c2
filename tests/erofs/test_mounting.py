"""Images are mounted from files, without a path in a mount table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sockd.erofs.mounting import mount_image, why_no_images
from sockd.kernel import mounts
from sockd.plain.errors import DamagedImage
from tests.support.image_files import Layers, directory, mounted, written


def test_this_machine_mounts_images(tmp_path: Path) -> None:
    expected = "" if os.geteuid() == 0 else "mounting EROFS needs CAP_SYS_ADMIN in the initial user namespace"
    assert why_no_images(tmp_path) == expected


@pytest.mark.root
def test_a_tmpfs_is_no_place_for_images(tmp_path: Path) -> None:
    mounts.mount_tmpfs(str(tmp_path), size_bytes=1 << 20)
    try:
        assert "no tmpfs" in why_no_images(tmp_path)
    finally:
        mounts.umount_tree(str(tmp_path))


@pytest.mark.root
def test_a_mounted_image_is_read_only_and_in_no_mount_table(tmp_path: Path) -> None:
    layers = Layers()
    (tmp_path / "image").write_bytes(written({"": directory(), "a": layers.file(b"1", mode=0o4777)}, layers))
    table = Path("/proc/self/mountinfo").read_text()
    with mounted(tmp_path / "image") as top:
        assert (top / "a").read_bytes() == b"1"
        flags = os.statvfs(top).f_flag
        assert flags & os.ST_RDONLY and flags & os.ST_NOSUID and flags & os.ST_NODEV
        assert Path("/proc/self/mountinfo").read_text() == table


@pytest.mark.root
def test_an_image_outlives_its_file_s_name(tmp_path: Path) -> None:
    layers = Layers()
    (tmp_path / "image").write_bytes(written({"": directory(), "a": layers.file(b"1")}, layers))
    with mounted(tmp_path / "image") as top:
        (tmp_path / "image").unlink()
        assert (top / "a").read_bytes() == b"1"


@pytest.mark.root
def test_a_file_that_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(bytes(1 << 20))
    with pytest.raises(DamagedImage):
        mount_image(str(tmp_path / "image"))


@pytest.mark.root
def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        mount_image(str(tmp_path / "image"))
