"""Regions: what the app gets is read-only or all its own, and what a run takes is counted."""

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


def test_the_app_cannot_write_truncate_or_unseal(app_fd: int) -> None:
    again = os.open(f"/proc/self/fd/{app_fd}", os.O_RDWR)
    try:
        for fd in (app_fd, again):
            for length in (0, 10 * SHARED_SEGMENT_BYTES):
                with pytest.raises(PermissionError):
                    os.ftruncate(fd, length)
            with pytest.raises(PermissionError):
                mmap.mmap(fd, 0, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            with pytest.raises(PermissionError):
                os.pwrite(fd, b"x", 0)
            with pytest.raises(PermissionError):
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    finally:
        os.close(again)


@pytest.mark.root
def test_an_app_of_another_uid_cannot_open_it_anew(app_fd: int) -> None:
    os.seteuid(65534)
    try:
        with pytest.raises(PermissionError):
            os.close(os.open(f"/proc/self/fd/{app_fd}", os.O_RDWR))
    finally:
        os.seteuid(0)


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
    buffer.shrink(5000)
    fd = buffer.segment.take_fd()
    assert fd is not None
    try:
        assert (len(buffer.view), buffer.length) == (5000, 5000)
        assert region.charged_bytes == 2 * mmap.PAGESIZE
        assert os.fstat(fd).st_blocks * 512 == 2 * mmap.PAGESIZE
        assert os.pread(fd, 5000, 0) == bytes([1]) * 5000
    finally:
        os.close(fd)
    region.allocate(12 * 1024 * 1024)


@pytest.mark.parametrize("size", [5, OWN_SEGMENT_BYTES + 5], ids=["copied", "handed over"])
def test_a_file_is_all_the_apps(region: Region, size: int) -> None:
    other, buffer = region.allocate(5), region.allocate(size + 5)
    other.view[:] = b"other"
    buffer.view[:size] = bytes([1]) * size
    buffer.shrink(size)
    is_copied = not buffer.segment.is_unknown or buffer.segment is other.segment
    fd = region.take_file(buffer)
    try:
        assert is_copied == (buffer.length == size) and bytes(other.view) == b"other"
        assert os.fstat(fd).st_size == size and os.pread(fd, size + 1, 0) == bytes([1]) * size
        os.ftruncate(fd, 2 * size)
        with mmap.mmap(fd, 0) as own:
            own[-1:] = b"x"
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)
    region.close()


def test_a_buffer_that_the_app_has_is_copied_and_one_that_is_read_may_be_handed_over(region: Region) -> None:
    known, used = region.allocate(OWN_SEGMENT_BYTES), region.allocate(OWN_SEGMENT_BYTES)
    shown, part = known.segment.take_fd(), used.view[:5]
    assert shown is not None
    files = [region.take_file(each) for each in (known, used)]
    for fd in files:
        os.pwrite(fd, b"own", 0)
    assert (bytes(part), os.pread(shown, 3, 0), len(known.view), len(used.view)) == (
        b"own\0\0",
        bytes(3),
        OWN_SEGMENT_BYTES,
        0,
    )
    for fd in (shown, *files):
        os.close(fd)


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
