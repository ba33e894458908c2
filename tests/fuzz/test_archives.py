"""Archives whose every field is somebody's choice: what is taken lies inside the tree, and is what was declared.

Archives that are damaged at random are in tests/functions/code/test_archive.py; these are put together field by field, with the
offsets and lengths right unless they are meant not to be, so that the checks behind the first ones are reached, too.
"""

from __future__ import annotations

import os
import stat
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from sockd.base import zip_directory
from sockd.base.config import CodeConfig
from sockd.base.errors import BadArchive
from sockd.base.zip_directory import CENTRAL, DEFLATED, END, END64, LOCAL, LOCATOR64, STORED
from sockd.functions.code.archive import extract
from tests.fuzz.fuzzing import fuzz

CONFIG = msgspec.structs.replace(CodeConfig(), max_zip_bytes=1 << 20, max_code_bytes=20_000, max_files=12)


@dataclass(frozen=True)
class Member:
    """One entry as its headers declare it; None is what is true."""

    name: bytes = b"f.py"
    content: bytes = b""
    method: int = STORED
    mode: int = stat.S_IFREG | 0o644
    flags: int = 0
    extra: bytes = b""
    local_name: bytes | None = None
    local_extra: bytes = b""
    size: int | None = None
    compressed: int | None = None
    crc: int | None = None
    offset: int | None = None


def archive(members: list[Member], *, prefix: bytes = b"", comment: bytes = b"", zip64: bool = False) -> bytes:
    """The file."""
    data, directory = prefix, b""
    for member in members:
        packed = member.content
        if member.method == DEFLATED:
            packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
            packed = packer.compress(packed) + packer.flush()
        crc = zlib.crc32(member.content) if member.crc is None else member.crc
        sizes = (
            len(packed) if member.compressed is None else member.compressed,
            len(member.content) if member.size is None else member.size,
        )
        offset = len(data) - len(prefix) if member.offset is None else member.offset
        name = member.name if member.local_name is None else member.local_name
        data += LOCAL.pack(
            b"PK\x03\x04", 20, member.flags, member.method, 0, 0, crc, *sizes, len(name), len(member.local_extra)
        )
        data += name + member.local_extra + packed
        directory += CENTRAL.pack(
            b"PK\x01\x02", 3 << 8 | 20, 20, member.flags, member.method, 0, 0, crc, *sizes,
            len(member.name), len(member.extra), 0, 0, 0, member.mode << 16, offset,
        ) + member.name + member.extra  # fmt: skip
    start = len(data) - len(prefix)
    data += directory
    if zip64:
        end = (b"PK\x06\x06", 44, 45, 45, 0, 0, len(members), len(members), len(directory), start)
        data += END64.pack(*end) + LOCATOR64.pack(b"PK\x06\x07", 0, start + len(directory), 1)
    return (
        data + END.pack(b"PK\x05\x06", 0, 0, len(members), len(members), len(directory), start, len(comment)) + comment
    )


U32 = 0xFFFFFFFF
parts = st.sampled_from(
    [b"a", b"b", b"f.py", b"..", b".", b"", b"__pycache__", b"\xc3\xa9", b"\xff", b"x" * 300, b"a\0", b"c\\d"]
)
plain = st.lists(st.sampled_from([b"a", b"b", b"f.py", b"__pycache__", b"\xc3\xa9"]), min_size=1, max_size=4).map(
    b"/".join
)
names = plain | plain | plain.map(lambda name: name + b"/") | st.lists(parts, max_size=4).map(b"/".join)
modes = st.sampled_from(
    [0, stat.S_IFREG | 0o755, stat.S_IFDIR | 0o755, stat.S_IFLNK | 0o777, stat.S_IFIFO, stat.S_IFREG | 0o6777]
)
contents = st.binary(max_size=40) | st.binary(max_size=40) | st.sampled_from([b"", bytes(3000), bytes(30_000)])
numbers = st.sampled_from([0, 1, 40, 30_000, U32 - 1, U32]) | st.integers(0, U32)
extras = st.sampled_from(
    [b"", b"\x01\x00\x08\x00" + b"\xff" * 8, b"\x01\x00\xff\xff", b"\x0d\x00\x0e\x00" + bytes(14), b"\x01"]
)
wrong = st.fixed_dictionaries(
    {},
    optional={
        "method": st.sampled_from([STORED, DEFLATED, 12, 99]),
        "mode": modes,
        "flags": st.sampled_from([0, 1, 8, 0x20, 0x40, 0x800, 0x2000]),
        "extra": extras,
        "local_extra": extras,
        "local_name": names,
        "size": numbers,
        "compressed": numbers,
        "crc": numbers,
        "offset": numbers,
    },
)
right = st.fixed_dictionaries({}, optional={"method": st.sampled_from([STORED, DEFLATED]), "local_extra": extras})
files = st.builds(lambda name, content, fields: Member(name, content, **fields), plain, contents, right)
directories = plain.map(lambda name: Member(name + b"/", mode=stat.S_IFDIR | 0o755))
others = st.builds(lambda name, content, fields: Member(name, content, **fields), names, contents, wrong)
sound = st.lists(files | files | directories, max_size=6)
members = sound | st.builds(lambda some, other, more: [*some, other, *more], sound, others, sound)


