"""Space for removing things on a full disk: SQLite writes what it deletes to its log first, and an unlink may follow only then.

Owns a file of the state directory that is given up when a removal finds the disk full, and made again when there is room.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from sockd.base.errors import StorageFull

RESERVE_BYTES = 1 << 20
"""A function's rows are some KB; its queued events are deleted by the thousand."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


class SpaceReserve:
    """`removing` runs a removal; `fill` makes the reserve, if it is not there."""

    def __init__(self, path: Path, size_bytes: int = RESERVE_BYTES) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self.held_bytes = 0

    def fill(self) -> None:
        """Take the space, or a half or a quarter of it if the disk has no more. Called again and again."""
        if self.held_bytes == self._size_bytes:
            return
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            for size_bytes in (self._size_bytes, self._size_bytes // 2, self._size_bytes // 4):
                if size_bytes <= self.held_bytes or self._take(fd, size_bytes):
                    break
        finally:
            os.close(fd)
        if not self.held_bytes:
            self._release()

    def _take(self, fd: int, size_bytes: int) -> bool:
        try:
            os.posix_fallocate(fd, 0, size_bytes)
        except OSError:
            os.ftruncate(fd, self.held_bytes)  # what it took before it found no more
            return False
        self.held_bytes = size_bytes
        return True

    async def removing(self, remove: Callable[[], Awaitable[T]]) -> T:
        """A removal, done once more with the reserve's space when there was none. Args: remove: does all or nothing.

        Raises: StorageFull, as the removal."""
        try:
            return await remove()
        except StorageFull:
            if not self.held_bytes:
                raise
            _log.warning("the disk is full: its reserve is used to remove something")
            self._release()
            try:
                return await remove()
            finally:
                self.fill()  # at once: logs would take what is free now

    def _release(self) -> None:
        self.held_bytes = 0
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
