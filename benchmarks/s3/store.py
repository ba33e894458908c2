"""All buckets of a directory.

Owns the directory: a lock file keeps a second server out.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
from pathlib import Path

from benchmarks.s3.bucket import Bucket
from benchmarks.s3.errors import S3Error

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class DirectoryInUse(Exception):
    """Another server has the directory."""


class Store:
    """The buckets. All methods may be called from any thread."""

    def __init__(self, directory: Path, lock_fd: int, buckets: list[Bucket]) -> None:
        self._directory = directory
        self._lock_fd = lock_fd
        self._lock = threading.Lock()
        self._buckets = {bucket.name: bucket for bucket in buckets}

    @classmethod
    def open(cls, directory: Path) -> Store:
        """Make the directory if need be, and read what is in it. Raises DirectoryInUse."""
        directory.mkdir(parents=True, exist_ok=True)
        lock_fd = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            homes = [path.parent for path in directory.glob("*/bucket.json") if _NAME.fullmatch(path.parent.name)]
            return cls(directory, lock_fd, [Bucket.open(home) for home in sorted(homes)])
        except BlockingIOError:
            os.close(lock_fd)
            raise DirectoryInUse(f"{directory} is served by another server") from None
        except BaseException:
            os.close(lock_fd)
            raise

    def close(self) -> None:
        os.close(self._lock_fd)

    def buckets(self) -> list[Bucket]:
        """In the order of names."""
        with self._lock:
            return [self._buckets[name] for name in sorted(self._buckets)]

    def bucket(self, name: str) -> Bucket:
        """Raises S3Error (NoSuchBucket)."""
        with self._lock:
            try:
                return self._buckets[name]
            except KeyError:
                raise S3Error("NoSuchBucket", "The specified bucket does not exist") from None

    def create(self, name: str) -> Bucket:
        """Raises S3Error (InvalidBucketName, BucketAlreadyOwnedByYou)."""
        if not _NAME.fullmatch(name) or ".." in name:
            raise S3Error("InvalidBucketName", "The specified bucket is not valid.")
        with self._lock:
            if name in self._buckets:
                raise S3Error("BucketAlreadyOwnedByYou", "The bucket exists, and you own it.")
            self._buckets[name] = Bucket.create(self._directory / name)
            return self._buckets[name]

    def remove(self, name: str) -> None:
        """Raises S3Error (NoSuchBucket, BucketNotEmpty)."""
        self.bucket(name).remove()
        with self._lock:
            self._buckets.pop(name, None)
