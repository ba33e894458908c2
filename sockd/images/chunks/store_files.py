"""The files of a chunk store in a directory: written in tmp/ and placed from there, so that a reader sees all of one or none.

Owns a descriptor of the directory, and knows no chunk and no object. All paths are relative to the descriptor, so that a confined
process uses a store that has no path in its root.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from os.path import dirname

from sockd.base.errors import StoreUnavailable, Tampered

TMP = "tmp"
_LOCK = "lock"
_ATTEMPTS = 5
_NEW_FILES = 100
"""Attempts at a file of one's own: on a busy host a `recover` is often between its making and its lock."""
_log = logging.getLogger(__name__)


class StoreFiles:
    """The files of one store. Everything may raise OSError."""

    def __init__(self, fd: int, name: str) -> None:
        """Args: fd: of the directory (O_PATH is enough), closed by `close`; name: the store's, in errors."""
        self._fd = fd
        self._name = name

    def close(self) -> None:
        os.close(self._fd)

    def recover(self) -> None:
        """Remove what killed writers left in tmp/. Safe while others write."""
        for entry in self.listed(TMP):
            with suppress(FileNotFoundError, BlockingIOError):
                fd = self._open(f"{TMP}/{entry}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self.remove(f"{TMP}/{entry}")
                finally:
                    os.close(fd)

    @contextmanager
    def written(self, data: bytes) -> Iterator[str]:
        """A file in tmp/ with these bytes; the body renames it. Removed if the body leaves it."""
        path, fd = self._new_file()
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
            yield path
        finally:
            with suppress(FileNotFoundError):
                self.unlink(path)
            os.close(fd)

    def _new_file(self) -> tuple[str, int]:
        """An empty file in tmp/, locked."""
        self.make(TMP)  # the store may have been emptied
        for _ in range(_NEW_FILES):
            path = f"{TMP}/{secrets.token_hex(16)}"
            fd = self._open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                if os.fstat(fd).st_nlink:
                    os.fchmod(fd, 0o644)  # whatever the umask is: the agent is another user
                    return path, fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # `recover` of another process found the file before its lock was held
        raise BlockingIOError(errno.EAGAIN, "the files in tmp/ are removed again and again")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Meanwhile no other process, and no other thread, is in such a block."""
        fd = self._open(_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with suppress(PermissionError):  # it is another user's, who may hold it as long as we do
                os.fchmod(fd, 0o600)  # earlier versions let all users open it
            _lock(fd)
            yield
        finally:
            os.close(fd)

    def placed(self, place: Callable[[str, str], None], source: str, final: str) -> None:
        """Rename or link into a directory, which a `delete` elsewhere may remove while it is empty."""
        for attempt in range(_ATTEMPTS):
            self.make(dirname(final))
            try:
                return place(source, final)
            except FileNotFoundError:
                if attempt == _ATTEMPTS - 1:
                    raise

    def make(self, directory: str) -> None:
        """The directory, and those above it."""
        try:
            os.mkdir(directory, 0o755, dir_fd=self._fd)
        except FileExistsError:
            return
        except FileNotFoundError:
            self._check_there()
            self.make(dirname(directory))
            with suppress(FileExistsError):
                os.mkdir(directory, 0o755, dir_fd=self._fd)

    def _open(self, path: str, flags: int, mode: int = 0o644) -> int:
        return os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=self._fd)

    def rename(self, source: str, target: str) -> None:
        """rename(2): over a file, if there is one."""
        os.rename(source, target, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def replace(self, source: str, target: str) -> None:
        """As `rename`, also over a directory, which has no place where a file should be."""
        try:
            self.rename(source, target)
        except IsADirectoryError:
            self.remove(target)
            self.rename(source, target)

    def remove(self, path: str) -> None:
        """A file, or whatever is in its place. A directory leaves its place first, as a whole."""
        try:
            self.unlink(path)
        except IsADirectoryError:
            away = f"{TMP}/{secrets.token_hex(16)}"
            self.rename(path, away)
            _log.warning("the chunk store had a directory where a file should be, which is removed: %s", path)
            shutil.rmtree(away, dir_fd=self._fd, ignore_errors=True)

    def link(self, source: str, target: str) -> None:
        """link(2): a second name of the same file."""
        os.link(source, target, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def unlink(self, path: str) -> None:
        """unlink(2): of a file alone."""
        os.unlink(path, dir_fd=self._fd)

    def size(self, path: str) -> int | None:
        """The size of a file in bytes; None: there is none."""
        try:
            return os.stat(path, dir_fd=self._fd).st_size
        except FileNotFoundError:
            self._check_there()
            return None

    def read(self, path: str, limit_bytes: int, *, for_all: bool = False) -> bytes | None:
        """A file, of one that is larger more than `limit_bytes` of it; None: there is none. Raises: Tampered: no regular file.

        Args: for_all: EACCES also if only others, such as the agent, may not read it."""
        try:
            fd = self._open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would be waited for until it is written to
        except FileNotFoundError:
            self._check_there()
            return None
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise Tampered(f"the chunk store {self._name} has something else where a file should be: {path}")
            if for_all and not found.st_mode & stat.S_IROTH:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            with open(fd, "rb", buffering=0, closefd=False) as file:
                return file.readall() if found.st_size <= limit_bytes else file.read(limit_bytes + 1)
        finally:
            os.close(fd)

    def walk(self, top: str) -> Iterator[str]:
        """The paths of all files below a directory."""
        try:
            for directory, _, entries, _ in os.fwalk(top, dir_fd=self._fd):
                for entry in entries:
                    yield f"{directory}/{entry}"
        except FileNotFoundError:  # of `top`
            self._check_there()

    def remove_empty(self, directory: str) -> bool:
        """Remove a directory if it is there and empty. Returns: whether it was."""
        try:
            os.rmdir(directory, dir_fd=self._fd)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise
            return False
        return True

    def listed(self, directory: str) -> list[str]:
        """The names in a directory; none if it is not there."""
        try:
            fd = self._open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            self._check_there()
            return []
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)

    def sync_file_system(self) -> None:
        """Make everything durable that was written before, in any file (syncfs(2))."""
        fd = self._open(".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            # SAFETY: int syncfs(int); the fd is open for the whole call.
            if ctypes.CDLL(None, use_errno=True).syncfs(ctypes.c_int(fd)):
                number = ctypes.get_errno()
                raise OSError(number, f"syncfs: {os.strerror(number)}")
        finally:
            os.close(fd)

    def sync_directory(self, directory: str) -> None:
        """Make what was placed in a directory durable, or removed from it."""
        fd = self._open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _check_there(self) -> None:
        """When something is not found. Raises: StoreUnavailable: because the store's own directory is gone."""
        if not os.fstat(self._fd).st_nlink:
            raise StoreUnavailable(self._name, "its directory was removed; restart the worker when it is there again")


def _lock(fd: int) -> None:
    """flock(2). Others hold a lock for a few ms, unless they are stopped: then the log says what is waited for."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _log.info("another process holds the lock of the chunk store; it is waited for")
        fcntl.flock(fd, fcntl.LOCK_EX)
