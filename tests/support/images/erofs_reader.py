"""The reader of an EROFS image: its files by path, over a function that reads bytes of the image.

Owns a bounded cache of pieces of the image. The image may be anything: an answer is bounded by limits here, and what is not
EROFS raises DamagedImage. It reads what `layout` writes and what mkfs.erofs writes without compression."""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Callable, Iterator

from sockd.base.errors import DamagedImage
from sockd.linux.erofs import format
from tests.support.images.erofs_decoder import (
    FoundInode,
    SuperBlock,
    decode_directory,
    decode_inode,
    decode_xattr,
    decode_xattr_header,
)

WINDOW_BYTES = 64 << 10
WINDOWS = 64
"""Pieces of the image that are kept: 4 MiB."""
MAX_DIRECTORY_BYTES = 64 << 20
MAX_LINKS = 40
"""Symbolic links in one lookup, as in path_resolution(7)."""
MAX_PATH = 4095
MAX_ENTRIES = 10_000_000
MAX_FILE_BYTES = 16 << 20


class ErofsReader:
    """Files of one image. Paths are relative to its root, as in a FileTree; "" is the root.

    Methods raise DamagedImage; FileNotFoundError, NotADirectoryError and other OSErrors as the system calls do; and what the
    function that reads raises."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        """Args: read: `read(offset, size)` gives exactly `size` bytes of the image."""
        self._read = read
        self._windows = functools.lru_cache(maxsize=WINDOWS)(self._window)
        self._end = format.BLOCK_BYTES  # until the superblock tells
        self.super_block = SuperBlock.decode(self._bytes(0, format.BLOCK_BYTES))
        self._windows.cache_clear()
        self._end = self.super_block.size_bytes

    def stat(self, path: str) -> FoundInode:
        """The inode at a path. A symbolic link at the end is not followed, others are, within the image."""
        return self._walk_to(path, follow=False)[1]

    def resolve(self, path: str) -> str:
        """The same file's path without symbolic links (realpath(3), within the image)."""
        return self._walk_to(path, follow=True)[0]

    def read_file(self, path: str, *, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
        """A regular file's data; symbolic links are followed. Raises: OSError EFBIG, if it is larger than the limit."""
        inode = self._walk_to(path, follow=True)[1]
        if stat.S_ISDIR(inode.mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(inode.mode) or inode.size > limit_bytes:
            code = errno.EFBIG if stat.S_ISREG(inode.mode) else errno.EINVAL
            raise OSError(code, os.strerror(code), path)
        return self.data(inode)

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory, by their bytes; symbolic links are followed."""
        _, inode = self._walk_to(path, follow=True)
        return [os.fsdecode(name) for name in self._entries(inode, path) if name not in (b".", b"..")]

    def walk(self) -> Iterator[tuple[str, FoundInode]]:
        """Each path and its inode, a directory before what is in it; hard links have the same nid."""
        seen = set()
        waiting = [("", self._inode(self.super_block.root_nid))]
        count = directory_bytes = 0
        while waiting:
            path, inode = waiting.pop()
            count += 1
            directory_bytes += inode.size if stat.S_ISDIR(inode.mode) else 0
            # Directories that share their blocks could be as many as they like.
            if count > MAX_ENTRIES or directory_bytes > self._end or len(os.fsencode(path)) >= MAX_PATH:
                raise DamagedImage("the image has too many files, or too long paths")
            yield path, inode
            if stat.S_ISDIR(inode.mode):
                if inode.nid in seen:
                    raise DamagedImage(f"directory {inode.nid} is in two directories")
                seen.add(inode.nid)
                waiting += reversed([*self._children(path, inode)])

    def data(self, inode: FoundInode) -> bytes:
        """All of a file's or a link's data; the caller bounds its size."""
        return b"".join(self._uncached(*piece) for piece in inode.pieces)

    def data_pieces(self, inode: FoundInode, piece_bytes: int = 1 << 20) -> Iterator[bytes]:
        """The data of a file of any size."""
        for start, size in inode.pieces:
            for at in range(0, size, piece_bytes):
                yield self._uncached(start + at, min(piece_bytes, size - at))

    def target(self, inode: FoundInode) -> str:
        """Return the target of a symbolic link."""
        if inode.size > MAX_PATH:
            raise DamagedImage(f"inode {inode.nid}: a symbolic link of {inode.size} bytes")
        raw = b"".join(self._bytes(*piece) for piece in inode.pieces)
        if not raw or b"\0" in raw:
            raise DamagedImage(f"inode {inode.nid}: a symbolic link that no path can be")
        return os.fsdecode(raw)

    def xattrs(self, inode: FoundInode) -> dict[str, bytes]:
        """Extended attributes, by their full names."""
        found: dict[str, bytes] = {}
        if not inode.xattr_bytes:
            return found
        ids, own = decode_xattr_header(inode.nid, self._bytes(inode.xattr_start, inode.xattr_bytes))
        for number in ids:
            start = self.super_block.xattr_start + 4 * number
            longest = format.XATTR_ENTRY.size + 0xFF + 0xFFFF
            name, value, _ = decode_xattr(inode.nid, self._bytes(start, min(longest, max(self._end - start, 0))), 0)
            found[name] = value
        position = 0
        while position < len(own):
            name, value, position = decode_xattr(inode.nid, own, position)
            found[name] = value
        return found

    def _walk_to(self, path: str, *, follow: bool) -> tuple[str, FoundInode]:
        parts = path.split("/")[::-1]
        links = 0
        trail = [("", self._inode(self.super_block.root_nid))]
        while parts:
            part = parts.pop()
            here, inode = trail[-1]
            if part in ("", "."):
                continue
            if part == "..":
                trail = trail[:-1] or trail
                continue
            child = self._child(here, inode, os.fsencode(part), path)
            if stat.S_ISLNK(child.mode) and (parts or follow):
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = self.target(child)
                parts += target.split("/")[::-1]
                trail = trail[:1] if target.startswith("/") else trail
            else:
                trail.append((f"{here}/{part}" if here else part, child))
        return trail[-1]

    def _child(self, here: str, directory: FoundInode, name: bytes, path: str) -> FoundInode:
        entry = self._entries(directory, path).get(name)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._checked(*entry)

    def _children(self, path: str, directory: FoundInode) -> Iterator[tuple[str, FoundInode]]:
        for name, (nid, kind) in self._entries(directory, path).items():
            if name not in (b".", b".."):
                shown = os.fsdecode(name)
                yield f"{path}/{shown}" if path else shown, self._checked(nid, kind)

    def _entries(self, directory: FoundInode, path: str) -> dict[bytes, tuple[int, int]]:
        if not stat.S_ISDIR(directory.mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if directory.size > MAX_DIRECTORY_BYTES:
            raise DamagedImage(f"directory {directory.nid} has {directory.size} bytes")
        return decode_directory(directory.nid, b"".join(self._bytes(*piece) for piece in directory.pieces))

    def _checked(self, nid: int, kind: int) -> FoundInode:
        inode = self._inode(nid)
        if format.FILE_TYPES[stat.S_IFMT(inode.mode)] != kind:
            raise DamagedImage(f"inode {nid} is not of the type that its directory says")
        return inode

    def _inode(self, nid: int) -> FoundInode:
        position = self.super_block.meta_start + nid * format.SLOT_BYTES
        size = min(format.INODE_EXTENDED.size, max(self._end - position, 0))
        inode = decode_inode(nid, position, self._bytes(position, size))
        for start, size in inode.pieces:
            self._check_range(start, size)
        return inode

    def _bytes(self, start: int, size: int) -> bytes:
        """Bytes of metadata, by windows that are kept."""
        self._check_range(start, size)
        found = bytearray()
        while len(found) < size:
            number, offset = divmod(start + len(found), WINDOW_BYTES)
            found += self._windows(number)[offset : offset + size - len(found)]
        return bytes(found)

    def _window(self, number: int) -> bytes:
        start = number * WINDOW_BYTES
        return self._uncached(start, min(WINDOW_BYTES, self._end - start))

    def _uncached(self, start: int, size: int) -> bytes:
        self._check_range(start, size)
        data = self._read(start, size)
        if len(data) != size:
            raise DamagedImage(f"the image ends before its byte {start + size}")
        return data

    def _check_range(self, start: int, size: int) -> None:
        if start < 0 or start + size > self._end:
            raise DamagedImage(f"bytes {start} to {start + size} are outside of the image")
