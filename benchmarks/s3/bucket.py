"""A bucket: a directory, and what is in it kept in memory in the order of keys.

    <bucket>/bucket.json            when it was made
    <bucket>/<uuid>.data            the bytes of an object, never changed
    <bucket>/<sha256 of key>.json   the object that refers to them; renamed into place, which is what publishes it

Files that no object refers to are remains of a crash; opening the bucket removes them. Nothing is synced to disk.
"""

from __future__ import annotations

import bisect
import json
import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Self

from benchmarks.s3.checksums import Checksum
from benchmarks.s3.errors import S3Error
from benchmarks.s3.objects import Object, Staged, description_name

_ABOUT = "bucket.json"
Condition = Callable[[Object | None], None]
"""Looks at the object that has the key now, and raises S3Error if it must keep it."""


class Bucket:
    """One bucket. All methods may be called from any thread."""

    def __init__(self, directory: Path, created_s: float, objects: list[Object]) -> None:
        self.name = directory.name
        self.created_s = created_s
        self._directory = directory
        self._lock = threading.Lock()
        self._objects = {each.key: each for each in objects}
        self._keys = sorted(self._objects)

    @classmethod
    def create(cls, directory: Path) -> Self:
        """Raises FileExistsError."""
        directory.mkdir()
        created_s = time.time()
        (directory / _ABOUT).write_text(json.dumps({"created_s": created_s}))
        return cls(directory, created_s, [])

    @classmethod
    def open(cls, directory: Path) -> Self:
        """A bucket that is on disk. Raises FileNotFoundError when it is none."""
        created_s = float(json.loads((directory / _ABOUT).read_text())["created_s"])
        described = [path for path in directory.glob("*.json") if path.name != _ABOUT]
        objects = [Object.from_json(path.read_text()) for path in described]
        objects = [each for each in objects if (directory / each.file).exists()]
        known = {_ABOUT, *(each.file for each in objects), *(description_name(each.key) for each in objects)}
        for path in directory.iterdir():
            if path.name not in known:
                path.unlink()
        return cls(directory, created_s, objects)

    def remove(self) -> None:
        """Take the bucket off the disk. Raises S3Error (BucketNotEmpty)."""
        with self._lock:
            if self._objects:
                raise S3Error("BucketNotEmpty", "The bucket you tried to delete is not empty")
            for path in self._directory.iterdir():
                path.unlink()
            self._directory.rmdir()

    def find(self, key: str) -> Object:
        """Raises S3Error (NoSuchKey)."""
        with self._lock:
            return self._find(key)

    def open_object(self, key: str) -> tuple[Object, int]:
        """The object and a file descriptor of its bytes, the caller's to close. Raises S3Error (NoSuchKey)."""
        with self._lock:  # so that the file is not removed between the two
            found = self._find(key)
            return found, os.open(self._directory / found.file, os.O_RDONLY | os.O_CLOEXEC)

    def new_file(self) -> Path:
        """A name for bytes to be staged."""
        return self._directory / f"{uuid.uuid4().hex}.data"

    def discard(self, file: str) -> None:
        """Remove staged bytes."""
        (self._directory / file).unlink(missing_ok=True)

    def link_object(self, key: str, target: Path) -> Object:
        """Give the bytes of an object another name, on the same file system. Raises S3Error (NoSuchKey).

        Bytes never change, so one file can serve two objects."""
        with self._lock:
            found = self._find(key)
            os.link(self._directory / found.file, target)
            return found

    def path(self, file: str) -> Path:
        return self._directory / file

    def publish(
        self,
        key: str,
        staged: Staged,
        headers: dict[str, str],
        *,
        etag: str | None = None,
        condition: Condition | None = None,
        checksum: Checksum | None = None,
    ) -> Object:
        """Let the staged bytes be what the key names, atomically.

        Args:
            etag: the MD5 of the bytes when None.
            condition: raises to prevent it; the staged bytes are then discarded."""
        new = Object(
            key,
            staged.file,
            staged.size,
            etag or f'"{staged.md5.hex()}"',
            time.time(),
            headers,
            checksum or staged.checksum,
        )
        path = self._directory / description_name(key)
        temporary = self._directory / f"{uuid.uuid4().hex}.tmp"
        with self._lock:
            old = self._objects.get(key)
            try:
                if condition:
                    condition(old)
                temporary.write_text(new.to_json())
                os.rename(temporary, path)
            except BaseException:
                self.discard(staged.file)
                temporary.unlink(missing_ok=True)
                raise
            self._objects[key] = new
            if old is None:
                bisect.insort(self._keys, key)
            else:
                self.discard(old.file)
        return new

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        with self._lock:
            old = self._objects.pop(key, None)
            if old:
                del self._keys[bisect.bisect_left(self._keys, key)]
                (self._directory / description_name(key)).unlink(missing_ok=True)
                self.discard(old.file)

    def page(self, prefix: str, delimiter: str, after: str, limit: int) -> tuple[list[Object | str], bool]:
        """A page of a listing, and whether more would follow.

        Args:
            prefix: of the keys.
            delimiter: keys that hold it behind the prefix are listed by what they have in common up to it. Empty: none are.
            after: only what is behind this key or common prefix.
            limit: of entries; 0 gives none.

        Returns: objects and common prefixes, in order."""
        entries: list[Object | str] = []
        with self._lock:
            keys = self._keys
            at = max(bisect.bisect_left(keys, prefix), bisect.bisect_right(keys, after) if after else 0)
            if after and common_prefix(after, prefix, delimiter) == after:
                at = max(at, _behind(keys, after))
            while at < len(keys) and keys[at].startswith(prefix):
                if len(entries) == limit:
                    return entries, limit > 0
                common = common_prefix(keys[at], prefix, delimiter)
                entries.append(self._objects[keys[at]] if common is None else common)
                at = at + 1 if common is None else _behind(keys, common)
        return entries, False

    def _find(self, key: str) -> Object:
        try:
            return self._objects[key]
        except KeyError:
            raise S3Error("NoSuchKey", "The specified key does not exist.") from None


def common_prefix(key: str, prefix: str, delimiter: str) -> str | None:
    """What a listing tells of the key instead of the key, if it does."""
    if not delimiter or not key.startswith(prefix):
        return None
    end = key.find(delimiter, len(prefix))
    return None if end < 0 else key[: end + len(delimiter)]


def _behind(keys: list[str], prefix: str) -> int:
    """The index of the first key behind all those with this prefix. (The order of code points is that of UTF-8, and S3's.)"""
    return bisect.bisect_right(keys, prefix, key=lambda key: key[: len(prefix)])
