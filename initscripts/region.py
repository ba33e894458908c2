"""A run's region: memory files that replies are received into and that the app maps read-only.

Owns: the segments' mappings and the fds that the app has not got yet. A segment is sealed before the app gets it: no process
writes to it but through our mapping, which is older, and none truncates it under us (which would be a SIGBUS here). A
segment that the app is to have as a file of its own is sealed against truncation alone. A segment is never used again by
another run. The memory is gone when the last mapping and fd are, ours and the app's.

Any thread may allocate.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading

from sockd_initscripts.errors import RegionFull

SHARED_SEGMENT_BYTES = 1024 * 1024
"""Small buffers live side by side in segments of this size."""
OWN_SEGMENT_BYTES = 256 * 1024
"""From this size on a buffer has a segment of its own."""
ALIGNMENT = 64
READ_ONLY = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | 0x10 | fcntl.F_SEAL_SEAL
"""With F_SEAL_FUTURE_WRITE (Linux 5.1), which this Python does not name."""


class Segment:
    """One piece of shared memory. `view` is all of it, writable; it is of no use after `close`."""

    def __init__(self, index: int, size: int) -> None:
        self.index = index
        self.size = size
        self._app_fd: int | None = os.memfd_create("sockd-region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._app_fd, size)
            os.fchmod(self._app_fd, 0o404)  # a child of the app may read it through /proc
            self._map = mmap.mmap(self._app_fd, size)
        except BaseException:
            self._close_fd()
            raise
        self.view = memoryview(self._map)
        self.used = 0
        """Where the next small buffer may begin."""

    def take_fd(self) -> int | None:
        """The fd for the app, by which each process can only read, now the caller's to close; None when it was taken before."""
        fd, self._app_fd = self._app_fd, None
        if fd is not None:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, READ_ONLY)
        return fd

    def take_file(self, length: int) -> int:
        """The fd of a file of this length that the app may write to, now the caller's to close. Call it if `is_unknown`.

        It never becomes shorter: touching a mapping behind its end would end us."""
        fd, self._app_fd = self._app_fd, None
        assert fd is not None
        os.ftruncate(fd, length)
        os.fchmod(fd, 0o606)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        return fd

    @property
    def is_unknown(self) -> bool:
        """Whether the app has not got it."""
        return self._app_fd is not None

    def give_back(self, start: int) -> int:
        """Free the pages from this offset to the end, which were not shown yet; returns how many bytes that is."""
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        if first < self.size:
            self._map.madvise(mmap.MADV_REMOVE, first, self.size - first)
        return max(-(-self.size // mmap.PAGESIZE) * mmap.PAGESIZE - first, 0)

    def close(self) -> None:
        """Unmap, as soon as no buffer is in use any more."""
        self._close_fd()
        _release(self.view)
        try:
            self._map.close()
        except BufferError:  # somebody still has a part of a buffer; the mapping goes with it
            pass

    def _close_fd(self) -> None:
        fd, self._app_fd = self._app_fd, None
        if fd is not None:
            os.close(fd)


class Buffer:
    """A piece of a segment."""

    __slots__ = ("_region", "length", "offset", "segment", "view")

    def __init__(self, region: Region, segment: Segment, offset: int, length: int) -> None:
        self._region = region
        self.segment = segment
        self.offset = offset
        self.length = length
        self.view = segment.view[offset : offset + length]
        """Its bytes, writable."""

    def shrink(self, length: int) -> None:
        """Keep the first `length` bytes: the reply was shorter than it might have been. Call it before the buffer is
        sent."""
        if length > self.length:
            raise ValueError(f"a buffer of {self.length} bytes cannot shrink to {length}")
        self._region.shrink(self, length)
        self.view = self.view[:length]


class Region:
    """A run's segments, up to a limit."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        self._lock = threading.Lock()
        self._segments: list[Segment] = []
        self._buffers: list[Buffer] = []
        self._shared: Segment | None = None
        self._is_closed = False
        self.charged_bytes = 0
        """What counts against the limit: whole pages of all segments."""

    def allocate(self, size: int) -> Buffer:
        """A buffer of `size` bytes, all zero; raises RegionFull."""
        with self._lock:
            if self._is_closed:
                raise RegionFull("the run is over")
            if size >= OWN_SEGMENT_BYTES:
                return self._give(self._add(size), 0, size)
            shared = self._shared
            if shared is None or shared.used + size > shared.size:
                shared = self._shared = self._add_shared(size)
            offset = shared.used
            shared.used += _aligned(size)
            return self._give(shared, offset, size)

    def take_file(self, buffer: Buffer) -> int:
        """A file with the bytes of a buffer, and nothing else, for the app to write to; the fd is the caller's. It is
        the buffer's own memory, and the buffer empty, if that has a segment of its own that the app does not know; else a copy.

        Raises: RegionFull."""
        segment, length = buffer.segment, buffer.length
        if segment.used or not segment.is_unknown:
            with self._lock:
                copy = self._give(self._add(length), 0, length)
            copy.view[:] = buffer.view
            segment, buffer = copy.segment, copy
        _release(buffer.view)
        buffer.length, buffer.view = 0, memoryview(b"")
        return segment.take_file(length)

    def shrink(self, buffer: Buffer, length: int) -> None:
        """See Buffer.shrink."""
        with self._lock:
            segment = buffer.segment
            if segment.used == 0:  # of its own
                self.charged_bytes -= segment.give_back(length)
            elif segment.used == buffer.offset + _aligned(buffer.length):  # the last one
                segment.used = buffer.offset + _aligned(length)
            buffer.length = length

    def close(self) -> None:
        """Unmap all; buffers' views are of no use from here on. The app's mappings stay."""
        with self._lock:
            self._is_closed = True
            segments, self._segments, self._shared = self._segments, [], None
            buffers, self._buffers = self._buffers, []
        for buffer in buffers:
            _release(buffer.view)
        for segment in segments:
            segment.close()

    def _give(self, segment: Segment, offset: int, size: int) -> Buffer:
        buffer = Buffer(self, segment, offset, size)
        self._buffers.append(buffer)
        return buffer

    def _add_shared(self, size: int) -> Segment:
        room = self._limit - self.charged_bytes
        return self._add(SHARED_SEGMENT_BYTES if room >= SHARED_SEGMENT_BYTES else max(room, size))

    def _add(self, size: int) -> Segment:
        size = max(size, 1)
        charge = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if self.charged_bytes + charge > self._limit:
            raise RegionFull(f"{size} bytes more than {self._limit - self.charged_bytes} of {self._limit}")
        try:
            segment = Segment(len(self._segments), size)
        except OSError as error:  # no fds, or no memory
            raise RegionFull(str(error)) from error
        self._segments.append(segment)
        self.charged_bytes += charge
        return segment


def _aligned(size: int) -> int:
    return max(-(-size // ALIGNMENT) * ALIGNMENT, ALIGNMENT)


def _release(view: memoryview) -> None:
    try:
        view.release()
    except BufferError:  # a transport is about to write to it; see Segment.close
        pass
