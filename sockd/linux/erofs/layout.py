"""The layout of an image: which byte of it is what, planned before any data is read; and its bytes, in order.

    chunk 0 …   superblock, metadata zone; zeros to the end of the chunk
    chunk n …   data of the files, by layer; in a layer those that are read early (`early_files`), then by day of modification
                and path

The same files give the same bytes on any machine: paths are ordered by their bytes, and what a tar archive does not give
(superblock times, inode numbers) follows from the tree. Files that two images have in common should be in chunks that they
have in common, although other files were added, removed or changed. So a large file starts a chunk, and so does about one
small file in 4 MiB of them, selected by its path. Files of one package of a distribution have modification times of one day:
together, an update of the package moves the files after it once instead of once for each directory. What programs read early is
side by side, because each chunk of a first start is a request. The metadata of one image
is in few chunks, which a worker fetches first."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sockd.base.errors import BadImage
from sockd.base.file_tree import FileTree, LayerData
from sockd.linux.erofs import format
from sockd.linux.erofs.early_files import is_early
from sockd.linux.erofs.metadata import Metadata, Node

CHUNK_BYTES = 512 << 10
LARGE_BYTES = 1 << 20
RUN_BYTES = 4 << 20
"""Bytes of small files, on average, between two that start a chunk."""
DAY_S = 86_400
MAX_BYTES = 1 << (32 + format.BLOCK_BITS)
"""Block addresses are 32 bits wide."""


def starts_chunk(path: bytes, size: int) -> bool:
    """POLICY: which files start a chunk. A large one, so that its chunks are the same in each image. Of the small ones a few, the
    more likely the larger, so that a change moves only those up to the next start. A start costs half a chunk of zeros."""
    drawn = int.from_bytes(hashlib.sha256(path).digest()[:4])
    return size >= LARGE_BYTES or drawn * RUN_BYTES < size << 32


class Extent(NamedTuple):
    """The data of one file: bytes `start` to `start + size` of the image."""

    start: int
    size: int
    layer: int
    offset: int


@dataclass(frozen=True, slots=True)
class Layout:
    """An image that could be written."""

    metadata: bytes
    """What comes before the data: whole chunks."""
    extents: tuple[Extent, ...]
    """In the order of the image."""
    size_bytes: int
    """A multiple of CHUNK_BYTES."""

    @classmethod
    def plan(cls, tree: FileTree, *, metadata_bytes: int = 0) -> Layout:
        """Args: metadata_bytes: what the metadata may become when files are added; their data begins behind so much.

        Raises: BadImage, for a tree that no file system could hold, or EROFS could not."""
        metadata = Metadata.of(tree)
        position = data_start = _round_up(max(metadata.size_bytes, metadata_bytes), CHUNK_BYTES)
        extents = []
        early, was_early = _early_files(metadata.nodes), False
        for node in _in_data_order(metadata.nodes, early):
            size, is_one = node.inode.size, node.path in early
            # Early files follow each other without a gap, from a chunk's start to its end.
            starts = is_one != was_early or (not is_one and starts_chunk(node.path, size))
            position = _round_up(position, CHUNK_BYTES if starts else format.BLOCK_BYTES)
            was_early = is_one
            node.block = position >> format.BLOCK_BITS
            extents.append(Extent(position, size, node.inode.layer, node.inode.offset))
            position += size
        if position >= MAX_BYTES:
            raise BadImage("the image's files are larger than 16 TiB")
        blocks = _round_up(position, format.BLOCK_BYTES) >> format.BLOCK_BITS
        encoded = metadata.encode(blocks)
        return cls(encoded + bytes(data_start - len(encoded)), tuple(extents), _round_up(position, CHUNK_BYTES))

    @property
    def metadata_chunks(self) -> int:
        """How many chunks, from the first on, a mount and a walk through all directories read."""
        return len(self.metadata) // CHUNK_BYTES

    def added_from(self, before: Layout) -> int | None:
        """Where the data of files begins that this image has beyond another, at a chunk's start.

        Returns: None if the data before that is not the same."""
        if len(self.metadata) != len(before.metadata) or self.extents[: len(before.extents)] != before.extents:
            return None
        end = max((each.start + each.size for each in before.extents[-1:]), default=len(self.metadata))
        return end // CHUNK_BYTES * CHUNK_BYTES

    def chunks(self, data: LayerData, *, begin: int = 0) -> Iterator[bytes]:
        """The image in pieces of CHUNK_BYTES, with one or two of them in memory.

        Args: begin: where the data begins that is wanted, a multiple of CHUNK_BYTES; the metadata always is.
        Raises: what `data` raises; EOFError, if it returns less than it was asked for."""
        for start in range(0, len(self.metadata), CHUNK_BYTES):
            yield self.metadata[start : start + CHUNK_BYTES]
        base, chunk = max(len(self.metadata), begin), bytearray()
        for start, size, layer, offset in self.extents:
            done = min(size, max(0, base - start))
            while done < size:
                while start + done >= base + CHUNK_BYTES:
                    yield bytes(chunk.ljust(CHUNK_BYTES, b"\0"))
                    base, chunk = base + CHUNK_BYTES, bytearray()
                chunk += bytes(start + done - base - len(chunk))
                piece = min(size - done, CHUNK_BYTES - len(chunk))
                read = data.read(layer, offset + done, piece)
                if len(read) != piece:
                    raise EOFError(f"layer {layer}: {len(read)} bytes instead of {piece} at {offset + done}")
                done += piece
                if piece == CHUNK_BYTES:
                    yield read
                    base += CHUNK_BYTES
                else:
                    chunk += read
        if base < self.size_bytes:
            yield bytes(chunk.ljust(CHUNK_BYTES, b"\0"))


def _early_files(nodes: list[Node]) -> set[bytes]:
    return {node.path for node in nodes if is_early(node.path)}


def _in_data_order(nodes: list[Node], early: set[bytes]) -> list[Node]:
    def order(node: Node) -> tuple[int, bool, int, bytes]:
        day = 0 if node.path in early else node.inode.mtime_s // DAY_S
        return node.inode.layer, node.path not in early, day, node.path

    return sorted((node for node in nodes if stat.S_ISREG(node.inode.mode) and node.inode.size), key=order)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
