"""Startup profiles: sealed for the bytes of one image, and prefetched in their order."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.chunk_agent.profile import Profile, first_chunks, seal_profile, unseal_profile
from sockd.chunks.chunk import CHUNK_BYTES, Chunk
from sockd.chunks.manifest import Manifest
from sockd.plain.errors import Tampered

KEY = bytes(range(32))
CHUNKS = (Chunk(b"a" * 32, b"k" * 32), None, Chunk(b"b" * 32, b"k" * 32))
IMAGE = Manifest("image", 3 * CHUNK_BYTES, "r1", CHUNKS)
PROFILE = Profile((5, 1, 70_000), b"data of the start")
OLD = bytes.fromhex(
    "736f636b64707231140a2b817df650b7c9bdd02700000004000000080000001e000000150001117066113f432d0935d479af983485a55c18"
)
"""Of the form before startup data."""


@given(st.lists(st.integers(0, 1 << 20), max_size=50).map(tuple), st.binary(max_size=100))
def test_a_profile_opens_as_it_was_sealed(order: tuple[int, ...], data: bytes) -> None:
    profile = Profile(order, data)
    assert unseal_profile(seal_profile(IMAGE, profile, KEY), IMAGE, KEY) == profile


def test_a_profile_without_data_opens_too() -> None:
    assert unseal_profile(seal_profile(IMAGE, Profile((1, 2)), KEY), IMAGE, KEY) == Profile((1, 2), b"")


def test_a_profile_of_the_form_before_has_the_order() -> None:
    assert unseal_profile(OLD, IMAGE, KEY) == Profile((8, 30, 21, 70_000))


@pytest.mark.parametrize("sealed", [seal_profile(IMAGE, PROFILE, KEY), OLD], ids=["", "old"])
def test_any_flipped_bit_is_refused(sealed: bytes) -> None:
    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Tampered):
            unseal_profile(bytes(changed), IMAGE, KEY)


@pytest.mark.parametrize("sealed", [seal_profile(IMAGE, PROFILE, KEY), OLD], ids=["", "old"])
def test_a_profile_that_was_cut_is_refused(sealed: bytes) -> None:
    for length in range(len(sealed)):
        with pytest.raises(Tampered):
            unseal_profile(sealed[:length], IMAGE, KEY)


def test_startup_data_is_not_readable_without_the_key() -> None:
    assert PROFILE.data not in seal_profile(IMAGE, PROFILE, KEY)


def test_a_profile_of_another_image_or_tenant_is_refused() -> None:
    other = dataclasses.replace(IMAGE, image="other")
    for sealed in (seal_profile(IMAGE, PROFILE, KEY), OLD):
        for image, key in ((other, KEY), (IMAGE, bytes(32))):
            with pytest.raises(Tampered):
                unseal_profile(sealed, image, key)


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(IMAGE, chunks=(CHUNKS[0], None, Chunk(b"c" * 32, b"k" * 32))),
        dataclasses.replace(IMAGE, chunks=(None, CHUNKS[0], CHUNKS[2])),
        dataclasses.replace(IMAGE, size_bytes=3 * CHUNK_BYTES - 1),
    ],
    ids=["another chunk", "another order", "another size"],
)
def test_a_profile_of_the_same_image_with_other_bytes_is_refused(other: Manifest) -> None:
    with pytest.raises(Tampered):
        unseal_profile(seal_profile(IMAGE, PROFILE, KEY), other, KEY)


def test_a_profile_holds_for_the_image_in_another_root() -> None:
    assert unseal_profile(seal_profile(IMAGE, PROFILE, KEY), dataclasses.replace(IMAGE, root="r2"), KEY) == PROFILE


def test_the_superblock_and_the_profile_come_first() -> None:
    assert first_chunks((7, 3, 0, 7, 99), 2, 10, 100) == (0, 7, 3)
    assert first_chunks((7, 3), 2, 10, 2) == (0, 7)


def test_without_a_profile_the_metadata_comes_first() -> None:
    assert first_chunks(None, 3, 10, 100) == (0, 1, 2)
    assert first_chunks((), 0, 10, 100) == (0,)
