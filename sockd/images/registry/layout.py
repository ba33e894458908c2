"""OCI layouts: a directory or an archive of blobs by digest, with an index of the images in it (OCI Image Layout)."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import BinaryIO, Protocol, cast

from sockd.base.errors import BadImage, NoSuchImage
from sockd.images.registry import documents
from sockd.images.registry.digests import Readable, Slice, Verified
from sockd.images.registry.documents import Descriptor, Index, Manifest
from sockd.images.registry.image import Layer, OciImage, Platform
from sockd.images.registry.limits import Limits
from sockd.images.registry.reference import DIGEST

MARK = "oci-layout"
INDEX = "index.json"


class Blobs(Protocol):
    """The files of a layout."""

    def read(self, name: str, most_bytes: int) -> bytes:
        """A small file. Raises: NoSuchImage, BadImage."""

    def open_member(self, name: str) -> Readable:
        """Raises: NoSuchImage."""

    def close(self) -> None:
        """Let go of it."""


class LayoutDirectory:
    """The files of a layout below a directory. No symbolic link in it is followed, so nothing outside is read."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def open(cls, path: str) -> LayoutDirectory:
        """Raises: OSError."""
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY))

    def read(self, name: str, most_bytes: int) -> bytes:
        fd = self._open(name)
        try:
            size = os.fstat(fd).st_size
            if size > most_bytes:
                raise BadImage(f"{name!r} of the layout has {size} bytes; the limit is {most_bytes}")
            return os.pread(fd, size, 0)
        finally:
            os.close(fd)

    def open_member(self, name: str) -> Readable:
        fd = self._open(name)
        return _OwnSlice(fd, os.fstat(fd).st_size)

    def close(self) -> None:
        """Safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _open(self, name: str) -> int:
        fd = os.dup(self._fd)
        for part in name.split("/"):
            try:
                # Not blocking: the author of the layout may have put a FIFO there.
                below = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=fd)
            except (FileNotFoundError, NotADirectoryError):
                raise NoSuchImage(f"the layout is not complete: it has no {name!r}") from None
            except OSError as error:
                raise BadImage(f"{name!r} of the layout cannot be read: {error.strerror}") from None
            finally:
                os.close(fd)
            fd = below
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise BadImage(f"{name!r} of the layout is not a file")
        return fd


class _OwnSlice(Slice):
    """A whole file, with its descriptor."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        super().__init__(lambda offset, size: os.pread(fd, size, offset), 0, size_bytes)
        self._fd = fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        super().close()


class LayoutSource:
    """One image of a layout; see `image.Source`. Owns the blobs."""

    def __init__(self, blobs: Blobs, tag: str, platform: Platform, limits: Limits) -> None:
        """Args: tag: empty: the only one, or `latest`."""
        self._blobs = blobs
        self._tag = tag
        self._platform = platform
        self._limits = limits

    def resolve(self, on_digest: Callable[[str], None] = lambda digest: None) -> OciImage:
        self._blobs.read(MARK, 1 << 16)  # without it, it is no layout
        index = documents.decoded(Index, self._blobs.read(INDEX, documents.MOST_MANIFEST_BYTES), "index.json")
        descriptor = self._named(index)
        for _ in range(documents.MOST_INDEX_DEPTH):
            label = f"the image {self._tag or descriptor.digest[:19]}"
            data = self._document(descriptor, documents.MOST_MANIFEST_BYTES, "the manifest")
            document = documents.index_or_manifest(data, descriptor.media_type, label)
            if isinstance(document, Manifest):
                documents.check_layers(document, label, self._limits.max_layers)
                on_digest(descriptor.digest)
                config = self._document(document.config, documents.MOST_CONFIG_BYTES, "the configuration")
                return documents.image_of(descriptor.digest, document, config, self._platform, label)
            descriptor = documents.choose(document, self._platform, label)
        raise BadImage("the layout has indexes of indexes, too deep")

    def open_layer(self, layer: Layer) -> BinaryIO:
        blob = self._blobs.open_member(_path(layer.digest))
        return cast(BinaryIO, Verified(blob, layer.digest, layer.size_bytes, f"layer {layer.digest[:19]}"))

    def close(self) -> None:
        self._blobs.close()

    def _named(self, index: Index) -> Descriptor:
        """POLICY: the image with the tag; without a tag the only image, `latest`, or the only one for the platform."""
        tags = sorted({one.tag for one in index.manifests} - {""})
        if self._tag:
            named = [one for one in index.manifests if one.tag == self._tag]
            if not named:
                raise NoSuchImage(f"the layout has no tag {self._tag!r}; it has {', '.join(tags)[:300] or 'none'}")
        else:
            named = list(index.manifests)
            if len(named) > 1:
                named = [one for one in named if one.tag == "latest"] or named
        if len(named) == 1:
            return named[0]
        if not named:
            raise NoSuchImage("the layout is empty")
        if len({one.tag for one in named}) > 1:
            raise BadImage(f"the layout has several images; name one of its tags: {', '.join(tags)[:300]}")
        return documents.choose(Index(tuple(named)), self._platform, "the layout")

    def _document(self, descriptor: Descriptor, most_bytes: int, label: str) -> bytes:
        data = self._blobs.read(_path(descriptor.digest), most_bytes)
        return documents.check_digest(data, descriptor.digest, label)


def _path(digest: str) -> str:
    if not DIGEST.fullmatch(digest):
        raise BadImage(f"{digest[:80]!r} is not a digest")
    return f"blobs/{digest.replace(':', '/')}"
