"""A small file system of its own, for what happens when a disk is full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sockd.linux import syscalls
from sockd.linux.syscalls import MountFlag


@contextmanager
def small_disk(path: Path, mb: int) -> Iterator[Path]:
    """Mount a tmpfs of so many MB on a directory for the length of a block; the value is the directory."""
    syscalls.mount("tmpfs", str(path), "tmpfs", MountFlag.NOSUID | MountFlag.NODEV, f"size={mb}m")
    try:
        yield path
    finally:
        syscalls.umount(str(path))
