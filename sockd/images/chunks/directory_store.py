"""A chunk store in a directory, of one worker or on a file system that several share.

    roots/<root>/<2 digits>/<64 digits>    a chunk, named by its digest
    objects/<key>                          an object
    tmp/<random>                           a file that is being written; its writer holds a lock (flock) on it
    lock                                   held while an object is compared and set

A file is written in tmp/ and published by rename or link, so that a reader sees all of it or nothing. A SIGKILL leaves files
in tmp/, which `recover` removes: their locks are free. Chunks are not synced one by one: before an object is published,
syncfs(2) makes everything durable that was written before it, and an object names only chunks that were put before. A power
cut may leave a chunk shorter than it should be, and a disk may change it or become unable to read it: `put` compares what is
there, and replaces it, also a directory of that name.

All may read the files but the lock: the directory's own permissions decide who reads. It holds ciphertext, sealed manifests and
the names of images.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from os.path import dirname
from pathlib import Path
from typing import Self

from sockd.base.errors import ChunkMissing, ChunkUnreadable, StoreFull, StoreUnavailable, Tampered
from sockd.images.chunks.chunk import CHUNK_BYTES, is_named
from sockd.images.chunks.store import (
    MAX_OBJECT_BYTES,
    StoredObject,
    check_key,
    check_name,
    check_prefix,
    check_root,
    parsed_name,
)
from sockd.images.chunks.store_files import TMP, StoreFiles

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_LINKED = (errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOENT, errno.EEXIST)
_UNREADABLE = (
    *(errno.EIO, errno.EREMOTEIO, errno.ENODATA, errno.EILSEQ, errno.EBADMSG, errno.EUCLEAN),
    *(errno.EACCES, errno.EPERM, errno.ENXIO, errno.ENODEV, errno.ELOOP),
)
"""What is wrong with one file: its blocks, its permissions, what it is. ENODATA and EILSEQ are a disk's errors, too."""
_ROOTS, _OBJECTS = "roots", "objects"