@fuzz(250)
@example([Member(b"a"), Member(b"a/b")], b"", b"", False)
@example([Member(b"a/"), Member(b"a/", mode=stat.S_IFDIR)], b"", b"", False)
@example([Member(b"a", mode=stat.S_IFLNK | 0o777, content=b"/etc/passwd"), Member(b"a/b")], b"", b"", False)
@example([Member(b"a", bytes(30_000), DEFLATED, size=10)], b"", b"", False)
@example([Member(b"a", size=U32, extra=b"\x01\x00\x08\x00" + b"\xff" * 8)], b"", b"", False)
@example([Member(b"a", b"x" * 40), Member(b"b", b"x" * 40, offset=0)], b"", b"", False)
@example([Member(b"a")], b"#!/bin/sh\n", b"PK\x05\x06" + bytes(18), True)
@given(
    members,
    st.sampled_from([b"", b"#!/usr/bin/python3\n"]),
    st.sampled_from([b"", b"a comment", b"PK\x05\x06", b"PK\x05\x06" + bytes(18)]),
    st.booleans(),
)
def test_what_is_taken_of_an_archive_is_inside_and_as_declared(
    chosen: list[Member], prefix: bytes, comment: bytes, zip64: bool
) -> None:
    data = archive(chosen, prefix=prefix, comment=comment, zip64=zip64)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "tree").mkdir()
        (directory / "code.zip").write_bytes(data)
        tree = None
        try:
            tree = extract(directory / "code.zip", directory / "tree", CONFIG)
        except BadArchive as error:
            assert str(error) and "/tmp" not in str(error)
        assert sorted(os.listdir(directory)) == ["code.zip", "tree"]
        found = {}
        for path in (directory / "tree").rglob("*"):
            status = path.lstat()
            assert stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFDIR) and status.st_nlink >= 1
            assert not status.st_mode & 0o7022 or status.st_mode & 0o7777 == 0o600  # a file that was refused half way
            found[str(path.relative_to(directory / "tree"))] = status
        assert len(found) <= CONFIG.max_files
        assert sum(each.st_size for each in found.values() if stat.S_ISREG(each.st_mode)) <= CONFIG.max_code_bytes
        if tree is not None:
            assert found.keys() == {*tree.directories, *(file.path for file in tree.files)}
            assert not any("__pycache__" in path for path in found)
            declared = {member.name.removeprefix(b"./"): member.content for member in chosen}
            for file in tree.files:
                content = (directory / "tree" / file.path).read_bytes()
                assert content == declared.get(file.path.encode(), content) and len(content) == file.size_bytes


@fuzz(150)
@given(st.binary(max_size=400), st.integers(0, 1 << 40))
def test_a_file_that_shrinks_while_it_is_read_is_a_bad_archive(data: bytes, size: int) -> None:
    """`size` is what stat said, `data` what is there by now."""

    def read_at(offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    try:
        for entry in zip_directory.read_directory(read_at, min(size, 1 << 20), max_entries=10):
            for _ in zip_directory.contents(read_at, entry):
                continue
    except BadArchive:
        return
