"""The zip format, read strictly: where the entries of an archive are, and the bytes of one.

Owns nothing; bytes come from a `ReadAt` that the caller gives. Knows the format, not what a function may hold: that is
`archive`. The standard library's zipfile is not used to read, because it builds an object for every entry before it
can be asked how many there are, and because before 3.11.8 it takes archives whose entries overlap (the bomb of Fifield,
"A better zip bomb", WOOT 2019). Sizes are those of the central directory only; what an entry really holds is counted.

Format: PKWARE APPNOTE 6.3.10; sections are cited where they bite. Zip64 is read, because tools that write to a pipe use
it for small archives too. Not read: several disks, encryption, methods other than stored and deflate.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sockd.base.errors import BadArchive

ReadAt = Callable[[int, int], bytes]
"""(offset, length) -> at most so many bytes of the archive; fewer only at its end."""

END = struct.Struct("<4s4H2IH")
CENTRAL = struct.Struct("<4s6H3I5H2I")
LOCAL = struct.Struct("<4s5H3I2H")
END64 = struct.Struct("<4sQ2H2I4Q")
LOCATOR64 = struct.Struct("<4sIQI")
END_SIGNATURE, CENTRAL_SIGNATURE, LOCAL_SIGNATURE = b"PK\x05\x06", b"PK\x01\x02", b"PK\x03\x04"
END64_SIGNATURE, LOCATOR64_SIGNATURE = b"PK\x06\x06", b"PK\x06\x07"

STORED, DEFLATED = 0, 8
ENCRYPTED = 0x0001 | 0x0040 | 0x2000
PATCHED = 0x0020
UTF8 = 0x0800
UNIX, OS_X = 3, 19
"""Systems whose external attributes hold a Unix mode: UNIX and OS X (4.4.2)."""
ZIP64, PKWARE_UNIX = 0x0001, 0x000D
"""Extra fields that mean something here (4.5.2)."""
CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as the central directory declares it. Nothing here is believed; `contents` checks it."""

    name: str
    raw_name: bytes
    flags: int
    method: int
    crc32: int
    compressed_bytes: int
    size_bytes: int
    offset: int
    """The offset of the local header, from the start of the file."""
    unix_mode: int
    """st_mode, or 0 when the archive comes from a system without one."""
    is_hard_link: bool

    @property
    def label(self) -> str:
        """The name as messages show it."""
        return label(self.name)


def label(name: str) -> str:
    """A name of the archive as messages show it: quoted, and bounded (the format allows 64 KB)."""
    return repr(name if len(name) <= 120 else name[:120] + "…")


@dataclass(frozen=True, slots=True)
class _End:
    entries: int
    directory_start: int
    directory_bytes: int
    shift: int
    """Bytes in front of the archive (a zipapp's first line): what must be added to every offset."""


def read_directory(read_at: ReadAt, size_bytes: int, *, max_entries: int) -> list[Entry]:
    """Every entry of an archive, none overlapping another.

    Args:
        read_at: where the bytes come from.
        size_bytes: length of the file.
        max_entries: reading stops before the first entry when more are declared.
    Raises: BadArchive."""
    end = _find_end(read_at, size_bytes)
    if end.entries > max_entries:
        raise BadArchive(f"the archive has {end.entries} entries; the limit is {max_entries}")
    entries = _parse_directory(read_at(end.directory_start, end.directory_bytes), end)
    _check_overlaps([(entry.offset, data_start(read_at, entry) + entry.compressed_bytes) for entry in entries], end)
    return entries


def _find_end(read_at: ReadAt, size_bytes: int) -> _End:
    """The end record (4.3.16): the last one whose comment reaches exactly to the end of the file."""
    tail_start = max(0, size_bytes - END.size - 0xFFFF - LOCATOR64.size - END64.size)
    tail = read_at(tail_start, size_bytes - tail_start)
    position = len(tail)
    while (position := tail.rfind(END_SIGNATURE, 0, position)) >= 0:
        if position + END.size > len(tail):
            continue
        _, disk, first_disk, here, entries, directory_bytes, offset, comment = END.unpack_from(tail, position)
        if position + END.size + comment == len(tail):
            break
    else:
        raise BadArchive("this is not a zip archive (no end record)")
    if disk or first_disk or here != entries:
        raise BadArchive("the archive is one part of several")
    stop = position
    if tail[max(0, position - LOCATOR64.size) :].startswith(LOCATOR64_SIGNATURE):
        # The locator's offset is not asked: the record is required to stand right before it, without extensible data.
        stop = position - LOCATOR64.size - END64.size
        if stop < 0 or not tail.startswith(END64_SIGNATURE, stop):
            raise BadArchive("the archive's zip64 end record is damaged")
        entries, directory_bytes, offset = END64.unpack_from(tail, stop)[-3:]
    start = tail_start + stop - directory_bytes
    if start < 0 or start < offset:
        raise BadArchive("the archive is truncated: its directory lies outside of it")
    return _End(entries, start, directory_bytes, start - offset)


