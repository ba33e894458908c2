"""What a zip file may bring into a code tree, and that nothing else gets in."""

from __future__ import annotations

import contextlib
import io
import os
import random
import stat
import struct
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sockd.base import zip_directory
from sockd.base.config import CodeConfig
from sockd.base.errors import BadArchive
from sockd.functions.code.archive import Tree, checked_path, extract
from sockd.functions.code.packing import pack

CONFIG = CodeConfig(max_zip_bytes=1 << 20, max_code_bytes=4 << 20, max_files=50)


def zipped(*items: tuple[str, bytes], mode: int = stat.S_IFREG | 0o644, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in items:
            info = zipfile.ZipInfo("placeholder")
            info.filename = name  # ZipInfo would cut the name at a zero byte
            info.compress_type = method
            info.create_system = 3
            info.external_attr = (stat.S_IFDIR | 0o755 if name.endswith("/") else mode) << 16
            archive.writestr(info, data)
    return buffer.getvalue()


@pytest.fixture
def unzip(tmp_path: Path) -> Callable[..., Tree]:
    """Extracts bytes into tmp_path/"tree", beside which nothing may appear."""

    def unzip(data: bytes, config: CodeConfig = CONFIG) -> Tree:
        (tmp_path / "code.zip").write_bytes(data)
        (tmp_path / "tree").mkdir(exist_ok=True)
        try:
            return extract(tmp_path / "code.zip", tmp_path / "tree", config)
        finally:
            assert sorted(os.listdir(tmp_path)) == ["code.zip", "tree"]

    return unzip


def test_an_archive_becomes_files_and_directories_with_plain_modes(unzip: Callable[..., Tree], tmp_path: Path) -> None:
    tree = unzip(zipped(("f.py", b"x = 1\n"), ("pkg/sub/g.py", b"y = 2\n"), ("empty/", b"")))
    assert [file.path for file in tree.files] == ["f.py", "pkg/sub/g.py"]
    assert tree.directories == ("empty", "pkg", "pkg/sub")
    assert (tmp_path / "tree/pkg/sub/g.py").read_bytes() == b"y = 2\n"
    assert stat.S_IMODE((tmp_path / "tree/f.py").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "tree/pkg").stat().st_mode) == 0o755
    assert tree.size_bytes == 12


def test_only_the_executable_bit_of_a_mode_survives(unzip: Callable[..., Tree], tmp_path: Path) -> None:
    unzip(zipped(("tool", b"#!/bin/sh\n"), mode=stat.S_IFREG | stat.S_ISUID | 0o4777))
    assert stat.S_IMODE((tmp_path / "tree/tool").stat().st_mode) == 0o755


def test_modes_do_not_depend_on_the_umask(unzip: Callable[..., Tree], tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        unzip(zipped(("d/f.py", b"")))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "tree/d").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "tree/d/f.py").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../f.py", "leaves the archive"),
        ("a/../../f.py", "leaves the archive"),
        ("..", "leaves the archive"),
        ("/etc/passwd", "absolute"),
        ("a\\..\\f.py", "backslash"),
        ("f\0.py", "zero byte"),
        ("", "empty"),
        (".", "empty part"),
        ("a//f.py", "empty part"),
        ("a/./f.py", "empty part"),
        ("a" * 256, "too long"),
        ("é" * 128, "too long"),
        ("a/" * 600 + "f", "too long"),
    ],
)
def test_a_name_that_is_not_plainly_inside_is_refused(unzip: Callable[..., Tree], name: str, words: str) -> None:
    with pytest.raises(BadArchive, match=words):
        unzip(zipped((name, b"x")))


def test_a_leading_dot_slash_is_no_offence(unzip: Callable[..., Tree]) -> None:
    assert [file.path for file in unzip(zipped(("./", b""), ("./f.py", b"x"))).files] == ["f.py"]


@given(st.text(max_size=30))
def test_a_checked_path_never_leaves_its_root(name: str) -> None:
    try:
        path = checked_path(name)
    except (BadArchive, UnicodeEncodeError):
        return
    assert os.path.normpath("/root/" + path).startswith("/root")
    assert path == "" or os.path.normpath(path) == path


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (stat.S_IFLNK, "symbolic link"),
        (stat.S_IFCHR, "device"),
        (stat.S_IFBLK, "device"),
        (stat.S_IFIFO, "device, pipe"),
        (stat.S_IFSOCK, "device, pipe or socket"),
        (stat.S_IFDIR, "half file"),
    ],
)
def test_only_files_and_directories_are_taken(unzip: Callable[..., Tree], kind: int, words: str) -> None:
    with pytest.raises(BadArchive, match=words):
        unzip(zipped(("x", b"/etc/shadow"), mode=kind | 0o644))


