"""Tar files as bytes: what GNU tar and Python write, sparse files in all their forms, and damage of every kind."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sockd.base.errors import BadImage
from sockd.images.registry.limits import Limits
from sockd.images.registry.merge import apply_layers
from sockd.images.registry.tar_members import BLOCK, Member, members
from tests.images.registry.conftest import Images
from tests.support.examples import examples
from tests.support.images.oci_images import link, member, needs, tar


def read(data: bytes, limits: Limits | None = None) -> list[Member]:
    return list(members(lambda offset, size: data[offset : offset + size], len(data), limits or Limits()))


NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=300)


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            NAMES.filter(lambda name: name.strip("/")),
            st.integers(0, 0o7777),
            st.integers(0, (1 << 32) - 2),
            st.integers(0, 1 << 33).filter(lambda time: time < 1 << 33),
            st.binary(max_size=1500),
        ),
        max_size=5,
    ),
    st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
)
def test_what_python_writes_is_read_as_it_was_given(files: list[tuple[str, int, int, int, bytes]], format: int) -> None:
    made = [
        member(name, data, mode=mode, uid=owner, gid=owner, mtime=mtime, type=tarfile.REGTYPE)
        for name, mode, owner, mtime, data in files
    ]
    data = tar(made, format)
    found = read(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as expected:
        names = [info.name for info in expected]
    assert [each.name.rstrip("/") for each in found] == [name.rstrip("/") for name in names]
    for (_, mode, owner, mtime, content), each in zip(files, found, strict=True):
        assert (each.mode, each.uid, each.gid, each.mtime_s) == (stat.S_IFREG | mode, owner, owner, mtime)
        assert data[each.offset : each.offset + each.size] == content


@needs("tar")
@pytest.mark.parametrize(
    "form",
    [
        ["--format=gnu"],
        ["--format=pax", "--sparse-version=0.0"],
        ["--format=pax", "--sparse-version=0.1"],
        ["--format=pax", "--sparse-version=1.0"],
    ],
    ids=" ".join,
)
def test_sparse_files_of_gnu_tar_are_read_with_their_holes(tmp_path: Path, images: Images, form: list[str]) -> None:
    content = bytearray(4 << 20)
    for number in range(30):  # more parts than a header of the old format has room for
        content[number * 128 << 10 : (number * 128 << 10) + 4096] = os.urandom(4096)
    (tmp_path / "in").mkdir()
    with open(tmp_path / "in" / "sparse", "wb") as file:
        file.truncate(len(content))
        for number in range(30):
            file.seek(number * 128 << 10)
            file.write(content[number * 128 << 10 : (number * 128 << 10) + 4096])
    (tmp_path / "in" / "after").write_text("after")
    command = [
        "tar",
        "--sparse",
        *form,
        "-cf",
        str(tmp_path / "layer.tar"),
        "-C",
        str(tmp_path / "in"),
        "sparse",
        "after",
    ]
    subprocess.run(command, check=True)
    layer = (tmp_path / "layer.tar").read_bytes()
    assert len(layer) < 1 << 20
    result, unpacked = images.merged([layer])
    sparse, after = result.tree["sparse"], result.tree["after"]
    assert unpacked.read(sparse.layer, sparse.offset, sparse.size) == bytes(content)
    assert unpacked.read(after.layer, after.offset, after.size) == b"after"


def test_a_sparse_file_that_is_too_large_is_refused(images: Images) -> None:
    fields = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "f",
        "GNU.sparse.realsize": str(1 << 50),
    }
    layer = tar([member("f", b"0\n".ljust(BLOCK, b"\0"), pax_headers=fields)])
    with pytest.raises(BadImage, match="too large"):
        images.merged([layer])


@pytest.mark.parametrize(
    ("size", "table"),
    [
        ("100", b"1\n0\n200\n"),
        ("100", b"2\n50\n10\n0\n10\n"),
        ("100", b"99999999\n"),
        ("100", b"x\n"),
        ("100", b"1\n0\n"),
        ("-1", b"0\n"),
        ("9" * 30, b"0\n"),
        ("100", b""),
    ],
)
def test_a_malformed_map_of_a_sparse_file_is_refused(size: str, table: bytes) -> None:
    fields = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "f", "GNU.sparse.realsize": size}
    with pytest.raises(BadImage):
        read(tar([member("f", table.ljust(BLOCK, b"\0") if table else b"", pax_headers=fields)]))


def record(text: bytes) -> bytes:
    """A tar file with a pax header of this text, and a file."""
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, len(text)
    return (
        info.tobuf(tarfile.USTAR_FORMAT) + text.ljust(-(-len(text) // BLOCK) * BLOCK, b"\0") + tar([member("f", b"")])
    )


@pytest.mark.parametrize(
    "text",
    [
        b"x",
        b"3 a",
        b"999999 path=x\n",
        b"0 path=x\n",
        b"10 path=xy\n",
        b"9 path=x\n1 \n",
        b"-1 a=b\n",
        b"6 ab\n",
        b"12 path=a\0b\n",
    ],
)
def test_a_malformed_pax_header_is_refused(text: bytes) -> None:
    with pytest.raises(BadImage):
        read(record(text))


def test_extended_attributes_with_any_bytes_are_read() -> None:
    value = bytes(range(256))
    body = b"SCHILY.xattr.user.any=" + value + b"\n"
    length = len(body) + len(str(len(body) + 4)) + 1
    (found,) = read(record(b"%d %s" % (length, body)))
    assert found.xattrs == {"user.any": value}


def test_a_global_header_is_ignored_as_by_docker() -> None:
    data = bytearray(record(b"13 path=other\n"[:13] + b"\n"))
    data[156:157] = b"g"
    checksum = sum(data[:148]) + sum(data[156:512]) + 8 * 32
    data[148:156] = b"%06o\0 " % checksum
    assert [each.name for each in read(bytes(data))] == ["f"]


def test_a_chain_of_headers_is_read_without_recursion() -> None:
    one = record(b"8 a=bcd\n")[: 2 * BLOCK]
    assert read(one * 5000) == []
    long = tarfile.TarInfo("././@LongLink")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 2
    chain = (long.tobuf(tarfile.GNU_FORMAT) + b"n\0".ljust(BLOCK, b"\0")) * 5000
    assert [each.name for each in read(chain + tar([member("f", b"")]))] == ["n"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"x" * 512, "malformed|damaged"),
        (b"x" * 100, "inside of a header"),
        (tar([member("f", b"data" * 1000)])[:1024], "ends inside of 'f'"),
        (bytes(512) + tar([member("f", b"")]), "in its middle"),
        (tar([member("f", type=b"Q")]), "unknown kind"),
        (tar([member("f", type=tarfile.GNUTYPE_LONGNAME)], tarfile.USTAR_FORMAT)[:512] + b"", "."),
    ],
)
def test_what_is_no_tar_file_is_refused_and_an_empty_one_is_not(data: bytes, words: str) -> None:
    assert read(b"") == [] == read(bytes(10_240))
    if words != ".":
        with pytest.raises(BadImage, match=words):
            read(data)


WHOLE = tar(
    [
        member("d/"),
        member("d/" + "n" * 150, b"data" * 100, pax_headers={"SCHILY.xattr.user.a": "b", "mtime": "1.5"}),
        link("l", "d"),
        link("h", "d/" + "n" * 150, is_hard=True),
        member("dev", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    ]
) + tar([member("g" * 120, b"x")], tarfile.GNU_FORMAT)


@settings(max_examples=examples(300))
@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=12), st.integers(0, len(WHOLE)))
def test_any_damage_is_read_or_refused_by_a_typed_error(at: int, change: bytes, end: int) -> None:
    for data in (WHOLE[:at] + change + WHOLE[at + len(change) :], WHOLE[:end], WHOLE[at:]):
        header = bytearray(data[:512])
        if len(header) == 512:  # one whose checksum is right reaches further
            header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * 32)
        for each in (data, bytes(header) + data[512:]):
            try:
                read(each, Limits(max_sparse_parts=1000))
            except BadImage:
                pass


def test_damaged_layers_are_merged_or_refused(images: Images) -> None:
    for number in range(0, 512, 37):
        damaged = bytearray(WHOLE)
        damaged[number] ^= 0xFF
        try:
            _, unpacked = images.merged([bytes(damaged)])
            apply_layers(unpacked, Limits())
        except BadImage as error:
            assert error.message.startswith("layer 1 ")
