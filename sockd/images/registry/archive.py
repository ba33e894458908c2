"""A tar file whose members are read by name, at random: the container of OCI and docker archives.

Owns a descriptor of the file, or of its uncompressed copy.
"""

from __future__ import annotations

import os
import posixpath
import stat
import tempfile

from sockd.base.errors import BadImage, ImageTooLarge, NoSuchImage
from sockd.images.registry.decompression import GZIP, ZSTD, decompressed
from sockd.images.registry.digests import AGAIN, Slice
from sockd.images.registry.limits import Limits
from sockd.images.registry.tar_members import members

MOST_MEMBERS = 20_000
"""An archive of one image has a few for each layer."""
_COPY_BYTES = 1 << 20


class Archive:
    """`open` reads the names of all members; `read` and `open_member` their data."""

    def __init__(self, fd: int, found: dict[str, tuple[int, int]], links: dict[str, str]) -> None:
        self._fd = fd
        self._found = found
        self._links = links

    @classmethod
    def open(cls, path: str | int, directory: str, limits: Limits) -> Archive:
        """Args: path: or a descriptor, which is closed; directory: for the uncompressed copy of a compressed archive.
        Raises: BadImage; OSError."""
        with open(path, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadImage("the archive is neither a file nor a directory")
            start = file.read(4)
            file.seek(0)
            if start.startswith((GZIP, ZSTD)):
                fd = _uncompressed(file, directory, limits)
            else:
                fd = os.dup(file.fileno())
        try:
            return cls(fd, *_index(fd, limits))
        except BaseException:
            os.close(fd)
            raise

    def __contains__(self, name: str) -> bool:
        return self._target(name) in self._found

    def read(self, name: str, most_bytes: int) -> bytes:
        """A small member. Raises: NoSuchImage, BadImage."""
        offset, size = self._place(name)
        if size > most_bytes:
            raise BadImage(f"{name!r} of the archive has {size} bytes; the limit is {most_bytes}")
        return os.pread(self._fd, size, offset)

    def open_member(self, name: str) -> Slice:
        """Its data as a stream. Raises: NoSuchImage."""
        offset, size = self._place(name)
        return Slice(lambda at, length: os.pread(self._fd, length, at), offset, size)

    def size_bytes(self, name: str) -> int:
        """Raises: NoSuchImage."""
        return self._place(name)[1]

    def close(self) -> None:
        """Safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _target(self, name: str) -> str:
        return self._links.get(name, name)

    def _place(self, name: str) -> tuple[int, int]:
        try:
            return self._found[self._target(name)]
        except KeyError:
            raise NoSuchImage(f"the archive is not complete: it has no {name[:200]!r}; {AGAIN}") from None


def _index(fd: int, limits: Limits) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    found: dict[str, tuple[int, int]] = {}
    links: dict[str, str] = {}
    size_bytes = os.fstat(fd).st_size
    for number, member in enumerate(members(lambda offset, size: os.pread(fd, size, offset), size_bytes, limits)):
        if number >= MOST_MEMBERS:
            raise ImageTooLarge(f"the archive has more than {MOST_MEMBERS} members")
        name = posixpath.normpath(member.name).lstrip("/")
        if stat.S_ISREG(member.mode):
            found[name] = (member.offset, member.size)
        elif stat.S_ISLNK(member.mode):  # docker save did this for layers that images share
            links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.target))
        elif not member.mode:
            links[name] = posixpath.normpath(member.target).lstrip("/")
    return found, links


def _uncompressed(file: object, directory: str, limits: Limits) -> int:
    with tempfile.TemporaryFile(dir=directory, buffering=0) as copy:
        stream = decompressed(file, "the archive")  # type: ignore[arg-type]
        size_bytes = 0
        while data := stream.read(_COPY_BYTES):
            size_bytes += len(data)
            if size_bytes > limits.max_bytes:
                raise ImageTooLarge(f"the archive has more than {limits.max_bytes >> 20} MB uncompressed")
            copy.write(data)
        return os.dup(copy.fileno())
