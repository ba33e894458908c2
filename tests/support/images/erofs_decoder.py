"""The structures of an EROFS image, decoded from bytes that may be anything.

Each function raises DamagedImage for what the kernel would refuse and for what this package does not read (compression,
several devices); no function reads beyond what it was given, or loops longer than its input is. The caller has read the
bytes, and has bounded how many."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from sockd.base.errors import DamagedImage
from sockd.linux.erofs import format

_PREFIX_OF = {index: prefix for prefix, index in format.XATTR_PREFIXES.items()}
_NODATA = (stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK)


@dataclass(frozen=True, slots=True)
class SuperBlock:
    """What a reader needs of it."""

    size_bytes: int
    root_nid: int
    meta_start: int
    xattr_start: int
    inodes: int
    uuid: bytes

    @classmethod
    def decode(cls, block: bytes) -> SuperBlock:
        """Args: block: block 0."""
        if len(block) != format.BLOCK_BYTES:
            raise DamagedImage("no superblock: the image is too short")
        fields = format.SUPER_BLOCK.unpack_from(block, format.EROFS_SUPER_OFFSET)
        magic, stored, compat, bits, _, root_nid, inodes, _, _, blocks, meta, xattr, uuid, _, incompat = fields[:15]
        if magic != format.EROFS_SUPER_MAGIC_V1:
            raise DamagedImage("not an EROFS image")
        if bits != format.BLOCK_BITS:
            raise DamagedImage(f"blocks of 2^{bits} bytes; they have to be of 4096")
        if incompat or fields[16]:
            raise DamagedImage(f"features that are not read here: {incompat:#x}, {fields[16]} more devices")
        if compat & format.FEATURE_COMPAT_SB_CHKSUM:
            zeroed = bytearray(block)
            zeroed[format.EROFS_SUPER_OFFSET + 4 : format.EROFS_SUPER_OFFSET + 8] = bytes(4)
            if format.checksum(zeroed) != stored:
                raise DamagedImage("the superblock's checksum is wrong")
        starts = meta << format.BLOCK_BITS, xattr << format.BLOCK_BITS
        return cls(blocks << format.BLOCK_BITS, root_nid, *starts, inodes, uuid)


@dataclass(frozen=True, slots=True)
class FoundInode:
    """One inode of an image."""

    nid: int
    mode: int
    uid: int
    gid: int
    mtime_s: int
    mtime_ns: int
    """Both 0 for an inode without (a compact one)."""
    size: int
    links: int
    rdev: int
    xattr_start: int
    xattr_bytes: int
    pieces: tuple[tuple[int, int], ...]
    """Offset and size of its data in the image: one extent, or the full blocks and the inline tail."""


def decode_inode(nid: int, position: int, data: bytes) -> FoundInode:
    """Args: position: of the inode in the image. data: 64 bytes from there on, or 32 at the image's end."""
    if len(data) < format.INODE_COMPACT.size:
        raise DamagedImage(f"inode {nid} is outside of the image")
    i_format = int.from_bytes(data[:2], "little")
    if i_format & format.I_FORMAT_EXTENDED:
        if len(data) < format.INODE_EXTENDED.size:
            raise DamagedImage(f"inode {nid} is outside of the image")
        found = format.INODE_EXTENDED.unpack_from(data)
        _, icount, mode, _, size, i_u, _, uid, gid, mtime_s, mtime_ns, links, _ = found
        inode_bytes = format.INODE_EXTENDED.size
    else:
        _, icount, mode, links, size, _, i_u, _, uid, gid, _ = format.INODE_COMPACT.unpack_from(data)
        mtime_s = mtime_ns = 0
        inode_bytes = format.INODE_COMPACT.size
    kind, layout = stat.S_IFMT(mode), i_format >> format.I_DATALAYOUT_SHIFT
    if kind not in format.FILE_TYPES or layout not in (format.EROFS_INODE_FLAT_PLAIN, format.EROFS_INODE_FLAT_INLINE):
        raise DamagedImage(f"inode {nid} has the mode {mode:#o} and the data layout {layout}")
    if mtime_ns >= 1_000_000_000 or size >= 1 << 63:
        raise DamagedImage(f"inode {nid} has a size or a modification time out of range")
    xattr_start = position + inode_bytes
    xattr_bytes = format.XATTR_IBODY_HEADER.size + (icount - 1) * 4 if icount else 0
    pieces: tuple[tuple[int, int], ...] = ()
    if size and kind not in _NODATA:
        block = i_u << format.BLOCK_BITS
        tail = size % format.BLOCK_BYTES if layout == format.EROFS_INODE_FLAT_INLINE else 0
        inline = xattr_start + xattr_bytes
        if layout == format.EROFS_INODE_FLAT_INLINE and not tail:
            raise DamagedImage(f"inode {nid} has inline data, but full blocks")
        if inline % format.BLOCK_BYTES + tail > format.BLOCK_BYTES:
            raise DamagedImage(f"inode {nid} has inline data in two blocks")
        pieces = tuple(piece for piece in ((block, size - tail), (inline, tail)) if piece[1])
    rdev = format.new_decode_dev(i_u) if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0
    return FoundInode(nid, mode, uid, gid, mtime_s, mtime_ns, size, links, rdev, xattr_start, xattr_bytes, pieces)


