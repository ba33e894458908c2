"""Startup profiles: sealed for the bytes of one image, and prefetched in their order."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.base.errors import Tampered
from sockd.images.chunks.chunk import CHUNK_BYTES, Chunk
from sockd.images.chunks.manifest import Manifest
from sockd.images.profiles.profile import Profile, first_chunks, seal_profile
from sockd.images.profiles.segments import SEGMENT_BYTES, seal
from tests.support.images.startup_profiles import KEY, opened, unsealed, whole

CHUNKS = (Chunk(b"a" * 32, b"k" * 32), None, Chunk(b"b" * 32, b"k" * 32))
IMAGE = Manifest("image", 3 * CHUNK_BYTES, "r1", CHUNKS)
PROFILE = Profile((5, 1, 70_000), b"data of the start")


@given(st.lists(st.integers(0, 1 << 20), max_size=50).map(tuple), st.binary(max_size=100))
def test_a_profile_opens_as_it_was_sealed(order: tuple[int, ...], data: bytes) -> None:
    profile = Profile(order, data)
    assert whole(opened(IMAGE, profile)) == profile


def test_a_profile_without_data_opens_too() -> None:
    assert whole(opened(IMAGE, Profile((1, 2)))) == Profile((1, 2), b"")


def test_data_of_several_segments_opens_too() -> None:
    data = random.Random(1).randbytes(2 * SEGMENT_BYTES + 1)
    for size in (SEGMENT_BYTES - 1, SEGMENT_BYTES, SEGMENT_BYTES + 1, 2 * SEGMENT_BYTES, len(data)):
        assert whole(opened(IMAGE, Profile((), data[:size]))).data == data[:size]


def test_segments_are_joined_by_what_needs_no_gil() -> None:
    """`bytes.join` copies without it, if there is nothing but bytes; other threads wait for a `+`."""
    _, segments = seal(bytes(2 * SEGMENT_BYTES + 1))
    assert [(type(segment), len(segment) - 16) for segment in segments] == [
        (bytes, size) for size in (SEGMENT_BYTES, SEGMENT_BYTES, 1)
    ]


def test_any_flipped_bit_is_refused() -> None:
    sealed = seal_profile(IMAGE, PROFILE, KEY)
    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Tampered):
            whole(unsealed(bytes(changed), IMAGE))


def test_a_profile_that_was_cut_or_is_longer_is_refused_before_its_data_is_read() -> None:
    sealed = seal_profile(IMAGE, PROFILE, KEY)
    for length in range(len(sealed)):
        with pytest.raises(Tampered):
            unsealed(sealed[:length], IMAGE)
    with pytest.raises(Tampered):
        unsealed(sealed + b"\0", IMAGE)


def test_segments_of_another_profile_are_refused() -> None:
    """The segments are of the same image and tenant, with data of the same length, and in another order."""
    data = random.Random(1).randbytes(2 * SEGMENT_BYTES)
    sealed, other = (seal_profile(IMAGE, Profile((), data), KEY) for _ in range(2))
    own = sealed[: -len(data)]
    for segments in (other[-len(data) :], sealed[-SEGMENT_BYTES:] + sealed[-len(data) : -SEGMENT_BYTES]):
        with pytest.raises(Tampered):
            whole(unsealed(own + segments, IMAGE))


def test_startup_data_is_not_readable_without_the_key() -> None:
    assert PROFILE.data not in seal_profile(IMAGE, PROFILE, KEY)


def test_a_profile_of_another_image_or_tenant_is_refused() -> None:
    sealed = seal_profile(IMAGE, PROFILE, KEY)
    for image, key in ((dataclasses.replace(IMAGE, image="other"), KEY), (IMAGE, bytes(32))):
        with pytest.raises(Tampered):
            unsealed(sealed, image, key)


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
    with pytest.raises(
        Tampered, match="as after a new import of the image, or was changed; the next start records another"
    ):
        unsealed(seal_profile(IMAGE, PROFILE, KEY), other)


def test_a_profile_holds_for_the_image_in_another_root() -> None:
    assert whole(unsealed(seal_profile(IMAGE, PROFILE, KEY), dataclasses.replace(IMAGE, root="r2"))) == PROFILE


def test_the_superblock_and_the_profile_come_first() -> None:
    assert first_chunks((7, 3, 0, 7, 99), 2, 10, 100) == (0, 7, 3)
    assert first_chunks((7, 3), 2, 10, 2) == (0, 7)


def test_without_a_profile_the_metadata_comes_first() -> None:
    assert first_chunks(None, 3, 10, 100) == (0, 1, 2)
    assert first_chunks((), 0, 10, 100) == (0,)
