"""Images are mounted from files, without a path in a mount table."""

from __future__ import annotations

import array
import fcntl
import os
from pathlib import Path

import pytest

from sockd.base.errors import DamagedImage
from sockd.linux import loop_device, mounts
from sockd.linux.erofs.mounting import LOOP, find_way, mount_image, why_no_images
from tests.support.images.image_files import Layers, directory, mounted, written

BLKRAGET = 0x1263


def test_this_machine_mounts_images(tmp_path: Path) -> None:
    way, why_not = find_way(tmp_path)
    if os.geteuid() == 0:
        assert way is not None and not why_not
    else:
        assert way is None and why_not == "mounting EROFS needs CAP_SYS_ADMIN in the initial user namespace"


@pytest.mark.root
def test_images_on_a_tmpfs_need_loop_devices(tmp_path: Path) -> None:
    mounts.mount_tmpfs(str(tmp_path), size_bytes=1 << 20)
    try:
        assert "no tmpfs" in why_no_images(tmp_path)
        way, why_not = find_way(tmp_path)
        assert way is not None and way.name == LOOP and "no tmpfs" in way.reason and not why_not
    finally:
        mounts.umount_tree(str(tmp_path))


@pytest.fixture(params=[False, True], ids=["file", "loop"])
def by_loop(request: pytest.FixtureRequest, tmp_path: Path) -> bool:
    if not request.param and (reason := why_no_images(tmp_path)):
        pytest.skip(f"this kernel cannot: {reason}")
    return bool(request.param)


def loops_of(path: Path) -> list[str]:
    """Loop devices that read a file."""
    files = Path("/sys/block").glob("loop*/loop/backing_file")
    return [str(each) for each in files if each.read_text().strip().startswith(str(path))]


@pytest.mark.root
def test_a_mounted_image_is_read_only_and_in_no_mount_table(tmp_path: Path, by_loop: bool) -> None:
    layers = Layers()
    (tmp_path / "image").write_bytes(written({"": directory(), "a": layers.file(b"1", mode=0o4777)}, layers))
    table = Path("/proc/self/mountinfo").read_text()
    with mounted(tmp_path / "image", by_loop=by_loop) as top:
        assert (top / "a").read_bytes() == b"1"
        flags = os.statvfs(top).f_flag
        assert flags & os.ST_RDONLY and flags & os.ST_NOSUID and flags & os.ST_NODEV
        assert Path("/proc/self/mountinfo").read_text() == table


@pytest.mark.root
def test_an_image_outlives_its_file_s_name(tmp_path: Path, by_loop: bool) -> None:
    layers = Layers()
    (tmp_path / "image").write_bytes(written({"": directory(), "a": layers.file(b"1")}, layers))
    with mounted(tmp_path / "image", by_loop=by_loop) as top:
        (tmp_path / "image").unlink()
        assert (top / "a").read_bytes() == b"1"


@pytest.mark.root
def test_a_loop_device_reads_no_more_ahead_than_other_mounts(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(bytes(1 << 20))
    got = array.array("l", [0])
    with (
        (tmp_path / "image").open("rb") as file,
        mounts.owned(loop_device.attach(file.fileno())) as device,
    ):
        fcntl.ioctl(device, BLKRAGET, got)
    assert got[0] * 512 == 128 << 10


@pytest.mark.root
def test_a_file_that_is_no_image_is_refused(tmp_path: Path, by_loop: bool) -> None:
    (tmp_path / "image").write_bytes(bytes(1 << 20))
    with pytest.raises(DamagedImage):
        mount_image(str(tmp_path / "image"), by_loop=by_loop)


@pytest.mark.root
def test_a_missing_file_is_named(tmp_path: Path, by_loop: bool) -> None:
    with pytest.raises(FileNotFoundError):
        mount_image(str(tmp_path / "image"), by_loop=by_loop)


@pytest.mark.root
def test_a_loop_device_is_free_again_with_its_mount(tmp_path: Path) -> None:
    layers = Layers()
    path = tmp_path / "image"
    path.write_bytes(written({"": directory(), "a": layers.file(b"1")}, layers))
    with mounted(path, by_loop=True) as top:
        assert (top / "a").read_bytes() == b"1"
        assert len(loops_of(path)) == 1
    while loops_of(path):  # the kernel frees it after the unmount
        os.sched_yield()
    path.write_bytes(bytes(1 << 20))
    with pytest.raises(DamagedImage):
        mount_image(str(path), by_loop=True)
    while loops_of(path):
        os.sched_yield()
