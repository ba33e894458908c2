"""The metadata zone of an image: its superblock, inodes and directories.

Inodes are extended ones, because compact ones have no modification time, and bytecode is validated by that of its source.
Directories and symbolic links have their data inline where it fits. Order: the root (whose nid has to fit 16 bits); directories
in which the last layer has files, with what is in them; all else that is no directory, by layer and path; the other
directories by path; whole blocks of directories and of long links. So an image with other code in its last layer, like most new
versions of a function, differs in the first chunk only, which has the superblock."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from dataclasses import dataclass, field

from sockd.base.errors import BadImage
from sockd.base.file_tree import FileTree, Inode
from sockd.linux.erofs import format

FIRST_INODE = format.EROFS_SUPER_OFFSET + format.SUPER_BLOCK.size
MAX_PATH = 4095
"""The most bytes of a path with its leading slash, and of a link's target (PATH_MAX, with a NUL)."""
GAP_BYTES = 16 << 10
"""What follows the last layer's directories begins at a multiple of it, wherever a few files more or less leave them."""


@dataclass(slots=True, eq=False)
class Node:
    """One inode of the image and where it is."""

    inode: Inode
    path: bytes
    """The first of its paths by their bytes."""
    links: int = 0
    parent: Node | None = None
    names: list[tuple[bytes, Node]] = field(default_factory=list)
    """The names in a directory, with "." and "..", sorted by their bytes."""
    blocks: list[list[tuple[bytes, Node]]] = field(default_factory=list)
    """`names`, by blocks of the directory."""
    data_bytes: int = 0
    """The bytes of the data of a directory or a symbolic link."""
    xattrs: bytes = b""
    is_inline: bool = False
    is_last_layers: bool = False
    """A directory in which the last layer has a file, or a file in such a directory."""
    position: int = 0
    """The position of the inode in the image."""
    block: int = 0
    """The first block of its data that is not inline."""

    @property
    def nid(self) -> int:
        return self.position // format.SLOT_BYTES

    @property
    def tail_bytes(self) -> int:
        return self.data_bytes % format.BLOCK_BYTES if self.is_inline else 0

    @property
    def record_bytes(self) -> int:
        return format.INODE_EXTENDED.size + len(self.xattrs) + self.tail_bytes


@dataclass(slots=True)
class Metadata:
    """All of an image's inodes, placed; the data blocks of regular files are placed by the layout."""

    nodes: list[Node]
    """By their position; the root is the first."""
    size_bytes: int

    @classmethod
    def of(cls, tree: FileTree) -> Metadata:
        """Raises: BadImage."""
        nodes = _connected(tree)
        for node in nodes:
            _measure(node)
        _mark_last_layer(nodes)
        root, others = nodes[0], nodes[1:]
        others.sort(key=_order)
        placed = [root, *others]
        return cls(placed, _place(placed))

    def encode(self, blocks: int) -> bytes:
        """The zone's bytes. Args: blocks: of the whole image."""
        zone = bytearray(self.size_bytes)
        for node in self.nodes:
            _encode_node(zone, node)
        _encode_super_block(zone, self.nodes, blocks)
        return bytes(zone)


def _order(node: Node) -> tuple[bool, bool, int, bytes]:
    if stat.S_ISDIR(node.inode.mode):
        return not node.is_last_layers, True, 0, node.path
    return not node.is_last_layers, False, node.inode.layer, node.path


def _mark_last_layer(nodes: list[Node]) -> None:
    last = max(node.inode.layer for node in nodes)
    if last <= 0:
        return
    for node in nodes:
        files = [child for _, child in node.names if not child.names]
        if any(child.inode.layer == last for child in files):
            node.is_last_layers = True
            for child in files:
                child.is_last_layers = True


