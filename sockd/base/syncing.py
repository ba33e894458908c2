"""Writes of files and directories to the disk, so that a power cut leaves them whole. Blocks."""

from __future__ import annotations

import ctypes
import os
from itertools import islice
from pathlib import Path

SYNCED_EACH = 12
"""Files and directories of a tree that are synced one by one."""


def sync_tree(directory: Path) -> None:
    """Write all of a tree to the disk: without this a power cut could leave it with empty files under its right name, for ever.

    Of a few files each by itself, fsync(2). Of more by syncfs(2): one call, where an fsync per file costs a journal commit each;
    but it also waits for what others have written to the file system, such as a large image. Raises: OSError."""
    paths = list(islice(directory.rglob("*"), SYNCED_EACH + 1))
    if len(paths) > SYNCED_EACH:
        _sync_file_system(directory)
        return
    for path in (*paths, directory):
        if not path.is_symlink():  # a link is on the disk with its directory
            _sync(path, os.O_NOFOLLOW)


def sync_directory(directory: Path) -> None:
    """Write a directory's names to the disk. Raises: OSError."""
    _sync(directory, os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_file_system(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # SAFETY: int syncfs(int); the fd is open for the whole call.
        if ctypes.CDLL(None, use_errno=True).syncfs(ctypes.c_int(fd)):
            number = ctypes.get_errno()
            raise OSError(number, f"syncfs: {os.strerror(number)}")
    finally:
        os.close(fd)
