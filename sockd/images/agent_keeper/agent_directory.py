"""The agent's directory in the worker's state: the file of the L1 cache, and whole images where there is no FUSE.

l1                    the cache; only the agent's process reads and writes it, by the descriptor that it is given
<digest>.erofs        a whole image, by the digest of its name
<digest>.partial      one that is being written
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sockd.linux.regular_file import opened

L1_FILE = "l1"
_log = logging.getLogger(__name__)
_PARTIAL = ".partial"


class AgentDirectory:
    """Owns the descriptor `l1` and the files of whole images."""

    def __init__(self, path: Path, l1: int) -> None:
        self._path = path
        self.l1 = l1

    @classmethod
    def open(cls, path: Path) -> AgentDirectory:
        """Make it unless it is there, and remove what a killed daemon left. Raises: OSError."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in path.glob(f"*{_PARTIAL}"):
            left.unlink()
        return cls(path, _cache_file(path / L1_FILE))

    def whole(self, image: str, size_bytes: int) -> Path | None:
        """The file of a whole image, if it has been written."""
        path = self._file(image)
        try:
            return path if path.stat().st_size == size_bytes else None
        except FileNotFoundError:
            return None

    @contextmanager
    def written(self, image: str) -> Iterator[int]:
        """A new file, which becomes that of the image when the body has written it."""
        final = self._file(image)
        partial = final.with_suffix(_PARTIAL)
        file = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            yield file
            os.rename(partial, final)
        finally:
            os.close(file)
            partial.unlink(missing_ok=True)

    def discard(self, image: str) -> None:
        """Remove a whole image; processes that have it open keep it."""
        self._file(image).unlink(missing_ok=True)

    def close(self) -> None:
        """Again is nothing."""
        l1, self.l1 = self.l1, -1
        if l1 >= 0:
            os.close(l1)

    def _file(self, image: str) -> Path:
        return self._path / f"{hashlib.sha256(image.encode()).hexdigest()}.erofs"


def _cache_file(path: Path) -> int:
    """The file of the cache. What is there and no regular file, such as a link to another file, is left alone: the agent is given
    a file then that no cache fits in, and reads images without one."""
    try:
        return opened(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    except OSError as error:
        _log.warning("the cache of chunks is not used, remove %s and start sockd again: %s", path, error.strerror)
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
