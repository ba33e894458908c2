"""Opening a file of our own, where something else may be by now."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

NO_FILE = "it is no regular file"


def opened(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file, which is made with mode 0600 if the flags say O_CREAT.

    Raises: OSError; also for a FIFO, which open(2) would wait at, a directory, a socket or a device."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, NO_FILE, str(path))


def contents(path: Path) -> bytes:
    """All of a regular file. Raises: as `opened`."""
    with open(opened(path), "rb", buffering=0) as file:
        return file.readall()