def _parse_directory(directory: bytes, end: _End) -> list[Entry]:
    entries = []
    position = 0
    for _ in range(end.entries):
        if directory[position : position + 4] != CENTRAL_SIGNATURE or position + CENTRAL.size > len(directory):
            raise BadArchive("the archive's directory is damaged")
        header = CENTRAL.unpack_from(directory, position)
        _, made_by, _, flags, method, _, _, crc32, compressed_bytes, size_bytes = header[:10]
        name_bytes, extra_bytes, comment_bytes, disk, _, attributes, offset = header[10:]
        name_start = position + CENTRAL.size
        extra_start = name_start + name_bytes
        position = extra_start + extra_bytes + comment_bytes
        if position > len(directory) or disk:
            raise BadArchive("the archive's directory is damaged")
        raw_name = directory[name_start:extra_start]
        extra = _parse_extra(directory[extra_start : extra_start + extra_bytes])
        size_bytes, compressed_bytes, offset = _widened((size_bytes, compressed_bytes, offset), extra.get(ZIP64, b""))
        if offset + end.shift + LOCAL.size > end.directory_start:
            raise BadArchive("the archive is truncated: an entry lies outside of it")
        entries.append(
            Entry(
                name=_decode_name(raw_name, flags),
                raw_name=raw_name,
                flags=flags,
                method=method,
                crc32=crc32,
                compressed_bytes=compressed_bytes,
                size_bytes=size_bytes,
                offset=offset + end.shift,
                unix_mode=attributes >> 16 if made_by >> 8 in (UNIX, OS_X) else 0,
                # This field carries, after 12 fixed bytes, the target of a link or a device number (4.5.7).
                is_hard_link=len(extra.get(PKWARE_UNIX, b"")) > 12,
            )
        )
    if position != len(directory):
        raise BadArchive("the archive's directory is damaged: it is longer than its entries")
    return entries


def _decode_name(raw: bytes, flags: int) -> str:
    # Without the flag a name is CP437 (appendix D), but macOS writes UTF-8 without it.
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        if flags & UTF8:
            raise BadArchive(f"the name {raw[:80]!r} is not UTF-8") from None
        return raw.decode("cp437")


def _parse_extra(extra: bytes) -> dict[int, bytes]:
    fields: dict[int, bytes] = {}
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        fields.setdefault(kind, extra[position + 4 : position + 4 + length])
        position += 4 + length
    return fields


def _widened(numbers: tuple[int, int, int], field: bytes) -> list[int]:
    """The numbers of an entry, those that do not fit 32 bits from its zip64 field, which holds only them (4.5.3)."""
    wide = iter(struct.unpack(f"<{len(field) // 8}Q", field[: len(field) & ~7]))
    return [next(wide, number) if number == 0xFFFFFFFF else number for number in numbers]


def data_start(read_at: ReadAt, entry: Entry) -> int:
    """Where the compressed bytes of an entry begin. Raises BadArchive unless its local header is there and agrees."""
    header = read_at(entry.offset, LOCAL.size)
    if len(header) < LOCAL.size or not header.startswith(LOCAL_SIGNATURE):
        raise BadArchive(f"the archive is damaged at {entry.label}")
    *_, name_bytes, extra_bytes = LOCAL.unpack(header)
    if read_at(entry.offset + LOCAL.size, name_bytes) != entry.raw_name:
        raise BadArchive(f"the archive has two names for {entry.label}")
    return entry.offset + LOCAL.size + int(name_bytes) + int(extra_bytes)


def _check_overlaps(spans: Sequence[tuple[int, int]], end: _End) -> None:
    reached = 0
    for start, stop in sorted(spans):
        if start < reached:
            raise BadArchive("entries of the archive overlap (a zip bomb)")
        reached = stop
    if reached > end.directory_start:
        raise BadArchive("an entry of the archive reaches into its directory")


def contents(read_at: ReadAt, entry: Entry) -> Iterator[bytes]:
    """The bytes of an entry in pieces, never more of them than it declares.

    Raises: BadArchive as soon as the entry turns out to be longer, shorter or other than declared; pieces may have been
        given by then."""
    if entry.flags & (ENCRYPTED | PATCHED):
        raise BadArchive(f"{entry.label} is encrypted")
    pieces = {STORED: _stored, DEFLATED: _inflated}.get(entry.method)
    if pieces is None:
        raise BadArchive(f"{entry.label} uses compression method {entry.method}; only stored and deflate are read")
    left, crc32 = entry.size_bytes, 0
    for piece in pieces(read_at, entry):
        left -= len(piece)
        if left < 0:
            raise BadArchive(f"{entry.label} holds more than the {entry.size_bytes} bytes it declares (a zip bomb)")
        crc32 = zlib.crc32(piece, crc32)
        yield piece
    if left or crc32 != entry.crc32:
        raise BadArchive(f"{entry.label} is damaged: its contents do not match its checksum")


def _compressed(read_at: ReadAt, entry: Entry) -> Iterator[bytes]:
    position = data_start(read_at, entry)
    left = entry.compressed_bytes
    while left:
        piece = read_at(position, min(left, CHUNK_BYTES))
        if not piece:
            raise BadArchive(f"the archive is truncated in {entry.label}")
        yield piece
        position += len(piece)
        left -= len(piece)


_stored = _compressed


def _inflated(read_at: ReadAt, entry: Entry) -> Iterator[bytes]:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    wrong_length = BadArchive(f"{entry.label} is damaged: its compressed data has another length than declared")
    try:
        for piece in _compressed(read_at, entry):
            if inflater.eof:
                raise wrong_length
            while piece:
                yield inflater.decompress(piece, CHUNK_BYTES)
                piece = inflater.unconsumed_tail
        # What zlib still holds when its input ends is a few codes: flush needs no limit of its own.
        yield inflater.flush()
    except zlib.error:
        raise BadArchive(f"{entry.label} is damaged") from None
    if not inflater.eof or inflater.unused_data:
        raise wrong_length
