"""The members of a tar file: ustar, pax and GNU headers into plain data.

Why not `tarfile`: it reads an extended header of any length into memory and recurses at each, and drops the maps of sparse files'
data; a layer is a stranger's. Where writers of tar files disagree we read as Go's archive/tar does, because docker,
containerd, podman and registries' tools use it. (pax(1), "pax Interchange Format"; tar(5).)
"""

from __future__ import annotations

import re
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from os import fsdecode

from sockd.base.errors import BadImage, ImageTooLarge
from sockd.images.registry.limits import Limits

BLOCK = 512
_HEADER = struct.Struct("100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12s")
_ZEROS = bytes(BLOCK)
_MODES = {
    b"0": stat.S_IFREG,
    b"\0": stat.S_IFREG,
    b"7": stat.S_IFREG,
    b"S": stat.S_IFREG,
    b"2": stat.S_IFLNK,
    b"3": stat.S_IFCHR,
    b"4": stat.S_IFBLK,
    b"5": stat.S_IFDIR,
    b"6": stat.S_IFIFO,
}
_HARD_LINK = b"1"
_DECIMAL = re.compile(rb"(-?)(\d{1,18})(?:\.(\d{0,32}))?")
_PAX_LENGTH = re.compile(rb"(\d{1,9}) ")
_XATTR = b"SCHILY.xattr."
_MOST_MTIME_S = (1 << 33) - 1


@dataclass(slots=True)
class Member:
    """One member. Names are as they are written, undecodable bytes as surrogates."""

    name: str
    mode: int
    """With the type; 0: a hard link."""
    uid: int
    gid: int
    mtime_s: int
    mtime_ns: int
    size: int
    """The size of a regular file in bytes, holes included."""
    target: str
    """The target of a symbolic or hard link."""
    major: int
    minor: int
    offset: int
    """The offset of the data in the tar file."""
    xattrs: dict[str, bytes] = field(default_factory=dict)
    parts: list[tuple[int, int]] | None = None
    """The stored parts of a sparse file, (offset, size) each, in this order and without gaps from `offset` on; None for
    other files."""


@dataclass(slots=True)
class _Extended:
    """What precedes a member and overrides its header."""

    name: bytes | None = None
    target: bytes | None = None
    records: dict[bytes, bytes] = field(default_factory=dict)
    sparse: list[int] = field(default_factory=list)
    """The map of a file in pax sparse format 0.0, whose records repeat."""


def members(read: Callable[[int, int], bytes], size_bytes: int, limits: Limits) -> Iterator[Member]:
    """The members in their order.

    Args: read: at most so many bytes at an offset; size_bytes: of the tar file.
    Raises: BadImage."""
    offset = 0
    extended = _Extended()
    while True:
        block = read(offset, BLOCK)
        if not block or block == _ZEROS:
            if any(read(offset + BLOCK, BLOCK)):
                raise BadImage(f"the tar file has a block of zeros in its middle, at byte {offset}")
            return
        header = _header(block, offset)
        stored = _number(header[4], "size", offset)
        kind = header[7]
        data = offset + BLOCK
        if kind in (b"x", b"X", b"g", b"L", b"K"):
            text = _whole(read, data, stored, limits, offset)
            if kind == b"L":
                extended.name = text.split(b"\0", 1)[0]
            elif kind == b"K":
                extended.target = text.split(b"\0", 1)[0]
            elif kind != b"g":  # a global header is ignored, as by docker
                extended.records, extended.sparse = _records(text, offset)
            offset = data + _rounded(stored)
            continue
        if kind == b"V":  # the label of a volume
            offset = data + _rounded(stored)
            continue
        member = _member(header, block, extended, data, offset)
        offset = data
        if stat.S_ISREG(member.mode):
            stored = _size_record(extended, stored, offset)
            member.size = stored
            if kind == b"S":
                data = _old_sparse(read, member, block, data, limits)
            elif extended.records.keys() & _SPARSE:
                _pax_sparse(read, member, extended, stored, limits)
            if data + stored > size_bytes:
                raise BadImage(f"the tar file ends inside of {member.name[-80:]!r}")
            if member.parts is not None:
                _check_parts(member, data + stored - member.offset, limits)
            offset = data + _rounded(stored)
        yield member
        extended = _Extended()


