"""Regions: what the app gets is read-only and nameless, and what a run takes is counted."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator

import pytest

from sockd_initscripts.errors import RegionFull
from sockd_initscripts.region import OWN_SEGMENT_BYTES, SHARED_SEGMENT_BYTES, Region

LIMIT_BYTES = 16 * 1024 * 1024


@pytest.fixture
def region() -> Iterator[Region]:
    region = Region(LIMIT_BYTES)
    yield region
    region.close()


@pytest.fixture
def app_fd(region: Region) -> Iterator[int]:
    """What an app gets of a segment that holds b"hello"."""
    buffer = region.allocate(5)
    buffer.view[:] = b"hello"
    fd = buffer.segment.take_fd()
    assert fd is not None
    yield fd
    os.close(fd)


def test_the_app_reads_what_is_written_through_the_mapping(region: Region, app_fd: int) -> None:
    with mmap.mmap(app_fd, 0, prot=mmap.PROT_READ) as seen:
        assert seen[:5] == b"hello"
        later = region.allocate(5)
        later.view[:] = b"later"
        assert seen[later.offset : later.offset + 5] == b"later"


def test_the_app_cannot_write_or_truncate(app_fd: int) -> None:
    assert fcntl.fcntl(app_fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    with pytest.raises(PermissionError):
        mmap.mmap(app_fd, 0, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(app_fd, b"x", 0)
    with pytest.raises(OSError, match="Invalid argument"):
        os.ftruncate(app_fd, 0)


@pytest.mark.root
def test_an_app_of_another_uid_cannot_open_it_anew(app_fd: int) -> None:
    os.seteuid(65534)
    try:
        with pytest.raises(PermissionError):
            os.close(os.open(f"/proc/self/fd/{app_fd}", os.O_RDWR))
    finally:
        os.seteuid(0)


@pytest.mark.alone
def test_a_segment_has_no_name(region: Region, app_fd: int) -> None:
    assert "(deleted)" in os.readlink(f"/proc/self/fd/{app_fd}")
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("sockd-")]


def test_small_buffers_share_a_segment_and_large_ones_do_not(region: Region) -> None:
    first, second = region.allocate(10), region.allocate(10)
    large = region.allocate(OWN_SEGMENT_BYTES)
    assert first.segment is second.segment
    assert (first.offset, second.offset) == (0, 64)
    assert (large.segment.index, large.offset, large.segment.size) == (1, 0, OWN_SEGMENT_BYTES)


def test_the_fd_is_taken_once(region: Region) -> None:
    segment = region.allocate(1).segment
    fd = segment.take_fd()
    assert fd is not None
    os.close(fd)
    assert segment.take_fd() is None


def test_what_does_not_fit_is_refused_and_the_rest_still_fits(region: Region) -> None:
    region.allocate(LIMIT_BYTES - OWN_SEGMENT_BYTES)
    with pytest.raises(RegionFull):
        region.allocate(OWN_SEGMENT_BYTES + 1)
    region.allocate(OWN_SEGMENT_BYTES)
    with pytest.raises(RegionFull):
        region.allocate(1)


def test_a_small_budget_has_a_small_shared_segment() -> None:
    region = Region(3 * mmap.PAGESIZE)
    region.allocate(2 * mmap.PAGESIZE)
    region.allocate(mmap.PAGESIZE)
    with pytest.raises(RegionFull):
        region.allocate(1)
    region.close()


def test_shrinking_gives_the_pages_back(region: Region) -> None:
    buffer = region.allocate(8 * 1024 * 1024)
    buffer.view[:] = bytes([1]) * len(buffer.view)
    fd = buffer.segment.take_fd()
    assert fd is not None
    try:
        buffer.shrink(5000)
        assert (len(buffer.view), buffer.length) == (5000, 5000)
        assert region.charged_bytes == 2 * mmap.PAGESIZE
        assert os.fstat(fd).st_blocks * 512 == 2 * mmap.PAGESIZE
        assert os.pread(fd, 5000, 0) == bytes([1]) * 5000
    finally:
        os.close(fd)
    region.allocate(12 * 1024 * 1024)


def test_shrinking_the_last_small_buffer_makes_room_for_the_next(region: Region) -> None:
    region.allocate(200_000).shrink(10)
    assert region.allocate(10).offset == 64
    with pytest.raises(ValueError):
        region.allocate(10).shrink(11)


def test_a_full_shared_segment_is_followed_by_another(region: Region) -> None:
    indexes = {region.allocate(100_000).segment.index for _ in range(11)}
    assert indexes == {0, 1}
    assert region.charged_bytes == 2 * SHARED_SEGMENT_BYTES


def test_a_slice_that_is_still_held_survives_the_close() -> None:
    region = Region(LIMIT_BYTES)
    buffer = region.allocate(OWN_SEGMENT_BYTES)
    view = buffer.view[:10]
    region.close()
    with pytest.raises(ValueError, match="released"):
        bytes(buffer.view)
    view[:3] = b"abc"
    assert bytes(view[:3]) == b"abc"
    with pytest.raises(RegionFull):
        region.allocate(1)


def test_an_app_keeps_its_mapping_when_the_run_is_over(region: Region, app_fd: int) -> None:
    with mmap.mmap(app_fd, 0, prot=mmap.PROT_READ) as seen:
        region.close()
        assert seen[:5] == b"hello"
