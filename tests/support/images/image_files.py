"""File trees of images for tests, and what they are compared by: each path with all that stat(2), readlink(2), read(2) and
getxattr(2) tell of it."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sockd.base.file_tree import FileTree, Inode, LayerData
from sockd.linux.erofs.layout import Layout
from sockd.linux.erofs.mounting import mount_image, why_no_images
from tests.support.images.erofs_reader import ErofsReader


class Layers:
    """Uncompressed layers in memory, filled by `file`."""

    def __init__(self) -> None:
        self.layers: dict[int, bytearray] = {}

    def file(self, data: bytes, *, layer: int = 0, mode: int = 0o644, mtime_s: int = 1_700_000_000) -> Inode:
        """A regular file with its data at the end of a layer."""
        inode = Inode(mode=stat.S_IFREG | mode, size=len(data), mtime_s=mtime_s)
        if data:
            content = self.layers.setdefault(layer, bytearray(b"\0" * 512))
            inode.layer, inode.offset = layer, len(content)
            content += data
        return inode

    def read(self, layer: int, offset: int, size: int) -> bytes:
        return bytes(self.layers[layer][offset : offset + size])


def directory(mode: int = 0o755) -> Inode:
    return Inode(mode=stat.S_IFDIR | mode, mtime_s=1_600_000_000)


def symlink(target: str) -> Inode:
    return Inode(mode=stat.S_IFLNK | 0o777, target=target, mtime_s=1_500_000_000)


@dataclass(frozen=True)
class Facts:
    """One path, as programs see it."""

    mode: int
    owner: tuple[int, int]
    mtime: tuple[int, int]
    size: int
    links: int
    first_path: str
    """The first path of the file's hard links."""
    data: str
    """A digest of a file's data; a link's target."""
    rdev: int
    xattrs: tuple[tuple[str, bytes], ...]


def written(tree: FileTree, data: LayerData) -> bytes:
    """The image of a tree."""
    layout = Layout.plan(tree)
    image = b"".join(layout.chunks(data))
    assert len(image) == layout.size_bytes
    return image


def reader_of(image: bytes) -> ErofsReader:
    return ErofsReader(lambda offset, size: image[offset : offset + size])


@contextmanager
def mounted(image: Path, *, by_loop: bool | None = None) -> Iterator[Path]:
    """The image, mounted by the kernel without a path in any mount table. Args: by_loop: None: if it must be."""
    if by_loop is None:
        by_loop = bool(why_no_images(image.parent))
    mount = mount_image(str(image), by_loop=by_loop)
    try:
        yield Path(f"/proc/self/fd/{mount}")
    finally:
        os.close(mount)


def facts_of_tree(tree: FileTree, data: LayerData) -> dict[str, Facts]:
    """What a file system with this tree has to show, but for the sizes of directories."""
    first: dict[int, str] = {}
    links: dict[int, int] = {}
    for path in sorted(tree, key=os.fsencode):
        inode = tree[path]
        first.setdefault(id(inode), path)
        links[id(inode)] = links.get(id(inode), 0) + 1
        if path and stat.S_ISDIR(inode.mode):
            links[id(tree[path.rpartition("/")[0]])] += 1
    found = {}
    for path, inode in tree.items():
        is_directory = stat.S_ISDIR(inode.mode)
        content = inode.target
        if stat.S_ISREG(inode.mode):
            content = hashlib.sha256(
                data.read(inode.layer, inode.offset, inode.size) if inode.size else b""
            ).hexdigest()
        found[path] = Facts(
            inode.mode,
            (inode.uid, inode.gid),
            (inode.mtime_s, inode.mtime_ns),
            len(os.fsencode(inode.target)) if stat.S_ISLNK(inode.mode) else inode.size,
            links[id(inode)] + is_directory,
            first[id(inode)],
            content,
            inode.rdev,
            tuple(sorted(inode.xattrs.items())),
        )
    return found


def facts_of_directory(top: Path) -> dict[str, Facts]:
    """What the kernel shows below a directory."""
    first: dict[int, str] = {}
    found = {}
    waiting = [""]
    paths = []
    while waiting:
        path = waiting.pop()
        paths.append(path)
        if stat.S_ISDIR(os.lstat(os.path.join(top, path)).st_mode):
            waiting += [f"{path}/{name}" if path else name for name in os.listdir(os.path.join(top, path))]
    for path in sorted(paths, key=os.fsencode):
        full = os.path.join(top, path)
        status = os.lstat(full)
        content = ""
        if stat.S_ISREG(status.st_mode):
            with open(full, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(full)
        names = sorted(os.listxattr(full, follow_symlinks=False))
        found[path] = Facts(
            status.st_mode,
            (status.st_uid, status.st_gid),
            divmod(status.st_mtime_ns, 1_000_000_000),
            0 if stat.S_ISDIR(status.st_mode) else status.st_size,
            status.st_nlink,
            first.setdefault(status.st_ino, path),
            content,
            status.st_rdev,
            tuple((name, os.getxattr(full, name, follow_symlinks=False)) for name in names),
        )
    return found


def facts_of_reader(reader: ErofsReader) -> dict[str, Facts]:
    """What our reader shows."""
    first: dict[int, str] = {}
    found = {}
    for path, inode in sorted(reader.walk(), key=lambda item: os.fsencode(item[0])):
        content = ""
        if stat.S_ISREG(inode.mode):
            digest = hashlib.sha256()
            for piece in reader.data_pieces(inode):
                digest.update(piece)
            content = digest.hexdigest()
        elif stat.S_ISLNK(inode.mode):
            content = reader.target(inode)
        found[path] = Facts(
            inode.mode,
            (inode.uid, inode.gid),
            (inode.mtime_s, inode.mtime_ns),
            0 if stat.S_ISDIR(inode.mode) else inode.size,
            inode.links,
            first.setdefault(inode.nid, path),
            content,
            inode.rdev,
            tuple(sorted(reader.xattrs(inode).items())),
        )
    return found