def _header(block: bytes, offset: int) -> tuple[bytes, ...]:
    if len(block) < BLOCK:
        raise BadImage(f"the tar file ends inside of a header, at byte {offset}")
    header: tuple[bytes, ...] = _HEADER.unpack(block)
    expected = _number(header[6], "checksum", offset)
    if expected != sum(block) - sum(header[6]) + 8 * ord(" "):
        raise BadImage(f"the tar file has a damaged header at byte {offset}")
    return header


def _number(text: bytes, what: str, offset: int) -> int:
    """Octal digits, or GNU's base 256."""
    if text[0] & 0x80:
        value = int.from_bytes(bytes([text[0] & 0x7F]) + text[1:])
        if text[0] & 0x40:
            value -= 1 << (8 * len(text) - 1)
    else:
        try:
            value = int(text.split(b"\0", 1)[0].strip(b" \0") or b"0", 8)
        except ValueError:
            raise BadImage(f"the tar file has a malformed {what} at byte {offset}") from None
    if value < 0 and what != "time":
        raise BadImage(f"the tar file has a negative {what} at byte {offset}")
    return value


def _rounded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _whole(read: Callable[[int, int], bytes], at: int, size: int, limits: Limits, offset: int) -> bytes:
    if size > limits.max_header_bytes:
        raise ImageTooLarge(f"the tar file has an extended header of {size} bytes at byte {offset}")
    text = read(at, size)
    if len(text) < size:
        raise BadImage(f"the tar file ends inside of an extended header, at byte {offset}")
    return text


def _records(text: bytes, offset: int) -> tuple[dict[bytes, bytes], list[int]]:
    """`LENGTH KEY=VALUE\\n`, each."""
    records: dict[bytes, bytes] = {}
    sparse: list[int] = []
    at = 0
    while at < len(text):
        found = _PAX_LENGTH.match(text, at)
        end = at + int(found[1]) if found else 0
        if found is None or end > len(text) or end <= found.end() or text[end - 1 : end] != b"\n":
            raise BadImage(f"the tar file has a malformed pax header at byte {offset}")
        key, equals, value = text[found.end() : end - 1].partition(b"=")
        if not equals or not key or (b"\0" in value and not key.startswith(_XATTR)):
            raise BadImage(f"the tar file has a malformed pax record at byte {offset}")
        if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
            sparse.append(_decimal(value, offset))
        records[key] = value
        at = end
    return records, sparse


def _decimal(value: bytes, offset: int) -> int:
    if not value.isdigit() or len(value) > 18:
        raise BadImage(f"the tar file has a malformed number at byte {offset}")
    return int(value)


def _member(header: tuple[bytes, ...], block: bytes, extended: _Extended, data: int, offset: int) -> Member:
    kind = header[7]
    records = extended.records
    name = records.get(b"GNU.sparse.name") or records.get(b"path") or extended.name or _ustar_name(header, block)
    target = records.get(b"linkpath") or extended.target or header[8].split(b"\0", 1)[0]
    mode = _MODES.get(kind, 0)
    if not mode and kind != _HARD_LINK:
        raise BadImage(f"the tar file has a member of the unknown kind {kind!r} at byte {offset}")
    if kind == b"\0" and name.endswith(b"/"):
        mode = stat.S_IFDIR  # before POSIX, directories had no kind
    mtime_s, mtime_ns = _mtime(records.get(b"mtime"), header[5], offset)
    return Member(
        name=fsdecode(name),
        mode=mode | (_number(header[1], "mode", offset) & 0o7777 if mode else 0),
        uid=_id(records.get(b"uid"), header[2], offset),
        gid=_id(records.get(b"gid"), header[3], offset),
        mtime_s=mtime_s,
        mtime_ns=mtime_ns,
        size=0,
        target=fsdecode(target),
        major=_number(header[12], "device", offset) if kind in b"34" else 0,
        minor=_number(header[13], "device", offset) if kind in b"34" else 0,
        offset=data,
        xattrs={fsdecode(key[len(_XATTR) :]): value for key, value in records.items() if key.startswith(_XATTR)},
    )


def _ustar_name(header: tuple[bytes, ...], block: bytes) -> bytes:
    name = header[0].split(b"\0", 1)[0]
    if header[9] != b"ustar\x0000":  # GNU's has other fields where the prefix is
        return name
    prefix = header[14][:131] if block[508:] == b"tar\0" else header[14]
    prefix = prefix.split(b"\0", 1)[0]
    return prefix + b"/" + name if prefix else name