def _connected(tree: FileTree) -> list[Node]:
    """A node for each inode, the root's first. Raises: BadImage."""
    nodes: dict[int, Node] = {}
    by_path: dict[bytes, Node] = {}
    # By their bytes, in which a directory is before what is in it.
    for path, inode in sorted(((os.fsencode(path), inode) for path, inode in tree.items()), key=lambda item: item[0]):
        node = nodes.get(id(inode))
        if node is None:
            node = nodes[id(inode)] = Node(inode, path)
        if path in by_path:
            raise BadImage(f"{_printable(path)} is in the image twice")
        by_path[path] = node
        if path:
            _connect(node, path, by_path)
    root = by_path.get(b"")
    if root is None or not stat.S_ISDIR(root.inode.mode):
        raise BadImage("the image has no root directory")
    root.parent = root
    root.links += 1
    return list(nodes.values())


def _connect(node: Node, path: bytes, by_path: dict[bytes, Node]) -> None:
    """Give a node one more name. Raises: BadImage."""
    directory, _, name = path.rpartition(b"/")
    parent = None if path.startswith(b"/") else by_path.get(directory)
    if parent is None or not stat.S_ISDIR(parent.inode.mode):
        raise BadImage(f"{_printable(path)} is in no directory of the image")
    if name in (b"", b".", b"..") or b"\0" in name or len(name) > format.EROFS_NAME_LEN or len(path) >= MAX_PATH:
        raise BadImage(f"{_printable(path)}: no file can have this name")
    parent.names.append((name, node))
    node.links += 1
    if stat.S_ISDIR(node.inode.mode):
        if node.parent is not None:
            raise BadImage(f"{_printable(path)} is a hard link to a directory")
        node.parent = parent
        parent.links += 1


def _measure(node: Node) -> None:
    """Find how much room an inode needs. Raises: BadImage."""
    mode = node.inode.mode
    if stat.S_IFMT(mode) not in format.FILE_TYPES:
        raise BadImage(f"{_printable(node.path)} has the unknown type {stat.S_IFMT(mode):#o}")
    try:
        node.xattrs = format.encode_xattrs(node.inode.xattrs) if node.inode.xattrs else b""
    except ValueError as error:
        raise BadImage(f"{_printable(node.path)}: {error}") from None
    if stat.S_ISDIR(mode):
        node.links += 1  # its own "."
        assert node.parent is not None
        node.names = sorted([*node.names, (b".", node), (b"..", node.parent)], key=lambda entry: entry[0])
        _fill_blocks(node)
    elif stat.S_ISLNK(mode):
        target = os.fsencode(node.inode.target)
        if not 0 < len(target) <= MAX_PATH or b"\0" in target:
            raise BadImage(f"{_printable(node.path)}: no symbolic link can have this target")
        node.data_bytes = len(target)
    elif stat.S_ISREG(mode) and node.inode.size and (node.inode.layer < 0 or node.inode.size < 0):
        raise BadImage(f"{_printable(node.path)} has no data")
    tail = node.data_bytes % format.BLOCK_BYTES
    node.is_inline = 0 < tail <= format.BLOCK_BYTES - format.INODE_EXTENDED.size - len(node.xattrs)


def _fill_blocks(node: Node) -> None:
    used = format.BLOCK_BYTES
    for entry in node.names:
        cost = format.DIRENT.size + len(entry[0])
        if used + cost > format.BLOCK_BYTES:
            node.blocks.append([])
            used = 0
        node.blocks[-1].append(entry)
        used += cost
    node.data_bytes = (len(node.blocks) - 1) * format.BLOCK_BYTES + used


