"""A guest's linear memory, as host functions see it: every pointer is held against the memory's size first.

wasmtime-py's own reads and writes have the semantics of Python slices (they clip, and negative means from the end), so a
hostile pointer would reach other bytes instead of failing.
"""

from __future__ import annotations

import ctypes
import errno

import wasmtime

from sockd_initscripts.errors import CallFailed

U32 = 0xFFFF_FFFF


class GuestMemory:
    """The memory of one guest, in its thread and while it runs."""

    def __init__(self, store: wasmtime.Store, memory: wasmtime.Memory) -> None:
        self._store = store
        self._memory = memory

    def read(self, pointer: int, length: int, *, limit: int | None = None) -> bytes:
        """A copy of these bytes; raises CallFailed: EFAULT, or EMSGSIZE over the limit."""
        if limit is not None and length & U32 > limit:
            raise CallFailed(errno.EMSGSIZE)
        return ctypes.string_at(self.check(pointer, length), length & U32)

    def read_text(self, pointer: int, length: int, *, limit: int) -> str:
        """These bytes as UTF-8; raises CallFailed: EFAULT, EMSGSIZE, EINVAL."""
        try:
            return self.read(pointer, length, limit=limit).decode()
        except UnicodeDecodeError:
            raise CallFailed(errno.EINVAL) from None

    def write(self, pointer: int, data: bytes | memoryview) -> None:
        """Copy these bytes into the guest; raises CallFailed(EFAULT)."""
        self.view(pointer, len(data))[:] = data

    def view(self, pointer: int, length: int) -> memoryview:
        """These bytes themselves, writable; not to be kept beyond the host call. Raises CallFailed(EFAULT)."""
        address = self.check(pointer, length)
        return memoryview((ctypes.c_ubyte * (length & U32)).from_address(address)).cast("B")

    def check(self, pointer: int, length: int) -> int:
        """The host's address of a guest's pointer to so many bytes; raises CallFailed(EFAULT)."""
        pointer &= U32
        if pointer + (length & U32) > self._memory.data_len(self._store):
            raise CallFailed(errno.EFAULT)
        # Asked anew at every call: a memory that grows may move.
        return ctypes.addressof(self._memory.data_ptr(self._store).contents) + pointer

    @property
    def size(self) -> int:
        """Bytes, at the moment."""
        return self._memory.data_len(self._store)