def _id(record: bytes | None, text: bytes, offset: int) -> int:
    value = _decimal(record, offset) if record else _number(text, "user or group", offset)
    if value >= 0xFFFFFFFF:
        raise BadImage(f"the tar file has the user or group {value} at byte {offset}")
    return value


def _mtime(record: bytes | None, text: bytes, offset: int) -> tuple[int, int]:
    """Seconds and nanoseconds; times that no file system here can hold become its first or last."""
    if record:
        found = _DECIMAL.fullmatch(record)
        if found is None:
            raise BadImage(f"the tar file has a malformed time at byte {offset}")
        seconds, nanoseconds = int(found[2]), int((found[3] or b"0")[:9].ljust(9, b"0"))
        if found[1]:
            seconds = -seconds
    else:
        seconds, nanoseconds = _number(text, "time", offset), 0
    if seconds < 0:
        return 0, 0
    return (seconds, nanoseconds) if seconds <= _MOST_MTIME_S else (_MOST_MTIME_S, 0)


def _size_record(extended: _Extended, stored: int, offset: int) -> int:
    record = extended.records.get(b"size")
    return _decimal(record, offset) if record else stored


# ---- sparse files: the four forms of GNU tar ("Storing Sparse Files" in its manual) ----

_SPARSE = {b"GNU.sparse.size", b"GNU.sparse.realsize", b"GNU.sparse.map", b"GNU.sparse.major"}


def _old_sparse(read: Callable[[int, int], bytes], member: Member, block: bytes, data: int, limits: Limits) -> int:
    """The map in and after the header; returns where the data begins."""
    member.parts = []
    table, is_extended, most = block[386:482], block[482], 4
    member.size = _number(block[483:495], "size", data)
    while True:
        for number in range(most):
            entry = table[number * 24 : number * 24 + 24]
            if not any(entry[12:24]) and not any(entry[:12]):
                break
            member.parts.append((_number(entry[:12], "offset", data), _number(entry[12:], "size", data)))
        if not is_extended:
            break
        table = read(data, BLOCK)
        if len(table) < BLOCK or len(member.parts) > limits.max_sparse_parts:
            raise BadImage(f"the map of the sparse file {member.name[-80:]!r} is too long or incomplete")
        is_extended, most = table[504], 21
        data += BLOCK
    member.offset = data
    return data


def _pax_sparse(
    read: Callable[[int, int], bytes], member: Member, extended: _Extended, stored: int, limits: Limits
) -> None:
    records, at = extended.records, member.offset
    size = records.get(b"GNU.sparse.realsize") or records.get(b"GNU.sparse.size") or b""
    if records.get(b"GNU.sparse.major") == b"1":
        numbers, used = _map_in_data(read, at, stored, limits, member.name)
        member.offset += used
    elif b"GNU.sparse.map" in records:
        numbers = [_decimal(each, at) for each in records[b"GNU.sparse.map"].split(b",") if each]
    else:
        numbers = extended.sparse
    if len(numbers) % 2:
        raise BadImage(f"the map of the sparse file {member.name[-80:]!r} is malformed")
    member.size = _decimal(size, at)
    member.parts = list(zip(numbers[::2], numbers[1::2], strict=True))


def _map_in_data(
    read: Callable[[int, int], bytes], at: int, stored: int, limits: Limits, name: str
) -> tuple[list[int], int]:
    """Format 1.0: the count of parts, then their offsets and sizes, a line each, padded to a block."""
    text = b""
    while True:
        text += (block := read(at + len(text), min(BLOCK, stored - len(text))))
        lines = text.split(b"\n")
        count = _decimal(lines[0], at) if len(lines) > 1 else 0
        if len(lines) > 1 and len(lines) > 2 * count + 1:
            return [_decimal(line, at) for line in lines[1 : 2 * count + 1]], len(text)
        if len(block) < BLOCK or count > limits.max_sparse_parts or len(text) > 64 * limits.max_sparse_parts:
            raise BadImage(f"the map of the sparse file {name[-80:]!r} is too long or incomplete")


def _check_parts(member: Member, stored: int, limits: Limits) -> None:
    assert member.parts is not None
    end = 0
    for offset, size in member.parts:
        if offset < end or offset + size > member.size:
            raise BadImage(f"the map of the sparse file {member.name[-80:]!r} is malformed")
        end = offset + size
    if sum(size for _, size in member.parts) != stored or len(member.parts) > limits.max_sparse_parts:
        raise BadImage(f"the map of the sparse file {member.name[-80:]!r} does not fit its data")
