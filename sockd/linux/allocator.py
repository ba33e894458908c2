"""The C library's allocator: memory that was freed returns to the kernel, instead of staying in the heap for good.

Owns nothing but the level to which the heap was trimmed last; sets parameters of glibc's malloc for this process (mallopt(3)). By
default glibc raises the limit from which a block is a mapping of its own to the size of the largest one that was freed, at
most 32 MB. From then on megabytes lie in the heap, and one small block above them keeps all of them. Another C library
(musl) has neither function, and nothing is done.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

MAPPED_BYTES = 128 << 10
"""From this size on a block is a mapping: glibc's initial limit, which setting it makes constant."""
WORTHWHILE_BYTES = 16 << 20
"""By how much this process must have grown or shrunk since the last trim until another one is due: a trim takes 0.2 ms for each
megabyte that it returns, during which other threads wait for blocks of more than 1 KB."""
_TRIM_BYTES = 4 << 20
"""How much may be free at the heap's end: with the initial 128 KB, each block of 100 KB could cost two calls of brk(2)."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_STATM = Path("/proc/self/statm")

# SAFETY: int mallopt(int, int) and int malloc_trim(size_t) of glibc take no pointers.
_libc = ctypes.CDLL(None)


def return_large_blocks() -> None:
    """Have large blocks return to the kernel as soon as they are freed, from now on."""
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


class HeapTrim:
    """`trim` when one `is_due`."""

    def __init__(self) -> None:
        self._level_bytes = resident_bytes()

    def is_due(self) -> bool:
        """Return whether this process has grown or shrunk so much since the last trim that another may be worth its cost."""
        return abs(resident_bytes() - self._level_bytes) >= WORTHWHILE_BYTES

    def trim(self) -> None:
        """Return the free pages of the whole heap to the kernel. Blocks; may be called in a thread."""
        malloc_trim = getattr(_libc, "malloc_trim", None)
        if malloc_trim is not None:
            malloc_trim(0)
        self._level_bytes = resident_bytes()


def resident_bytes() -> int:
    """Return how much memory this process has in RAM."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
