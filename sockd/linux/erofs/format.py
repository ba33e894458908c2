"""The on-disk format of EROFS, with the names of the kernel's header (Linux: fs/erofs/erofs_fs.h). Little endian.

An image here is: the superblock at byte 1024, the metadata zone (inodes with their extended attributes and inline data,
blocks of directories), data. A nid is the position of an inode in units of 32 bytes from `meta_blkaddr`, which is 0. Only
uncompressed data on one device is described.
"""

from __future__ import annotations

import os
import stat
import struct

EROFS_SUPER_MAGIC_V1 = 0xE0F5E1E2
EROFS_SUPER_OFFSET = 1024
BLOCK_BITS = 12
BLOCK_BYTES = 1 << BLOCK_BITS
"""The kernel accepts blocks up to its page size."""
SLOT_BYTES = 32
"""The unit of nids."""

SUPER_BLOCK = struct.Struct("<IIIBBHQQIIII16s16sIHHHBBIQB23s")
"""struct erofs_super_block: magic, checksum, feature_compat, blkszbits, sb_extslots, root_nid, inos, build_time,
build_time_nsec, blocks, meta_blkaddr, xattr_blkaddr, uuid, volume_name, feature_incompat, u1, extra_devices,
devt_slotoff, dirblkbits, xattr_prefix_count, xattr_prefix_start, packed_nid, xattr_filter_reserved, reserved2."""
FEATURE_COMPAT_SB_CHKSUM = 0x1
FEATURE_COMPAT_MTIME = 0x2

INODE_COMPACT = struct.Struct("<HHHHIIIIHHI")
"""struct erofs_inode_compact: i_format, i_xattr_icount, i_mode, i_nlink, i_size, i_reserved, i_u, i_ino, i_uid, i_gid,
i_reserved2."""
INODE_EXTENDED = struct.Struct("<HHHHQIIIIqII16s")
"""struct erofs_inode_extended: i_format, i_xattr_icount, i_mode, i_reserved, i_size, i_u, i_ino, i_uid, i_gid, i_mtime,
i_mtime_nsec, i_nlink, i_reserved2."""
I_FORMAT_EXTENDED = 0x1
I_DATALAYOUT_SHIFT = 1
EROFS_INODE_FLAT_PLAIN, EROFS_INODE_FLAT_INLINE = 0, 2
"""i_u is the first block of the data. Inline: what does not fill a block (i_size mod 4096) follows the inode, in one block."""

DIRENT = struct.Struct("<QHBB")
"""struct erofs_dirent: nid, nameoff, file_type, reserved. A block of a directory: its dirents by name, then the names. The
first nameoff implies how many there are; the last name ends at a NUL or with the block."""
EROFS_NAME_LEN = 255
FILE_TYPES = {
    stat.S_IFREG: 1,
    stat.S_IFDIR: 2,
    stat.S_IFCHR: 3,
    stat.S_IFBLK: 4,
    stat.S_IFIFO: 5,
    stat.S_IFSOCK: 6,
    stat.S_IFLNK: 7,
}
"""FT_* of include/linux/fs_types.h."""

XATTR_IBODY_HEADER = struct.Struct("<IB7s")
"""struct erofs_xattr_ibody_header: h_name_filter, h_shared_count, h_reserved2; i_xattr_icount is 1 for it alone, and 1 more
for each four bytes of entries."""
XATTR_ENTRY = struct.Struct("<BBH")
"""struct erofs_xattr_entry: e_name_len, e_name_index, e_value_size; then name, value, and zeros to a multiple of four."""
XATTR_PREFIXES = {
    "user.": 1,
    "system.posix_acl_access": 2,
    "system.posix_acl_default": 3,
    "trusted.": 4,
    "security.": 6,
}
"""e_name_index by what stands for it."""


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0xFFFFFFFF) -> int:
    """The kernel's crc32c, which does not invert its result."""
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc


def _crc32c_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC32C = _crc32c_table()


def checksum(block: bytes | bytearray | memoryview) -> int:
    """The superblock's own: of block 0 from the superblock on, without the four bytes of the checksum.

    Args: block: block 0 with zeros as the checksum."""
    return crc32c(block[EROFS_SUPER_OFFSET:BLOCK_BYTES])


def new_encode_dev(rdev: int) -> int:
    """i_u of a device node (Linux: include/linux/kdev_t.h). Args: rdev: of os.makedev."""
    major, minor = os.major(rdev), os.minor(rdev)
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)


def new_decode_dev(value: int) -> int:
    """As os.makedev has it."""
    return os.makedev((value & 0xFFF00) >> 8, (value & 0xFF) | ((value >> 12) & 0xFFF00))


def encode_xattrs(xattrs: dict[str, bytes]) -> bytes:
    """What follows the inode, sorted by name. Empty if there is none that EROFS can hold: like a container runtime on a file
    system without them (ENOTSUP), this leaves out names of other classes.

    Raises: ValueError, for a name or a value that is too long."""
    entries = bytearray()
    for name in sorted(xattrs):
        index, suffix = split_xattr_name(name)
        if not index:
            continue
        raw, value = os.fsencode(suffix), xattrs[name]
        if len(raw) > 255 or len(value) > 0xFFFF:
            raise ValueError(f"extended attribute {name[:80]!r} is too long")
        entries += XATTR_ENTRY.pack(len(raw), index, len(value)) + raw + value
        entries += bytes(-len(entries) % 4)
    if len(entries) // 4 >= 0xFFFF:
        raise ValueError("extended attributes of more than 256 KiB")
    return XATTR_IBODY_HEADER.pack(0, 0, b"") + entries if entries else b""


def split_xattr_name(name: str) -> tuple[int, str]:
    """e_name_index and e_name; 0 if EROFS has no index for it."""
    for prefix, index in XATTR_PREFIXES.items():
        if name == prefix and not prefix.endswith("."):
            return index, ""
        if prefix.endswith(".") and name.startswith(prefix) and name != prefix:
            return index, name[len(prefix) :]
    return 0, ""