def test_a_hard_link_of_the_unix_extra_field_is_refused(unzip: Callable[..., Tree]) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo("x")
        info.extra = struct.pack("<HHIIHH", 0x000D, 12 + 4, 0, 0, 0, 0) + b"f.py"
        archive.writestr(info, b"")
    with pytest.raises(BadArchive, match="hard link"):
        unzip(buffer.getvalue())


@pytest.mark.parametrize("names", [("f", "f"), ("f", "./f"), ("d/", "d/"), ("d", "d/f"), ("d/", "d")])
def test_one_name_twice_is_refused(unzip: Callable[..., Tree], names: tuple[str, str]) -> None:
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # zipfile's own, about the duplicate
        data = zipped(*((name, b"") for name in names))
    with pytest.raises(BadArchive, match=r"twice|both a file and a directory"):
        unzip(data)


def test_an_encrypted_entry_is_refused(unzip: Callable[..., Tree]) -> None:
    data = bytearray(zipped(("f.py", b"x")))
    data[data.index(zip_directory.CENTRAL_SIGNATURE) + 8] |= 1
    with pytest.raises(BadArchive, match="encrypted"):
        unzip(bytes(data))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_unusual_compression_is_refused(unzip: Callable[..., Tree], method: int) -> None:
    with pytest.raises(BadArchive, match="compression method"):
        unzip(zipped(("f.py", b"x"), method=method))


def test_a_hundred_thousand_entries_are_refused_before_any_is_looked_at(unzip: Callable[..., Tree]) -> None:
    end = zip_directory.END.pack(zip_directory.END_SIGNATURE, 0, 0, 60000, 60000, 0, 0, 0)
    with pytest.raises(BadArchive, match="60000 entries; the limit is 50"):
        unzip(end)
    with pytest.raises(BadArchive, match="100000 entries"):
        unzip(zip64_end(entries=100_000, directory_bytes=0, offset=0))


def zip64_end(*, entries: int, directory_bytes: int, offset: int) -> bytes:
    record = zip_directory.END64.pack(
        zip_directory.END64_SIGNATURE, 44, 45, 45, 0, 0, entries, entries, directory_bytes, offset
    )
    locator = zip_directory.LOCATOR64.pack(zip_directory.LOCATOR64_SIGNATURE, 0, offset + directory_bytes, 1)
    end = zip_directory.END.pack(
        zip_directory.END_SIGNATURE, 0, 0, min(entries, 0xFFFF), min(entries, 0xFFFF), 0xFFFFFFFF, 0xFFFFFFFF, 0
    )
    return record + locator + end


def test_implied_directories_count_as_files(unzip: Callable[..., Tree]) -> None:
    with pytest.raises(BadArchive, match="more than 50 files and directories"):
        unzip(zipped(("/".join("d" * 60) + "/f.py", b"")))


def test_a_declared_bomb_is_refused_before_anything_is_written(unzip: Callable[..., Tree], tmp_path: Path) -> None:
    with pytest.raises(BadArchive, match="unpacks to 5242881 bytes; the limit is 4194304"):
        unzip(zipped(("first", b"x"), ("zeros", bytes(5 << 20))))
    assert os.listdir(tmp_path / "tree") == []


def test_a_bomb_that_lies_about_its_size_is_stopped_at_the_size_it_declared(
    unzip: Callable[..., Tree], tmp_path: Path
) -> None:
    data = bytearray(zipped(("zeros", bytes(3 << 20))))
    struct.pack_into("<I", data, data.index(zip_directory.CENTRAL_SIGNATURE) + 24, 1000)
    with pytest.raises(BadArchive, match="more than the 1000 bytes it declares"):
        unzip(bytes(data))
    assert (tmp_path / "tree/zeros").stat().st_size <= 1000


def test_entries_that_share_their_bytes_are_refused(unzip: Callable[..., Tree]) -> None:
    data = zipped(("a", bytes(100_000)))
    start = data.index(zip_directory.CENTRAL_SIGNATURE)
    central = data[start : -zip_directory.END.size]
    end = zip_directory.END.pack(zip_directory.END_SIGNATURE, 0, 0, 20, 20, 20 * len(central), start, 0)
    with pytest.raises(BadArchive, match="overlap"):
        unzip(data[:start] + central * 20 + end)


def test_an_entry_quoted_inside_another_is_refused(unzip: Callable[..., Tree]) -> None:
    inner = zipped(("b", b"x"), method=zipfile.ZIP_STORED)
    data = bytearray(zipped(("a", inner), ("b", b"x"), method=zipfile.ZIP_STORED))
    second = data.rindex(zip_directory.CENTRAL_SIGNATURE)
    struct.pack_into("<I", data, second + 42, data.index(inner))
    with pytest.raises(BadArchive, match="overlap"):
        unzip(bytes(data))