def decode_directory(nid: int, data: bytes) -> dict[bytes, tuple[int, int]]:
    """Nid and file type by name, with "." and "..". Args: data: all of the directory's."""
    found: dict[bytes, tuple[int, int]] = {}
    last = b""
    for start in range(0, len(data), format.BLOCK_BYTES):
        for name, child, kind in _decode_block(nid, data[start : start + format.BLOCK_BYTES]):
            # The kernel searches by bisection: it would not find what is out of order.
            if name <= last:
                raise DamagedImage(f"directory {nid} is not sorted")
            found[name] = child, kind
            last = name
    if b"." not in found or b".." not in found:
        raise DamagedImage(f"directory {nid} lacks its own entry or its parent's")
    return found


def _decode_block(nid: int, block: bytes) -> Iterator[tuple[bytes, int, int]]:
    size = format.DIRENT.size
    first = int.from_bytes(block[8:10], "little") if len(block) >= size else 0
    if first < size or first % size or first > len(block):
        raise DamagedImage(f"directory {nid} has a block without entries")
    count = first // size
    dirents = [format.DIRENT.unpack_from(block, number * size) for number in range(count)]
    for number, (child, offset, kind, _) in enumerate(dirents):
        end = dirents[number + 1][1] if number + 1 < count else len(block)
        if not first <= offset < end <= len(block):
            raise DamagedImage(f"directory {nid} has a name outside of its block")
        name = block[offset:end]
        if number + 1 == count:
            name = name.rstrip(b"\0")
        if not 0 < len(name) <= format.EROFS_NAME_LEN or b"/" in name or b"\0" in name:
            raise DamagedImage(f"directory {nid} has a name that no file can have")
        yield name, child, kind


def decode_xattr_header(nid: int, data: bytes) -> tuple[list[int], bytes]:
    """Ids of shared attributes, and the inode's own entries. Args: data: all that follows the inode."""
    _, shared, _ = format.XATTR_IBODY_HEADER.unpack_from(data)
    start = format.XATTR_IBODY_HEADER.size + 4 * shared
    if start > len(data):
        raise DamagedImage(f"inode {nid} has more shared attributes than room for them")
    ids = [int.from_bytes(data[at : at + 4], "little") for at in range(format.XATTR_IBODY_HEADER.size, start, 4)]
    return ids, data[start:]


def decode_xattr(nid: int, data: bytes, position: int) -> tuple[str, bytes, int]:
    """Name, value and end of the entry at `position`; the end is a multiple of four bytes later."""
    if position + format.XATTR_ENTRY.size > len(data):
        raise DamagedImage(f"inode {nid} has half an attribute")
    name_bytes, index, value_bytes = format.XATTR_ENTRY.unpack_from(data, position)
    start = position + format.XATTR_ENTRY.size
    end = start + name_bytes + value_bytes
    prefix = _PREFIX_OF.get(index)
    if end > len(data) or prefix is None or prefix.endswith(".") != bool(name_bytes):
        raise DamagedImage(f"inode {nid} has an attribute of the unknown class {index}, or half of one")
    name = data[start : start + name_bytes]
    return prefix + os.fsdecode(name), data[start + name_bytes : end], position + -(-(end - position) // 4) * 4
