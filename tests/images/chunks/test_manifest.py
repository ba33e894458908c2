"""Manifests: what is sealed opens again, is small, and opens for nobody after any change."""

from __future__ import annotations

import os
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.base.errors import Tampered
from sockd.images.chunks.chunk import CHUNK_BYTES, Chunk
from sockd.images.chunks.manifest import Manifest, chunk_names, seal, unseal

KEY = bytes(range(32))
HEADER = b'{"cmd":["a"]}'


def chunk(number: int) -> Chunk:
    return Chunk(number.to_bytes(32, "big"), (number * 7).to_bytes(32, "little"))


MANIFEST = Manifest("sha256:0a", 3 * CHUNK_BYTES + 4096, "r1", (chunk(1), None, chunk(2), chunk(1)), HEADER)
SEALED = seal(MANIFEST, KEY)


def opened(data: bytes, key: bytes = KEY) -> Manifest:
    return unseal(data, key, root="r1", image="sha256:0a")


def test_what_was_sealed_opens_again() -> None:
    assert opened(SEALED) == MANIFEST
    assert chunk_names(SEALED) == {chunk(1).name, chunk(2).name}
    assert seal(MANIFEST, KEY) != SEALED, "each seal has a nonce of its own"
    assert MANIFEST.chunk_size(0) == CHUNK_BYTES and MANIFEST.chunk_size(3) == 4096


def test_a_manifest_opens_in_the_root_it_was_copied_to() -> None:
    assert unseal(SEALED, KEY, root="r2").root == "r2"


def test_keys_are_hidden_and_names_are_not() -> None:
    assert chunk(2).key not in SEALED and chunk(2).name in SEALED


def test_each_changed_bit_is_noticed() -> None:
    """Magic, nonce, size, counts, facts, names, keys and tag: every bit of the manifest."""
    for bit in range(len(SEALED) * 8):
        changed = bytearray(SEALED)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Tampered):
            opened(bytes(changed))


def test_each_truncation_and_extension_is_noticed() -> None:
    for size in range(len(SEALED)):
        with pytest.raises(Tampered):
            opened(SEALED[:size])
    with pytest.raises(Tampered):
        opened(SEALED + b"\0")


def test_names_and_keys_do_not_change_places() -> None:
    end = SEALED.index(chunk(1).name)
    swapped = SEALED[:end] + SEALED[end + 32 : end + 64] + SEALED[end : end + 32] + SEALED[end + 64 :]
    with pytest.raises(Tampered):
        opened(swapped)


def test_a_manifest_opens_for_its_tenant_and_image_only() -> None:
    with pytest.raises(Tampered, match="of another tenant"):
        opened(SEALED, bytes(32))
    with pytest.raises(Tampered, match="should be"):
        unseal(SEALED, KEY, root="r1", image="sha256:0b")


def test_parts_of_two_manifests_do_not_fit() -> None:
    other = seal(Manifest("sha256:0a", MANIFEST.size_bytes, "r1", (chunk(1), None, chunk(2), None), HEADER), KEY)
    assert len(other) == len(SEALED)
    for cut in range(1, len(SEALED)):
        mixed = SEALED[:cut] + other[cut:]
        if mixed not in (SEALED, other):
            with pytest.raises(Tampered):
                opened(mixed)


@given(st.binary(max_size=300))
def test_no_bytes_are_a_manifest_by_chance(data: bytes) -> None:
    for attempt in (data, SEALED[:8] + data, SEALED[:36] + data):
        with pytest.raises(Tampered):
            opened(attempt)
        try:
            chunk_names(attempt)
        except Tampered:
            pass


def test_a_huge_count_is_refused_before_memory_is_used() -> None:
    with pytest.raises(Tampered):
        chunk_names(SEALED[:20] + struct.pack(">QII", 1 << 63, (1 << 32) - 1, 0) + bytes(100))


def test_a_manifest_is_at_most_0_013_percent_of_its_image() -> None:
    count = 2048
    chunks = tuple(Chunk(os.urandom(32), os.urandom(32)) for _ in range(count))
    header = msgspec.json.encode({"Env": ["PATH=/usr/bin"] * 20})
    manifest = Manifest("sha256:" + "0" * 64, count * CHUNK_BYTES, "r1", chunks, header)
    assert len(seal(manifest, KEY)) <= manifest.size_bytes * 0.013 / 100


def test_a_manifest_that_cannot_be_right_is_not_made() -> None:
    with pytest.raises(ValueError, match="1 chunks of an image of 0 bytes"):
        Manifest("i", 0, "r1", (None,))
    with pytest.raises(msgspec.DecodeError):
        seal(Manifest("i", 0, "r1", (), b"no JSON"), KEY)