def test_a_wrong_checksum_is_refused(unzip: Callable[..., Tree]) -> None:
    data = zipped(("f.py", b"x = 1"), method=zipfile.ZIP_STORED).replace(b"x = 1", b"x = 2")
    with pytest.raises(BadArchive, match="checksum"):
        unzip(data)


def test_an_archive_over_the_zip_limit_is_refused(unzip: Callable[..., Tree]) -> None:
    with pytest.raises(BadArchive, match="the limit is 10"):
        unzip(zipped(("f.py", b"")), CodeConfig(max_zip_bytes=10))


@pytest.mark.parametrize("data", [b"", b"PK\x05\x06", b"not a zip at all" * 10, b"\x1f\x8b" + bytes(100)])
def test_what_is_no_zip_is_refused(unzip: Callable[..., Tree], data: bytes) -> None:
    with pytest.raises(BadArchive, match="not a zip archive"):
        unzip(data)


def test_bytecode_is_left_out(unzip: Callable[..., Tree]) -> None:
    tree = unzip(zipped(("f.py", b""), ("pkg/__pycache__/g.cpython-311.pyc", b"stale")))
    assert [file.path for file in tree.files] == ["f.py"]
    assert tree.directories == ("pkg",)


def test_a_first_line_in_front_of_the_archive_is_skipped(unzip: Callable[..., Tree]) -> None:
    assert unzip(b"#!/usr/bin/env python3\n" + zipped(("f.py", b"x"))).files[0].path == "f.py"


def test_zip64_of_a_small_archive_is_read(unzip: Callable[..., Tree]) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, archive.open("f.py", "w", force_zip64=True) as file:
        file.write(b"x = 1")
    data = buffer.getvalue()
    start = data.index(zip_directory.CENTRAL_SIGNATURE)
    central = bytearray(data[start : -zip_directory.END.size])
    struct.pack_into("<II", central, 20, 0xFFFFFFFF, 0xFFFFFFFF)
    struct.pack_into("<H", central, 30, 20)
    central += struct.pack("<HHQQ", zip_directory.ZIP64, 16, 5, 5)
    tree = unzip(data[:start] + central + zip64_end(entries=1, directory_bytes=len(central), offset=start))
    assert tree.files[0].size_bytes == 5


def test_zip64_numbers_beyond_every_file_are_refused(unzip: Callable[..., Tree]) -> None:
    data = zipped(("f.py", b"x"))
    start = data.index(zip_directory.CENTRAL_SIGNATURE)
    central = bytearray(data[start : -zip_directory.END.size])
    struct.pack_into("<I", central, 42, 0xFFFFFFFF)
    struct.pack_into("<H", central, 30, 12)
    central += struct.pack("<HHQ", zip_directory.ZIP64, 8, (1 << 64) - 1)
    with pytest.raises(BadArchive, match="outside"):
        unzip(data[:start] + central + zip64_end(entries=1, directory_bytes=len(central), offset=start))


def test_the_digest_is_of_the_tree_and_not_of_the_zip(tmp_path: Path) -> None:
    def digest(number: int, data: bytes) -> str:
        (tmp_path / f"{number}.zip").write_bytes(data)
        (tmp_path / f"{number}").mkdir()
        return extract(tmp_path / f"{number}.zip", tmp_path / f"{number}", CONFIG).digest()

    base = digest(1, zipped(("a.py", b"x"), ("d/b.py", b"y")))
    assert digest(2, zipped(("d/", b""), ("d/b.py", b"y"), ("a.py", b"x"), method=zipfile.ZIP_STORED)) == base
    assert digest(3, zipped(("a.py", b"x"), ("d/b.py", b"z"))) != base
    assert digest(4, zipped(("a.py", b"x"), ("d/b.py", b"y"), mode=stat.S_IFREG | 0o755)) != base
    assert digest(5, zipped(("a.py", b"x"), ("d/c.py", b"y"))) != base


FUZZ_SEEDS = [
    zipped(("f.py", b"x = 1\n" * 50), ("pkg/g.py", b"y"), ("d/", b"")),
    zipped(("f.py", b"x = 1\n" * 50), ("pkg/g.py", b"y"), method=zipfile.ZIP_STORED),
]


