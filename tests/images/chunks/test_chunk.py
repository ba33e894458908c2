"""Convergent encryption: what is equal, what differs, and that any range decrypts."""

from __future__ import annotations

import hashlib

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from sockd.base.errors import Tampered
from sockd.images.chunks.chunk import CHUNK_BYTES, decrypt, encrypt, is_zero, verify
from sockd.images.chunks.image_keys import ImageKeys

SALT = bytes(range(32))
PLAIN = bytes(range(256)) * 2048
KEYS = ImageKeys(bytes(32))


def test_a_chunk_is_what_its_description_says() -> None:
    chunk, ciphertext = encrypt(PLAIN, SALT)
    assert chunk.key == blake3(SALT + blake3(PLAIN).digest()).digest()
    assert chunk.name == blake3(ciphertext).digest()
    assert len(ciphertext) == CHUNK_BYTES and ciphertext != PLAIN
    assert decrypt(ciphertext, chunk.key) == PLAIN


def test_equal_plaintext_is_one_chunk_under_one_salt_only() -> None:
    assert encrypt(PLAIN, SALT) == encrypt(PLAIN, SALT)
    other, ciphertext = encrypt(PLAIN, bytes(32))
    chunk, first = encrypt(PLAIN, SALT)
    assert other.name != chunk.name and other.key != chunk.key and ciphertext != first


def test_each_field_of_a_salt_counts_and_none_runs_into_the_next() -> None:
    salts = {
        KEYS.salt("r"),
        KEYS.salt("s"),
        KEYS.salt("r", zone="z"),
        KEYS.salt("r", epoch=1),
        KEYS.salt("r", tenant="z"),
        KEYS.salt("rz"),
        KEYS.salt("", zone="rz"),
        ImageKeys(bytes([1] * 32)).salt("r"),
        KEYS.tenant_key("r"),
        KEYS.tenant_key(),
    }
    assert len(salts) == 10 and {len(salt) for salt in salts} == {32}


@given(st.binary(max_size=200), st.integers(0, 220), st.integers(0, 220))
def test_any_range_decrypts(plain: bytes, offset: int, size: int) -> None:
    chunk, ciphertext = encrypt(plain, SALT)
    assert decrypt(ciphertext, chunk.key, offset, size) == plain[offset : offset + size]


@pytest.mark.parametrize("offset", [0, 1, 15, 16, 17, 4095, 4096, CHUNK_BYTES - 1, CHUNK_BYTES])
def test_a_range_of_a_whole_chunk_decrypts(offset: int) -> None:
    chunk, ciphertext = encrypt(PLAIN, SALT)
    assert decrypt(memoryview(ciphertext), chunk.key, offset, 4096) == PLAIN[offset : offset + 4096]


def test_each_changed_bit_of_a_chunk_is_noticed() -> None:
    chunk, ciphertext = encrypt(PLAIN[:64], SALT)
    verify(chunk.name, ciphertext)
    for bit in range(len(ciphertext) * 8):
        with pytest.raises(Tampered):
            verify(chunk.name, flipped(ciphertext, bit))
    for changed in (b"", ciphertext[:-1], ciphertext + b"\0"):
        with pytest.raises(Tampered):
            verify(chunk.name, changed)
    for bit in range(256):
        with pytest.raises(Tampered):
            verify(flipped(chunk.name, bit), ciphertext)


def test_a_chunk_of_an_older_image_has_another_kind_of_name() -> None:
    _, ciphertext = encrypt(PLAIN[:64], SALT)
    name = hashlib.sha256(ciphertext).digest()
    verify(name, ciphertext)
    with pytest.raises(Tampered):
        verify(name, flipped(ciphertext, 0))


def test_only_zeros_are_zero() -> None:
    assert is_zero(bytes(CHUNK_BYTES)) and is_zero(bytes(5)) and is_zero(b"")
    assert not is_zero(bytes(CHUNK_BYTES - 1) + b"\1") and not is_zero(b"\0\1")


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
