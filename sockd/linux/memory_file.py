"""Files in memory (memfd_create(2)) that the daemon and its agent pass to each other, sealed against what the other might do.

The caller that gets a descriptor closes it. All may raise OSError."""

from __future__ import annotations

import fcntl
import mmap
import os

_FUTURE_WRITE = 0x10
"""F_SEAL_FUTURE_WRITE of linux/fcntl.h: only mappings that there are write."""
_SIZE = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def memory_file(name: str, data: bytes) -> int:
    """A file with these bytes, sealed against changes."""
    fd = _empty_file(name)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE | fcntl.F_SEAL_WRITE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def file_by_mapping(name: str, size: int) -> tuple[int, mmap.mmap]:
    """A file of this size, at least a byte, that is written through the returned mapping only."""
    fd = _empty_file(name)
    try:
        os.ftruncate(fd, size)
        mapped = mmap.mmap(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE | _FUTURE_WRITE)
    except BaseException:
        os.close(fd)
        raise
    return fd, mapped


def writable_file(name: str, size: int) -> int:
    """A file of this size, for the other to write in."""
    fd = _empty_file(name)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _empty_file(name: str) -> int:
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
