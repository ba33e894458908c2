"""FUSE messages as bytes, with the names of the kernel's header (Linux: include/uapi/linux/fuse.h). Sans-IO.

A request is a header and the arguments of its opcode; a reply is a header and the result. Only what a read-only directory of
files needs is described: a server answers ENOSYS to all other opcodes, and the kernel then stops sending most of them.
Numbers are in the byte order of the machine.
"""

from __future__ import annotations

import enum
import errno
import struct
from typing import NamedTuple

KERNEL_VERSION, KERNEL_MINOR_VERSION = 7, 41
"""FUSE_KERNEL_VERSION and FUSE_KERNEL_MINOR_VERSION of this description."""
OLDEST_MINOR_VERSION = 31
"""The version of Linux 5.4. Kernels before have other structures."""
ROOT_ID = 1
MIN_READ_BUFFER = 8192
"""FUSE_MIN_READ_BUFFER: the kernel refuses a read(2) of the device with less."""
UNIQUE_RESEND = 1 << 63
"""Set in the unique number of a request that the kernel sends again (FUSE_NOTIFY_RESEND); the reply has it, too."""
NOTIFY_RESEND = 7


class Opcode(enum.IntEnum):
    """enum fuse_opcode."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    OPEN = 14
    READ = 15
    STATFS = 17
    RELEASE = 18
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    ACCESS = 34
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


WITHOUT_REPLY = frozenset({Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT})
"""A reply to INTERRUPT is permitted (EAGAIN), and not needed."""


class InitFlag(enum.IntFlag):
    """Flags of INIT. From bit 32 on they are in `flags2`."""

    ASYNC_READ = 1 << 0
    ASYNC_DIO = 1 << 15
    PARALLEL_DIROPS = 1 << 18
    ABORT_ERROR = 1 << 21
    MAX_PAGES = 1 << 22
    INIT_EXT = 1 << 30
    HAS_RESEND = 1 << 39


class OpenFlag(enum.IntFlag):
    """FOPEN_*: what the kernel does with an open file."""

    DIRECT_IO = 1
    KEEP_CACHE = 2
    NOFLUSH = 32


class BadMessage(ValueError):
    """The kernel sent what this module does not describe."""


_IN_HEADER = struct.Struct("=IIQQ16x")
"""fuse_in_header as far as it is used: len, opcode, unique, nodeid; uid, gid, pid, total_extlen and padding are not."""
_OUT_HEADER = struct.Struct("=IiQ")
"""fuse_out_header: len, error, unique."""
_INIT_IN = struct.Struct("=IIIII")
"""fuse_init_in as far as it is used: major, minor, max_readahead, flags, flags2."""
_INIT_OUT = struct.Struct("=IIIIHHIIHHIIH22x")
"""fuse_init_out: major, minor, max_readahead, flags, max_background, congestion_threshold, max_write, time_gran, max_pages,
map_alignment, flags2, max_stack_depth, request_timeout, unused."""
_ATTR = "QQQQQQIIIIIIIIII"
"""fuse_attr: ino, size, blocks, atime, mtime, ctime, their nanoseconds, mode, nlink, uid, gid, rdev, blksize, flags."""
_ENTRY_OUT = struct.Struct("=QQQQII" + _ATTR)
"""fuse_entry_out: nodeid, generation, entry_valid, attr_valid, entry_valid_nsec, attr_valid_nsec, attr."""
_ATTR_OUT = struct.Struct("=QII" + _ATTR)
"""fuse_attr_out: attr_valid, attr_valid_nsec, dummy, attr."""
_OPEN_OUT = struct.Struct("=QIi")
"""fuse_open_out: fh, open_flags, backing_id."""
_READ = struct.Struct("=IIQQ24xQI")
"""A READ as far as it is used: len, opcode, unique and nodeid of fuse_in_header, offset and size of fuse_read_in."""
_READ_OPCODE = int(Opcode.READ)
_STATFS_OUT = struct.Struct("=QQQQQIIII24x")
"""fuse_kstatfs: blocks, bfree, bavail, files, ffree, bsize, namelen, frsize, padding, spare."""
_UNIQUE = struct.Struct("=Q")
HEADER_BYTES = _IN_HEADER.size
_BLOCK_BYTES = 4096
_FOREVER_S = 1 << 31


class Request(NamedTuple):
    """One request of the kernel."""

    opcode: int
    unique: int
    nodeid: int
    body: memoryview
    """The arguments. They are valid until the buffer is used for the next request."""


class InitIn(NamedTuple):
    """What the kernel offers."""

    major: int
    minor: int
    max_readahead: int
    flags: InitFlag


class Attributes(NamedTuple):
    """What stat(2) shows of a node."""

    nodeid: int
    mode: int
    size_bytes: int = 0
    links: int = 1


def decode(message: memoryview) -> Request:
    """One message, as one read(2) of the device returns it. Raises: BadMessage."""
    if len(message) < HEADER_BYTES:
        raise BadMessage(f"a request of {len(message)} bytes")
    length, opcode, unique, nodeid = _IN_HEADER.unpack_from(message)
    if length != len(message):
        raise BadMessage(f"a request of {len(message)} bytes claims {length}")
    return Request(opcode, unique, nodeid, message[HEADER_BYTES:])


def decode_init(body: memoryview) -> InitIn:
    """Raises: BadMessage for a kernel of another time."""
    if len(body) < 16:
        raise BadMessage(f"INIT with {len(body)} bytes")
    major, minor, max_readahead, flags, more = _INIT_IN.unpack(bytes(body[: _INIT_IN.size]).ljust(_INIT_IN.size, b"\0"))
    if not flags & InitFlag.INIT_EXT:
        more = 0
    if major != KERNEL_VERSION or minor < OLDEST_MINOR_VERSION:
        raise BadMessage(f"the kernel speaks FUSE {major}.{minor}, not 7.{OLDEST_MINOR_VERSION} or later")
    return InitIn(major, minor, max_readahead, InitFlag(flags | more << 32))


def decode_name(body: memoryview) -> bytes:
    """The name of LOOKUP. Raises: BadMessage."""
    name, end, rest = bytes(body).partition(b"\0")
    if not end or rest.strip(b"\0"):
        raise BadMessage("LOOKUP without the end of a name")
    return name


def decode_read(buffer: bytearray, size: int) -> tuple[int, int, int, int] | None:
    """(unique, nodeid, offset, size) of a READ; None: the message is another one, or shorter than a READ.

    Args: buffer: of MIN_READ_BUFFER bytes at least; size: of the message at its beginning."""
    length, opcode, unique, nodeid, offset, wanted = _READ.unpack_from(buffer)
    if opcode != _READ_OPCODE or length != size or size < _READ.size:
        return None
    return unique, nodeid, offset, wanted


def decode_interrupt(body: memoryview) -> int:
    """The unique number of the request that INTERRUPT concerns. Raises: BadMessage."""
    try:
        return int(_UNIQUE.unpack_from(body)[0])
    except struct.error:
        raise BadMessage(f"INTERRUPT with {len(body)} bytes") from None


def reply(unique: int, result: bytes = b"") -> bytes:
    """A request is done."""
    return _OUT_HEADER.pack(_OUT_HEADER.size + len(result), 0, unique) + result


def reply_header(unique: int, size: int) -> bytes:
    """The header of a reply whose result of `size` bytes is written in the same writev(2)."""
    return _OUT_HEADER.pack(_OUT_HEADER.size + size, 0, unique)


def error(unique: int, number: int) -> bytes:
    """A request failed. Args: number: an errno."""
    return _OUT_HEADER.pack(_OUT_HEADER.size, -number, unique)


def resend() -> bytes:
    """The notification that has the kernel send again what was read and not answered (Linux 6.9)."""
    return _OUT_HEADER.pack(_OUT_HEADER.size, NOTIFY_RESEND, 0)


def init_out(offer: InitIn, wanted: InitFlag, *, max_readahead: int, max_background: int, max_pages: int) -> bytes:
    """The result of INIT: of the wanted flags those that the kernel offers.

    max_write is the least there is, because nothing is ever written."""
    flags = int(offer.flags & (wanted | InitFlag.INIT_EXT))
    return _INIT_OUT.pack(
        *(KERNEL_VERSION, min(offer.minor, KERNEL_MINOR_VERSION), min(offer.max_readahead, max_readahead)),
        *(
            flags & 0xFFFFFFFF,
            max_background,
            max_background * 3 // 4,
            _BLOCK_BYTES,
            1,
            max_pages,
            0,
            flags >> 32,
            0,
            0,
        ),
    )


def entry_out(attributes: Attributes) -> bytes:
    """The result of LOOKUP. The kernel may keep it: names and attributes of images never change."""
    return _ENTRY_OUT.pack(attributes.nodeid, 0, _FOREVER_S, _FOREVER_S, 0, 0, *_attr(attributes))


def attr_out(attributes: Attributes) -> bytes:
    """The result of GETATTR."""
    return _ATTR_OUT.pack(_FOREVER_S, 0, 0, *_attr(attributes))


def open_out(flags: OpenFlag) -> bytes:
    """The result of OPEN. There are no file handles: the node is enough."""
    return _OPEN_OUT.pack(0, flags, 0)


def statfs_out(size_bytes: int, files: int) -> bytes:
    """The result of STATFS: nothing is free."""
    blocks = -(-size_bytes // _BLOCK_BYTES)
    return _STATFS_OUT.pack(blocks, 0, 0, files, 0, _BLOCK_BYTES, 255, _BLOCK_BYTES, 0)


def _attr(attributes: Attributes) -> tuple[int, ...]:
    blocks = -(-attributes.size_bytes // 512)
    times = (0,) * 6
    return (
        *(attributes.nodeid, attributes.size_bytes, blocks, *times[:3], *times[3:]),
        *(attributes.mode, attributes.links, 0, 0, 0, _BLOCK_BYTES, 0),
    )


# What the tests encode, playing the kernel.


def request(opcode: int, unique: int, nodeid: int, body: bytes = b"") -> bytes:
    """A request as the kernel sends it."""
    return _IN_HEADER.pack(HEADER_BYTES + len(body), opcode, unique, nodeid) + body


def decode_reply(message: bytes) -> tuple[int, int, bytes]:
    """(unique, errno or 0, result). Raises: BadMessage."""
    length, number, unique = _OUT_HEADER.unpack_from(message)
    if length != len(message) or number > 0:
        raise BadMessage(f"a reply of {len(message)} bytes claims {length}, error {number}")
    return unique, -number, message[_OUT_HEADER.size :]


NOT_IMPLEMENTED = errno.ENOSYS
