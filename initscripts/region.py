"""A run's region: POSIX shared memory that replies are received into and that the app maps read-only.

Owns: the segments' mappings and the fds for the app that are not taken yet. A segment is created exclusively, opened
once more read-only for the app, and loses its name before anything is written to it: from then on it can only be reached
by those fds. The app cannot write to it, nor truncate it under us (which would be a SIGBUS here); its mode keeps an app of
another uid from opening it for writing through /proc. A segment is never used again by another run. The memory is gone
when the last mapping and fd are, ours and the app's.

Any thread may allocate.
"""

from __future__ import annotations

import mmap
import os
import secrets
import threading

import posix_ipc

from sockd_initscripts.errors import RegionFull

SHARED_SEGMENT_BYTES = 1024 * 1024
"""Small buffers live side by side in segments of this size."""
OWN_SEGMENT_BYTES = 256 * 1024
"""From this size on a buffer has a segment of its own."""
ALIGNMENT = 64


class Segment:
    """One piece of shared memory. `view` is all of it, writable; it is of no use after `close`."""

    def __init__(self, index: int, size: int) -> None:
        self.index = index
        self.size = size
        name = f"/sockd-{secrets.token_hex(16)}"
        memory = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600, size=size)
        try:
            self._app_fd: int | None = None
            try:
                self._app_fd = int(posix_ipc.SharedMemory(name, read_only=True).fd)
            finally:
                posix_ipc.unlink_shared_memory(name)
            os.fchmod(memory.fd, 0o404)  # now that it has no name: a child of the app may read it through /proc
            self._map = mmap.mmap(memory.fd, size)
        except BaseException:
            self._close_fd()
            raise
        finally:
            memory.close_fd()
        self.view = memoryview(self._map)
        self.used = 0
        """Where the next small buffer may begin."""

    def take_fd(self) -> int | None:
        """The read-only fd for the app, now the caller's to close; None when somebody has taken it before."""
        fd, self._app_fd = self._app_fd, None
        return fd

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
        if (fd := self.take_fd()) is not None:
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
        except (OSError, posix_ipc.Error) as error:  # no fds, or no memory
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
