"""A cache of verified blobs in one preallocated file with slots of equal size. A worker's L1 and a node's file tier are slabs.

    head 4096 | name table: key 40, its length 4, blob length 4 per slot | slots

Owns the file. Evicts by LRU-2. Threads of one process share a Slab; a second process that opens the file is refused.

A SIGKILL or a crash at any moment is harmless: after a restart the name table only says which blob a slot may hold, and a slot
is verified before it is served for the first time. Within one process a slot is verified when it is filled.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sockd.base.errors import BadConfig, HostFailed
from sockd.images.caches.lru_k import Lru2

CORRELATED_S = 30.0
"""Reads of a chunk within this time of each other belong to one start, and count as one use."""
COUNTED_S = 0.3
"""A read of a slot so shortly after its last counted use is not counted: it would be the same use."""
LEAST_SLOTS = 16
MAX_KEY_BYTES = 40
_MAGIC = b"sockdslab2"
_HEAD = struct.Struct("<10sQQ")
_HEAD_BYTES = 4096
_ENTRY = struct.Struct(f"<{MAX_KEY_BYTES}sII")
_PAGE = 4096

Verify = Callable[[bytes, bytes], bool]
"""Whether a blob is the one of its key."""


class _Slot:
    """A slot that holds a blob, from its fill to its eviction. A later blob in the same place has another _Slot."""

    __slots__ = ("counted_s", "index", "is_verified", "size")

    def __init__(self, index: int, size: int, counted_s: float, *, is_verified: bool) -> None:
        self.index = index
        self.size = size
        self.counted_s = counted_s
        """When a use was last counted."""
        self.is_verified = is_verified


class Slab:
    """The cache."""

    def __init__(self, fd: int, slots: int, slot_bytes: int, verify: Verify, correlated_s: float) -> None:
        self._fd = fd
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._verify = verify
        self._data_offset = _data_offset(slots)
        self._lock = threading.Lock()
        self._by_key: dict[bytes, _Slot] = {}
        self._free = list(range(slots - 1, -1, -1))
        self._order: Lru2[bytes] = Lru2(remembered=slots, correlated=correlated_s)
        self._uncounted_s = min(COUNTED_S, correlated_s)
        self.evictions = 0
        self.rejected = 0
        """Slots whose bytes were not those of their key when they were first read after a restart."""

    @classmethod
    def open(
        cls,
        place: Path | int,
        size_bytes: int,
        *,
        slot_bytes: int,
        verify: Verify,
        correlated_s: float = CORRELATED_S,
    ) -> Slab:
        """The cache in this file, which is made if it is missing.

        What an earlier process left in a file with as many slots of this size is served again; otherwise the cache is empty.
        The cache is smaller than `size_bytes` when that would take more than half of the disk's free space.

        Args:
            place: a path, or a descriptor, which remains the caller's.
            verify: called from the threads that read.

        Raises: HostFailed: the disk has no room for LEAST_SLOTS; BadConfig: another process has the file; OSError."""
        fd = os.dup(place) if isinstance(place, int) else os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadConfig(f"the cache {place} is used by another process") from None
            slots = _fitting_slots(fd, size_bytes, slot_bytes, _called(place))
            slab = cls(fd, slots, slot_bytes, verify, correlated_s)
            slab._load(_called(place))
        except BaseException:
            os.close(fd)
            raise
        return slab

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: object) -> bool:
        """Whether a blob is there; `get` may still find that it is not the right one."""
        return key in self._by_key

    @property
    def free_slots(self) -> int:
        """How many blobs it takes in without evicting another."""
        return len(self._free)

    def get(self, key: bytes) -> bytes | None:
        """The blob, verified; None: it is not here."""
        slot = self._by_key.get(key)
        if slot is None:
            return None
        if not slot.is_verified:
            return self._verified(key, slot)
        return self._read(key, slot, 0, slot.size)

    def read(self, key: bytes, offset: int, size: int) -> bytes | None:
        """At most `size` bytes of the blob from `offset`, verified; None: it is not here."""
        slot = self._by_key.get(key)
        if slot is None:
            return None
        if not slot.is_verified:
            blob = self._verified(key, slot)
            return None if blob is None else blob[offset : offset + size]
        return self._read(key, slot, offset, max(0, min(size, slot.size - offset)))

    def put(self, key: bytes, blob: bytes | bytearray) -> bool:
        """Take a blob in, and evict another one if needed. The caller has verified it.

        False: it was not stored, because the disk refused it or other threads fill all slots. Raises: ValueError: it does not
        fit a slot."""
        if len(blob) > self.slot_bytes or len(key) > MAX_KEY_BYTES or not blob:
            raise ValueError(f"a blob of {len(blob)} bytes for a slot of {self.slot_bytes}")
        with self._lock:
            if (held := self._by_key.get(key)) and held.is_verified:
                self._order.use(key, time.monotonic())
                return True
            index = self._take_slot(key)
        if index is None:
            return False
        try:
            os.pwrite(self._fd, _ENTRY.pack(key, len(key), len(blob)), _HEAD_BYTES + index * _ENTRY.size)
            _pwrite_all(self._fd, blob, self._data_offset + index * self.slot_bytes)
        except OSError:
            with self._lock:
                self._free.append(index)
            return False
        with self._lock:
            if key in self._by_key:  # another thread was faster
                self._free.append(index)
                return True
            now = time.monotonic()
            self._by_key[key] = _Slot(index, len(blob), now, is_verified=True)
            self._order.use(key, now)
        return True

    def touch(self, key: bytes) -> None:
        """Count a use of a blob that a faster tier has served; the blob may be missing."""
        if slot := self._by_key.get(key):
            self._use(key, slot)

    def discard(self, key: bytes) -> None:
        """Remove a blob; it may be missing."""
        with self._lock:
            if slot := self._by_key.get(key):
                self._remove(key, slot)

    def close(self) -> None:
        """Release the file; what is in it remains."""
        os.close(self._fd)

    def _take_slot(self, key: bytes) -> int | None:
        if held := self._by_key.get(key):
            self._remove(key, held)
        if not self._free:
            if not self._by_key:
                return None
            victim = self._order.evict()
            self._free.append(self._by_key.pop(victim).index)
            self.evictions += 1
        return self._free.pop()

    def _remove(self, key: bytes, slot: _Slot) -> None:
        del self._by_key[key]
        self._order.discard(key)
        self._free.append(slot.index)

    def _read(self, key: bytes, slot: _Slot, offset: int, size: int) -> bytes | None:
        """Without the lock: a slot is written only after its old key was removed from `_by_key`. If the same _Slot is there
        after the read, nothing was written to it during the read. To get a key from a dict is one step for other threads."""
        try:
            data = os.pread(self._fd, size, self._data_offset + slot.index * self.slot_bytes + offset)
        except OSError:
            data = b""
        if len(data) != size:
            self.discard(key)
            return None
        if self._by_key.get(key) is not slot:
            return None
        self._use(key, slot)
        return data

    def _use(self, key: bytes, slot: _Slot) -> None:
        """Count a use, unless one was counted just before: a start reads a chunk in a hundred parts."""
        if time.monotonic() - slot.counted_s < self._uncounted_s:
            return
        with self._lock:
            if self._by_key.get(key) is slot:
                slot.counted_s = time.monotonic()
                self._order.use(key, slot.counted_s)

    def _verified(self, key: bytes, slot: _Slot) -> bytes | None:
        """A slot that an earlier process filled."""
        blob = self._read(key, slot, 0, slot.size)
        if blob is None:
            return None
        if self._verify(key, blob):
            slot.is_verified = True
            return blob
        with self._lock:
            if self._by_key.get(key) is slot:
                self._remove(key, slot)
                self.rejected += 1
        return None

    def _load(self, place: str) -> None:
        """Make the file as long as it must be, and read the name table if it is of this form."""
        head = _HEAD.pack(_MAGIC, self.slots, self.slot_bytes)
        is_ours = os.pread(self._fd, _HEAD.size, 0) == head
        size = _file_bytes(self.slots, self.slot_bytes)
        try:
            if not is_ours:
                os.ftruncate(self._fd, 0)
            os.ftruncate(self._fd, size)
            os.posix_fallocate(self._fd, 0, size)
            os.pwrite(self._fd, head, 0)
        except OSError as error:
            os.ftruncate(self._fd, 0)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _no_room(place, size) from error
            raise
        if is_ours:
            self._load_names()

    def _load_names(self) -> None:
        table = os.pread(self._fd, self.slots * _ENTRY.size, _HEAD_BYTES)
        now = time.monotonic()
        taken = set()
        for index, (padded, key_bytes, size) in enumerate(_ENTRY.iter_unpack(table)):
            key = padded[:key_bytes]
            if key and 0 < size <= self.slot_bytes and key not in self._by_key:
                self._by_key[key] = _Slot(index, size, now, is_verified=False)
                self._order.use(key, now)
                taken.add(index)
        self._free = [index for index in self._free if index not in taken]


def _data_offset(slots: int) -> int:
    return -(-(_HEAD_BYTES + slots * _ENTRY.size) // _PAGE) * _PAGE


def _file_bytes(slots: int, slot_bytes: int) -> int:
    return _data_offset(slots) + slots * slot_bytes


def _called(place: Path | int) -> str:
    """For messages: a descriptor's number says nothing to anybody."""
    return "of chunks" if isinstance(place, int) else str(place)


def _fitting_slots(fd: int, size_bytes: int, slot_bytes: int, place: str) -> int:
    """POLICY: at most half of the space that is free without the file."""
    disk = os.fstatvfs(fd)
    free_bytes = disk.f_bavail * disk.f_frsize + os.fstat(fd).st_blocks * 512
    slots = min(size_bytes, free_bytes // 2) // (slot_bytes + _ENTRY.size)
    if slots < LEAST_SLOTS:
        raise _no_room(place, LEAST_SLOTS * slot_bytes)
    return slots


def _no_room(place: str, size_bytes: int) -> HostFailed:
    return HostFailed(f"{size_bytes >> 20} MB of disk for the cache {place}")


def _pwrite_all(fd: int, data: bytes | bytearray, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