def mutated(seed: bytes, rng: random.Random) -> bytes:
    """A seed with a few bytes, fields or lengths changed, mostly in its headers, where it hurts."""
    data = bytearray(seed)
    for _ in range(rng.randint(1, 4)):
        signature = rng.choice([zip_directory.CENTRAL_SIGNATURE, zip_directory.LOCAL_SIGNATURE, b"PK\x05\x06"])
        base = data.find(signature) if rng.random() < 0.8 else rng.randrange(len(data))
        position = min(len(data) - 1, max(0, base) + rng.randrange(50))
        choice = rng.randrange(4)
        if choice == 0:
            data[position] ^= 1 << rng.randrange(8)
        elif choice == 1:
            number = rng.choice([0, 1, 0xFFFF, 0x10000, 0xFFFFFFFF, rng.getrandbits(32)])
            data[position : position + 4] = struct.pack("<I", number)
        elif choice == 2:
            del data[position : position + rng.randint(1, 8)]
        else:
            data[position:position] = rng.randbytes(rng.randint(1, 8))
    return bytes(data)


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=300),
        st.builds(mutated, st.sampled_from(FUZZ_SEEDS), st.integers(0, 1 << 32).map(random.Random)),
    )
)
def test_whatever_the_bytes_only_bad_archive_is_raised_and_nothing_lands_outside(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "tree").mkdir()
        (directory / "code.zip").write_bytes(data)
        with contextlib.suppress(BadArchive):
            assert extract(directory / "code.zip", directory / "tree", CONFIG).size_bytes <= CONFIG.max_code_bytes
        assert sorted(os.listdir(directory)) == ["code.zip", "tree"]
        for path in (directory / "tree").rglob("*"):
            assert stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFREG, stat.S_IFDIR)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,8}(/[a-z]{1,3}){0,2}\.x", fullmatch=True), st.binary(max_size=2000), max_size=8
    ),
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
)
def test_each_archive_of_the_standard_library_is_read_as_the_standard_library_does(
    files: dict[str, bytes], method: int
) -> None:
    data = zipped(*files.items(), method=method)

    def read_at(offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    entries = zip_directory.read_directory(read_at, len(data), max_entries=10)
    assert {entry.name: b"".join(zip_directory.contents(read_at, entry)) for entry in entries} == files


def test_deflate_that_ends_early_or_late_is_refused() -> None:
    data = zipped(("f", random.Random(1).randbytes(5000)))

    def contents_with_length(change: int) -> bytes:
        def read_at(offset: int, length: int) -> bytes:
            return data[offset : offset + length]

        (entry,) = zip_directory.read_directory(read_at, len(data), max_entries=1)
        fields = {name: getattr(entry, name) for name in entry.__slots__}
        fields["compressed_bytes"] += change
        return b"".join(zip_directory.contents(read_at, zip_directory.Entry(**fields)))

    assert zlib.crc32(contents_with_length(0)) != 0
    for change in (-1, 1, 20):
        with pytest.raises(BadArchive, match="damaged"):
            contents_with_length(change)


def test_a_directory_packs_to_the_same_bytes_whatever_its_times_and_order(tmp_path: Path) -> None:
    for name, order in (("one", ["a.py", "b.py"]), ("two", ["b.py", "a.py"])):
        (tmp_path / name / "d").mkdir(parents=True)
        for index, file in enumerate(order):
            (tmp_path / name / file).write_text(file)
            os.utime(tmp_path / name / file, (index * 1e6, index * 1e6))
    assert pack(tmp_path / "one") == pack(tmp_path / "two")


def test_what_packs_extracts_to_the_same_files(tmp_path: Path, unzip: Callable[..., Tree]) -> None:
    source = tmp_path / "tree" / "source"
    (source / "pkg").mkdir(parents=True)
    (source / "pkg" / "tool").write_bytes(b"#!/bin/sh\n")
    (source / "pkg" / "tool").chmod(0o700)
    (source / "größe.txt").write_bytes(b"1")
    for skipped in (".git", "__pycache__", ".venv"):
        (source / skipped).mkdir()
        (source / skipped / "x").write_bytes(b"x")
    tree = unzip(pack(source))
    assert [(file.path, file.executable) for file in tree.files] == [("größe.txt", False), ("pkg/tool", True)]
    assert (tmp_path / "tree/größe.txt").read_bytes() == b"1"


def test_a_link_does_not_pack(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(
        BadArchive,
        match=r"'link' is a link to '/etc/passwd', outside of the directory; .* or name 'link' in \.sockdignore",
    ):
        pack(tmp_path)


def test_a_directory_over_the_limits_does_not_pack(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(1000))
    with pytest.raises(BadArchive, match="holds 1000 B; the limit is 999 B"):
        pack(tmp_path, CodeConfig(max_code_bytes=999))
    with pytest.raises(BadArchive, match="more than 0 files"):
        pack(tmp_path, CodeConfig(max_files=0))
