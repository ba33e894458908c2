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
the names of images. All paths are relative to a descriptor of the directory, so that a confined process uses a store that has no
path in its root.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import logging
import os
import secrets
import shutil
import stat
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

_log = logging.getLogger(__name__)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_LINKED = (errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOENT, errno.EEXIST)
_UNREADABLE = (
    *(errno.EIO, errno.EREMOTEIO, errno.ENODATA, errno.EILSEQ, errno.EBADMSG, errno.EUCLEAN),
    *(errno.EACCES, errno.EPERM, errno.ENXIO, errno.ENODEV, errno.ELOOP),
)
"""What is wrong with one file: its blocks, its permissions, what it is. ENODATA and EILSEQ are a disk's errors, too."""
_ATTEMPTS = 5
_ROOTS, _OBJECTS, _TMP, _LOCK = "roots", "objects", "tmp", "lock"


class DirectoryStore:
    """A store. Owns a descriptor of its directory, until `close`."""

    name = "of this worker"
    keeps_bytes = False

    def __init__(self, fd: int) -> None:
        """Args: fd: of the directory (O_PATH is enough); the store closes it."""
        self._fd = fd

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
        """Make the directories, and remove what killed writers left in tmp/. Safe beside writers."""
        with _failures():
            for directory in (_ROOTS, _OBJECTS, _TMP):
                self._make(directory)
            for entry in self._listed(_TMP):
                with suppress(FileNotFoundError, BlockingIOError):
                    fd = self._open(f"{_TMP}/{entry}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                    try:
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        self._remove(f"{_TMP}/{entry}")
                    finally:
                        os.close(fd)

    def close(self) -> None:
        os.close(self._fd)

    # ---- chunks ----

    def put(self, root: str, name: bytes, data: bytes, *, replace: bool = False) -> bool:
        final = _chunk(root, name)
        with _failures():
            if not replace and self._is(root, name, data):
                return False
            with self._written(data) as written:
                self._placed(self._replace, written, final)
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
            return bool(self._size(_chunk(root, name)))

    def names(self, root: str) -> Iterator[bytes]:
        top = f"{_ROOTS}/{check_root(root)}"
        with _failures():
            for directory in self._listed(top):
                for entry in self._listed(f"{top}/{directory}"):
                    if (name := parsed_name(entry)) is not None:
                        yield name

    def delete(self, root: str, name: bytes) -> None:
        chunk = _chunk(root, name)
        with _failures():
            with suppress(FileNotFoundError):
                self._remove(chunk)
            # The last chunk takes the directories with it; EEXIST and ENOTEMPTY: it was not the last.
            for directory in (dirname(chunk), dirname(dirname(chunk))):
                try:
                    os.rmdir(directory, dir_fd=self._fd)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                        raise
                    break

    def copy(self, source: str, target: str, name: bytes) -> bool:
        """A second link to the same file: no bytes are written, so that it works on a full disk."""
        origin, final = _chunk(source, name), _chunk(target, name)
        with _failures():
            size = self._size(origin)
            if not size:
                raise ChunkMissing(self.name, source, name)
            if self._size(final) == size:
                return False
            try:
                self._placed(self._link, origin, final)
                return True
            except OSError as error:
                if error.errno not in _NOT_LINKED:
                    raise
        return self.put(target, name, self.get(source, name))

    # ---- objects ----

    def get_object(self, key: str) -> StoredObject | None:
        with _failures():
            data = self._read(_object(key), MAX_OBJECT_BYTES)
        if data is not None and len(data) > MAX_OBJECT_BYTES:
            raise StoreUnavailable(self.name, f"{key} has more than {MAX_OBJECT_BYTES >> 20} MB, which no object has")
        return None if data is None else StoredObject(data, hashlib.sha256(data).hexdigest())

    def put_object(self, key: str, data: bytes) -> None:
        self._publish(key, data, lambda: True)

    def create_object(self, key: str, data: bytes) -> bool:
        return self._publish(key, data, lambda: self._size(_object(key)) is None)

    def swap_object(self, key: str, data: bytes, version: str) -> bool:
        def has_version() -> bool:
            found = self.get_object(key)
            return found is not None and found.version == version

        return self._publish(key, data, has_version)

    def list_objects(self, prefix: str) -> Iterator[str]:
        top = f"{_OBJECTS}/{check_prefix(prefix)}".rstrip("/")
        found: list[str] = []
        with _failures():
            try:
                for directory, _, entries, _ in os.fwalk(top, dir_fd=self._fd):
                    found += [f"{directory}/{entry}".removeprefix(f"{_OBJECTS}/") for entry in entries]
            except FileNotFoundError:  # of `top`
                self._check_there()
        yield from sorted(found)

    def delete_object(self, key: str) -> None:
        path = _object(key)
        with _failures(), self._locked(), suppress(FileNotFoundError):
            self._unlink(path)
            self._sync_directory(dirname(path))

    def _publish(self, key: str, data: bytes, may: Callable[[], bool]) -> bool:
        """Write an object if `may` says so under the lock; what it says."""
        final = _object(key)
        with _failures(), self._written(data) as written:
            self._sync_file_system()  # the file itself, and all chunks that it may name
            with self._locked():
                if not may():
                    return False
                self._placed(self._rename, written, final)
                self._sync_directory(dirname(final))
        return True

    # ---- files ----

    @contextmanager
    def _written(self, data: bytes) -> Iterator[str]:
        """A file in tmp/ with these bytes; the body renames it. Removed if the body leaves it."""
        path, fd = self._new_file()
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
            yield path
        finally:
            with suppress(FileNotFoundError):
                self._unlink(path)
            os.close(fd)

    def _new_file(self) -> tuple[str, int]:
        """An empty file in tmp/, locked."""
        self._make(_TMP)  # somebody may have emptied the store
        for _ in range(_ATTEMPTS):
            path = f"{_TMP}/{secrets.token_hex(16)}"
            fd = self._open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                os.fchmod(fd, 0o644)  # whatever the umask is: the agent is another user
                fcntl.flock(fd, fcntl.LOCK_EX)
                if os.fstat(fd).st_nlink:
                    return path, fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # `recover` of another process found the file before its lock was held
        raise BlockingIOError(errno.EAGAIN, "the files in tmp/ are removed again and again")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = self._open(_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with suppress(PermissionError):  # it is another user's, who may hold it as long as we do
                os.fchmod(fd, 0o600)  # earlier versions let everybody open it
            _lock(fd)
            yield
        finally:
            os.close(fd)

    def _placed(self, place: Callable[[str, str], None], source: str, final: str) -> None:
        """Rename or link into a directory, which a `delete` elsewhere may remove while it is empty."""
        for attempt in range(_ATTEMPTS):
            self._make(dirname(final))
            try:
                return place(source, final)
            except FileNotFoundError:
                if attempt == _ATTEMPTS - 1:
                    raise

    def _check_there(self) -> None:
        """When something is not found. Raises: StoreUnavailable: because the store's own directory is gone."""
        if not os.fstat(self._fd).st_nlink:
            raise StoreUnavailable(self.name, "its directory was removed; restart the worker when it is there again")

    def _make(self, directory: str) -> None:
        """The directory, and those above it."""
        try:
            os.mkdir(directory, 0o755, dir_fd=self._fd)
        except FileExistsError:
            return
        except FileNotFoundError:
            self._check_there()
            self._make(dirname(directory))
            with suppress(FileExistsError):
                os.mkdir(directory, 0o755, dir_fd=self._fd)

    def _open(self, path: str, flags: int, mode: int = 0o644) -> int:
        return os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=self._fd)

    def _rename(self, source: str, target: str) -> None:
        os.rename(source, target, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def _replace(self, source: str, target: str) -> None:
        """As `_rename`, also over a directory, which nobody but a chunk may be where a chunk is."""
        try:
            self._rename(source, target)
        except IsADirectoryError:
            self._remove(target)
            self._rename(source, target)

    def _remove(self, path: str) -> None:
        """A file, or whatever is in its place. A directory leaves its place first, as a whole."""
        try:
            self._unlink(path)
        except IsADirectoryError:
            away = f"{_TMP}/{secrets.token_hex(16)}"
            self._rename(path, away)
            _log.warning("the chunk store had a directory where a file should be, which is removed: %s", path)
            shutil.rmtree(away, dir_fd=self._fd, ignore_errors=True)

    def _link(self, source: str, target: str) -> None:
        os.link(source, target, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def _unlink(self, path: str) -> None:
        os.unlink(path, dir_fd=self._fd)

    def _size(self, path: str) -> int | None:
        try:
            return os.stat(path, dir_fd=self._fd).st_size
        except FileNotFoundError:
            self._check_there()
            return None

    def _read(self, path: str, limit_bytes: int, *, for_all: bool = False) -> bytes | None:
        """A file, of one that is larger more than `limit_bytes` of it; None: there is none. Raises: Tampered: no regular file.

        Args: for_all: EACCES also if only others, such as the agent, may not read it."""
        try:
            fd = self._open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would be waited for until somebody writes
        except FileNotFoundError:
            self._check_there()
            return None
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise Tampered(f"the chunk store {self.name} has something else where a file should be: {path}")
            if for_all and not found.st_mode & stat.S_IROTH:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            with open(fd, "rb", buffering=0, closefd=False) as file:
                return file.readall() if found.st_size <= limit_bytes else file.read(limit_bytes + 1)
        finally:
            os.close(fd)

    def _chunk_read(self, root: str, name: bytes) -> bytes | None:
        """As `_read`. Raises: ChunkUnreadable; Tampered."""
        path = _chunk(root, name)
        try:
            return self._read(path, CHUNK_BYTES, for_all=True)
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

    def _listed(self, directory: str) -> list[str]:
        try:
            fd = self._open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            self._check_there()
            return []
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)

    def _sync_file_system(self) -> None:
        fd = self._open(".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            # SAFETY: int syncfs(int); the fd is open for the whole call.
            if ctypes.CDLL(None, use_errno=True).syncfs(ctypes.c_int(fd)):
                number = ctypes.get_errno()
                raise OSError(number, f"syncfs: {os.strerror(number)}")
        finally:
            os.close(fd)

    def _sync_directory(self, directory: str) -> None:
        fd = self._open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _lock(fd: int) -> None:
    """flock(2). Others hold a lock for a few ms, unless they are stopped: then the log says what is waited for."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _log.info("another process holds the lock of the chunk store; it is waited for")
        fcntl.flock(fd, fcntl.LOCK_EX)


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
