"""Files in memory (memfd_create(2)) that the daemon and its agent pass to each other, sealed against what the other might do.

Whoever gets a descriptor closes it. All may raise OSError."""

from __future__ import annotations

import fcntl
import os

_SIZE = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def memory_file(name: str, data: bytes) -> int:
    """A file with these bytes, which nobody changes any more."""
    fd = empty_file(name)
    try:
        fill(fd, data)
    except BaseException:
        os.close(fd)
        raise
    return fd


def empty_file(name: str) -> int:
    """A file for `fill`."""
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def fill(fd: int, data: bytes) -> None:
    """Write all of an empty file; nobody changes it any more. Many MB take a while."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE | fcntl.F_SEAL_WRITE)


def writable_file(name: str, size: int) -> int:
    """A file of this size, for the other to write in."""
    fd = empty_file(name)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE)
    except BaseException:
        os.close(fd)
        raise
    return fd
