"""FUSE messages: sizes as in the kernel's header, and nothing but BadMessage for bytes that are no message."""

from __future__ import annotations

import errno
import stat
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.images.agent import fuse_messages as fuse
from sockd.images.agent.fuse_messages import Attributes, InitFlag, Opcode, OpenFlag

FILE = Attributes(7, stat.S_IFREG | 0o400, 1_000_000)


def init_in(flags: int, major: int = 7, minor: int = 45) -> bytes:
    flags |= InitFlag.INIT_EXT
    return struct.pack("=IIIII44x", major, minor, 131072, flags & 0xFFFFFFFF, flags >> 32)


def test_structures_are_as_long_as_the_kernel_s() -> None:
    offer = fuse.decode_init(memoryview(init_in(0)))
    sizes = {
        "fuse_in_header": len(fuse.request(Opcode.GETATTR, 1, 1)),
        "fuse_out_header": len(fuse.reply(1)),
        "fuse_entry_out": len(fuse.entry_out(FILE)),
        "fuse_attr_out": len(fuse.attr_out(FILE)),
        "fuse_open_out": len(fuse.open_out(OpenFlag.DIRECT_IO)),
        "fuse_statfs_out": len(fuse.statfs_out(1, 1)),
        "fuse_init_out": len(fuse.init_out(offer, InitFlag.HAS_RESEND, max_readahead=1, max_background=1, max_pages=1)),
    }
    assert sizes == {
        "fuse_in_header": 40,
        "fuse_out_header": 16,
        "fuse_entry_out": 128,
        "fuse_attr_out": 104,
        "fuse_open_out": 16,
        "fuse_statfs_out": 80,
        "fuse_init_out": 64,
    }


def test_only_flags_that_both_sides_have_are_negotiated() -> None:
    offer = fuse.decode_init(memoryview(init_in(InitFlag.HAS_RESEND | InitFlag.ASYNC_READ | 1 << 50)))
    wanted = InitFlag.HAS_RESEND | InitFlag.MAX_PAGES
    result = fuse.init_out(offer, wanted, max_readahead=1 << 20, max_background=8, max_pages=256)
    major, minor, readahead, flags, _, _, max_write, _, _, _, flags2 = struct.unpack("=IIIIHHIIHHI28x", result)
    assert (major, minor, readahead, max_write) == (7, fuse.KERNEL_MINOR_VERSION, 131072, 4096)
    assert flags | flags2 << 32 == InitFlag.HAS_RESEND | InitFlag.INIT_EXT


def test_second_flags_count_only_with_the_flag_that_announces_them() -> None:
    body = struct.pack("=IIIII44x", 7, 45, 4096, int(InitFlag.ASYNC_READ), 0xFFFFFFFF)
    assert fuse.decode_init(memoryview(body)).flags == InitFlag.ASYNC_READ


@pytest.mark.parametrize(("major", "minor"), [(6, 40), (8, 0), (7, 30)])
def test_a_kernel_of_another_time_is_refused(major: int, minor: int) -> None:
    with pytest.raises(fuse.BadMessage, match=f"FUSE {major}.{minor}"):
        fuse.decode_init(memoryview(init_in(0, major, minor)))


def test_errors_are_negative_errnos() -> None:
    assert fuse.decode_reply(fuse.error(5 | fuse.UNIQUE_RESEND, errno.EIO)) == (5 | fuse.UNIQUE_RESEND, errno.EIO, b"")


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    for decode in (fuse.decode, fuse.decode_init, fuse.decode_name, fuse.decode_interrupt):
        try:
            decode(memoryview(data))
        except fuse.BadMessage:
            continue


READ_IN = struct.Struct("=QQIIQII")
"""fuse_read_in: fh, offset, size, read_flags, lock_owner, flags, padding."""
NUMBERS = st.integers(0, (1 << 64) - 1)


def in_buffer(message: bytes) -> bytearray:
    return bytearray(message.ljust(fuse.MIN_READ_BUFFER, b"\xff"))


@given(NUMBERS, NUMBERS, NUMBERS, st.integers(0, (1 << 32) - 1))
def test_a_read_decodes_to_what_was_encoded(unique: int, nodeid: int, offset: int, size: int) -> None:
    body = READ_IN.pack(7, offset, size, 1, 2, 3, 0)
    message = fuse.request(Opcode.READ, unique, nodeid, body)
    assert fuse.decode_read(in_buffer(message), len(message)) == (unique, nodeid, offset, size)
    other = fuse.request(Opcode.OPEN, unique, nodeid, body)
    assert fuse.decode_read(in_buffer(other), len(other)) is None


@given(st.integers(0, 200), st.integers(0, 200))
def test_a_read_of_another_length_than_it_says_is_none(claimed: int, size: int) -> None:
    message = bytearray(fuse.request(Opcode.READ, 1, 2, READ_IN.pack(0, 4096, 4096, 0, 0, 0, 0)))
    struct.pack_into("=I", message, 0, claimed)
    found = fuse.decode_read(in_buffer(bytes(message)), size)
    assert found == ((1, 2, 4096, 4096) if claimed == size >= 60 else None)


@given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1), st.binary(max_size=100))
def test_a_request_decodes_to_what_was_encoded(unique: int, nodeid: int, body: bytes) -> None:
    found = fuse.decode(memoryview(fuse.request(Opcode.READ, unique, nodeid, body)))
    assert (found.opcode, found.unique, found.nodeid, bytes(found.body)) == (Opcode.READ, unique, nodeid, body)
    with pytest.raises(fuse.BadMessage):
        fuse.decode(memoryview(fuse.request(Opcode.READ, unique, nodeid, body) + b"x"))