class DirectoryStore:
    """A store. Owns the files of its directory (`store_files`), until `close`."""

    name = "of this worker"
    keeps_bytes = False

    def __init__(self, fd: int) -> None:
        """Args: fd: of the directory (O_PATH is enough); the store closes it."""
        self._files = StoreFiles(fd, self.name)

    @classmethod
    def create(cls, path: Path) -> Self:
        """As `open`; the directory is made when it is not there."""
        with _failures():
            path.mkdir(parents=True, exist_ok=True)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """The store in this directory, which must be there: one that is not may be a file system that is not mounted.

        Raises: StoreUnavailable; StoreFull."""
        with _failures():
            store = cls(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            store.recover()
        except BaseException:
            store.close()
            raise
        return store

    @property
    def heard_s(self) -> float:
        return time.monotonic()

    def recover(self) -> None:
        """Make the directories, and remove what killed writers left in tmp/. Safe while others write."""
        with _failures():
            for directory in (_ROOTS, _OBJECTS, TMP):
                self._files.make(directory)
            self._files.recover()

    def close(self) -> None:
        self._files.close()

    # ---- chunks ----

    def put(self, root: str, name: bytes, data: bytes, *, replace: bool = False) -> bool:
        final = _chunk(root, name)
        with _failures():
            if not replace and self._is(root, name, data):
                return False
            with self._files.written(data) as written:
                self._files.placed(self._files.replace, written, final)
        return True

    def get(self, root: str, name: bytes) -> bytes:
        with _failures():
            data = self._chunk_read(root, name)
        if data is None:
            raise ChunkMissing(self.name, root, name)
        if not is_named(name, data):
            raise Tampered.chunk(self.name, name)
        return data

    def has(self, root: str, name: bytes) -> bool:
        with _failures():
            return bool(self._files.size(_chunk(root, name)))

    def names(self, root: str) -> Iterator[bytes]:
        top = f"{_ROOTS}/{check_root(root)}"
        with _failures():
            for directory in self._files.listed(top):
                for entry in self._files.listed(f"{top}/{directory}"):
                    if (name := parsed_name(entry)) is not None:
                        yield name

    def delete(self, root: str, name: bytes) -> None:
        chunk = _chunk(root, name)
        with _failures():
            with suppress(FileNotFoundError):
                self._files.remove(chunk)
            # The last chunk takes the directories with it.
            for directory in (dirname(chunk), dirname(dirname(chunk))):
                if not self._files.remove_empty(directory):
                    break

    def copy(self, source: str, target: str, name: bytes) -> bool:
        """A second link to the same file: no bytes are written, so that it works on a full disk."""
        origin, final = _chunk(source, name), _chunk(target, name)
        with _failures():
            size = self._files.size(origin)
            if not size:
                raise ChunkMissing(self.name, source, name)
            if self._files.size(final) == size:
                return False
            try:
                self._files.placed(self._files.link, origin, final)
                return True
            except OSError as error:
                if error.errno not in _NOT_LINKED:
                    raise
        return self.put(target, name, self.get(source, name))

    # ---- objects ----

    def get_object(self, key: str) -> StoredObject | None:
        with _failures():
            data = self._files.read(_object(key), MAX_OBJECT_BYTES)
        if data is not None and len(data) > MAX_OBJECT_BYTES:
            raise StoreUnavailable(self.name, f"{key} has more than {MAX_OBJECT_BYTES >> 20} MB, which no object has")
        return None if data is None else StoredObject(data, hashlib.sha256(data).hexdigest())

    def put_object(self, key: str, data: bytes) -> None:
        self._publish(key, data, lambda: True)

    def create_object(self, key: str, data: bytes) -> bool:
        return self._publish(key, data, lambda: self._files.size(_object(key)) is None)

    def swap_object(self, key: str, data: bytes, version: str) -> bool:
        def has_version() -> bool:
            found = self.get_object(key)
            return found is not None and found.version == version

        return self._publish(key, data, has_version)

    def list_objects(self, prefix: str) -> Iterator[str]:
        top = f"{_OBJECTS}/{check_prefix(prefix)}".rstrip("/")
        with _failures():
            found = [path.removeprefix(f"{_OBJECTS}/") for path in self._files.walk(top)]
        yield from sorted(found)

    def delete_object(self, key: str) -> None:
        path = _object(key)
        with _failures(), self._files.locked(), suppress(FileNotFoundError):
            self._files.unlink(path)
            self._files.sync_directory(dirname(path))

    def _publish(self, key: str, data: bytes, may: Callable[[], bool]) -> bool:
        """Write an object if `may` says so under the lock; what it says."""
        final = _object(key)
        with _failures(), self._files.written(data) as written:
            self._files.sync_file_system()  # the file itself, and all chunks that it may name
            with self._files.locked():
                if not may():
                    return False
                self._files.placed(self._files.rename, written, final)
                self._files.sync_directory(dirname(final))
        return True

    def _chunk_read(self, root: str, name: bytes) -> bytes | None:
        """The bytes of a chunk; None: there is none. Raises: ChunkUnreadable; Tampered."""
        path = _chunk(root, name)
        try:
            return self._files.read(path, CHUNK_BYTES, for_all=True)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            raise ChunkUnreadable(self.name, name, os.strerror(error.errno or 0)) from error

    def _is(self, root: str, name: bytes, data: bytes) -> bool:
        """Whether a chunk is there with these bytes."""
        try:
            return self._chunk_read(root, name) == data
        except (ChunkUnreadable, Tampered):
            return False


def _chunk(root: str, name: bytes) -> str:
    text = check_name(name)
    return f"{_ROOTS}/{check_root(root)}/{text[:2]}/{text}"


def _object(key: str) -> str:
    return f"{_OBJECTS}/{check_key(key)}"


@contextmanager
def _failures() -> Iterator[None]:
    """OSError of a file becomes an error of the store, which names no path of the host."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFull(DirectoryStore.name) from error
        raise StoreUnavailable(DirectoryStore.name, os.strerror(error.errno or 0)) from error