def _place(nodes: list[Node]) -> int:
    """Give each node its position, and its blocks if it has some here. Returns the end."""
    position, is_first_part = FIRST_INODE, True
    for node in nodes:
        if is_first_part and not node.is_last_layers and node is not nodes[0]:
            position, is_first_part = _round_up(position, GAP_BYTES), False
        size = node.record_bytes
        room = format.BLOCK_BYTES - position % format.BLOCK_BYTES
        if size > room and (size <= format.BLOCK_BYTES or room < format.INODE_EXTENDED.size):
            position += room  # inline data is in one block
        node.position = position
        position = _round_up(position + size, format.SLOT_BYTES)
    block = _round_up(position, format.BLOCK_BYTES) >> format.BLOCK_BITS
    for node in nodes:
        in_blocks = node.data_bytes - node.tail_bytes
        if in_blocks:
            node.block = block
            block += _round_up(in_blocks, format.BLOCK_BYTES) >> format.BLOCK_BITS
    return block << format.BLOCK_BITS


def _encode_node(zone: bytearray, node: Node) -> None:
    inode = node.inode
    kind = stat.S_IFMT(inode.mode)
    layout = format.EROFS_INODE_FLAT_INLINE if node.is_inline else format.EROFS_INODE_FLAT_PLAIN
    is_device = kind in (stat.S_IFCHR, stat.S_IFBLK)
    try:
        format.INODE_EXTENDED.pack_into(
            zone,
            node.position,
            format.I_FORMAT_EXTENDED | layout << format.I_DATALAYOUT_SHIFT,
            (len(node.xattrs) - format.XATTR_IBODY_HEADER.size) // 4 + 1 if node.xattrs else 0,
            inode.mode,
            0,
            inode.size if kind == stat.S_IFREG else node.data_bytes,
            format.new_encode_dev(inode.rdev) if is_device else node.block,
            node.nid & 0xFFFFFFFF,  # not a number of its own, so that a file more changes no other inode
            inode.uid,
            inode.gid,
            inode.mtime_s,
            inode.mtime_ns,
            node.links,
            b"",
        )
    except struct.error:
        raise BadImage(f"{_printable(node.path)}: owner, size or modification time out of range") from None
    start = node.position + format.INODE_EXTENDED.size
    zone[start : start + len(node.xattrs)] = node.xattrs
    if node.data_bytes:
        data = _encode_directory(node) if node.blocks else os.fsencode(inode.target)
        tail, inline = node.tail_bytes, start + len(node.xattrs)
        split = len(data) - tail
        zone[inline : inline + tail] = data[split:]
        block = node.block << format.BLOCK_BITS
        zone[block : block + split] = data[:split]


def _encode_directory(node: Node) -> bytes:
    data = bytearray()
    for block in node.blocks:
        data += bytes(-len(data) % format.BLOCK_BYTES)
        offset = len(block) * format.DIRENT.size
        names = bytearray()
        for name, child in block:
            kind = format.FILE_TYPES[stat.S_IFMT(child.inode.mode)]
            data += format.DIRENT.pack(child.nid, offset + len(names), kind, 0)
            names += name
        data += names
    return bytes(data)


def _encode_super_block(zone: bytearray, nodes: list[Node], blocks: int) -> None:
    def pack(checksum: int, uuid: bytes) -> None:
        format.SUPER_BLOCK.pack_into(
            zone,
            format.EROFS_SUPER_OFFSET,
            format.EROFS_SUPER_MAGIC_V1,
            checksum,
            format.FEATURE_COMPAT_SB_CHKSUM | format.FEATURE_COMPAT_MTIME,
            format.BLOCK_BITS,
            0,
            nodes[0].nid,
            len(nodes),
            *(0, 0),  # a time of its own would be another image each time
            blocks,
            *(0, 0),
            uuid,
            *(b"", 0, 0, 0, 0, 0, 0, 0, 0, 0, b""),
        )

    pack(0, b"")
    # The same metadata in front of other data is the same UUID; nothing mounts by it.
    uuid = hashlib.sha256(zone).digest()[:16]
    pack(0, uuid)
    pack(format.checksum(memoryview(zone)[: format.BLOCK_BYTES]), uuid)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _printable(path: bytes) -> str:
    return "/" + path[:200].decode(errors="backslashreplace")
