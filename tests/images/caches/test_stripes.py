"""Stripes: any four of five make the chunk, and other bytes are refused."""

from __future__ import annotations

import itertools
import random

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from sockd.images.caches import stripes
from sockd.images.caches.stripes import (
    DATA_STRIPES,
    HEAD_BYTES,
    STRIPES,
    BadStripe,
    RunningDigest,
    Stripe,
    is_intact,
    join,
    parse,
    split,
)

LIMIT = 1 << 19


def parsed(chunk: bytes) -> list[Stripe]:
    return [parse(framed, max_chunk_bytes=LIMIT) for framed in split(chunk)]


@given(chunk=st.binary(min_size=1, max_size=200))
def test_any_four_stripes_make_the_chunk(chunk: bytes) -> None:
    made = parsed(chunk)
    for kept in itertools.combinations(range(STRIPES), DATA_STRIPES):
        assert join({number: made[number] for number in kept}) == chunk
    assert join(dict(enumerate(made))) == chunk


@given(chunk=st.binary(min_size=1, max_size=200), order=st.permutations(range(STRIPES)))
def test_the_digest_of_stripes_as_they_arrive_is_that_of_the_chunk(chunk: bytes, order: list[int]) -> None:
    made = parsed(chunk)
    found: dict[int, Stripe] = {}
    digest = RunningDigest()
    for number in order[:DATA_STRIPES]:
        found[number] = made[number]
        digest.advance(found)
    assert digest.of(join(found)) == blake3(chunk).digest()


def test_stripes_that_have_arrived_are_not_digested_again() -> None:
    chunk = random.Random(0).randbytes(1000)
    digest = RunningDigest()
    digest.advance(dict(enumerate(parsed(chunk)[: DATA_STRIPES - 1])))
    assert digest.of(bytes(750) + chunk[750:]) == blake3(chunk).digest()


def test_both_ways_to_compute_the_parity_agree() -> None:
    parts = [random.Random(number).randbytes(1000) for number in range(DATA_STRIPES)]
    assert stripes.xor()(parts) == stripes._xor_of_integers(parts)


def test_three_stripes_or_stripes_of_other_chunks_make_none() -> None:
    some, other = parsed(bytes(1000)), parsed(bytes(900))
    with pytest.raises(BadStripe):
        join(dict(enumerate(some[:3])))
    with pytest.raises(BadStripe):
        join({**dict(enumerate(some[:3])), 3: other[3]})


@given(data=st.data())
def test_a_changed_bit_is_damage(data: st.DataObject) -> None:
    framed = bytearray(split(bytes(range(200)))[data.draw(st.integers(0, STRIPES - 1))])
    assert is_intact(framed)
    bit = data.draw(st.integers(0, 8 * len(framed) - 1))
    framed[bit // 8] ^= 1 << bit % 8
    try:
        parse(framed, max_chunk_bytes=LIMIT)
    except BadStripe:
        return
    assert not is_intact(framed)


@given(junk=st.binary(max_size=300))
def test_junk_is_no_stripe(junk: bytes) -> None:
    with pytest.raises(BadStripe):
        parse(junk, max_chunk_bytes=LIMIT)


def test_a_stripe_of_a_longer_chunk_than_permitted_is_refused() -> None:
    with pytest.raises(BadStripe):
        parse(split(bytes(2000))[0], max_chunk_bytes=1999)
    assert len(split(bytes(2000))[0]) == HEAD_BYTES + 500
