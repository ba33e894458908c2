"""Startup profiles: sealed, and prefetched in their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.chunk_agent.profile import first_chunks, seal_profile, unseal_profile
from sockd.plain.errors import Tampered

KEY = bytes(range(32))


@given(st.lists(st.integers(0, 1 << 20), max_size=50).map(tuple))
def test_a_profile_opens_as_it_was_sealed(order: tuple[int, ...]) -> None:
    assert unseal_profile(seal_profile("image", order, KEY), "image", KEY) == order


def test_any_flipped_bit_is_refused() -> None:
    sealed = seal_profile("image", (5, 1, 70_000), KEY)
    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Tampered):
            unseal_profile(bytes(changed), "image", KEY)


@pytest.mark.parametrize("length", [0, 5, 23, 24, 30])
def test_a_profile_that_was_cut_is_refused(length: int) -> None:
    with pytest.raises(Tampered):
        unseal_profile(seal_profile("image", (1, 2, 3), KEY)[:length], "image", KEY)


def test_a_profile_of_another_image_or_tenant_is_refused() -> None:
    sealed = seal_profile("image", (1,), KEY)
    for image, key in (("other", KEY), ("image", bytes(32))):
        with pytest.raises(Tampered):
            unseal_profile(sealed, image, key)


def test_the_superblock_and_the_profile_come_first() -> None:
    assert first_chunks((7, 3, 0, 7, 99), 2, 10, 100) == (0, 7, 3)
    assert first_chunks((7, 3), 2, 10, 2) == (0, 7)


def test_without_a_profile_the_metadata_comes_first() -> None:
    assert first_chunks(None, 3, 10, 100) == (0, 1, 2)
    assert first_chunks((), 0, 10, 100) == (0,)
