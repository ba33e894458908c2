"""Which chunk of one build of an image is which of the next: equal content anywhere, changed chunks in their places."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sockd.images.chunks.chunk import Chunk
from sockd.images.profiles.counterparts import Chunks, Counterparts, counterparts


def chunk(content: int) -> Chunk:
    return Chunk(content.to_bytes(32), content.to_bytes(32))


def image(text: str) -> Chunks:
    """Return the chunks of an image, one for each character; a dot is zeros."""
    return [None if each == "." else chunk(ord(each)) for each in text]


def changed(one: str, other: str) -> list[tuple[str, str]]:
    """The counterparts of changed chunks."""
    return [(one[a], other[b]) for a, b in counterparts(image(one), image(other)).changed.items()]


CHUNKS = st.lists(st.one_of(st.none(), st.integers(1, 12).map(chunk)), max_size=30)


@given(CHUNKS, CHUNKS)
def test_counterparts_are_chunks_of_the_images_and_none_has_two(one: Chunks, other: Chunks) -> None:
    found = counterparts(one, other)
    for pairs, is_equal in ((found.equal, True), (found.changed, False)):
        for number, place in pairs.items():
            assert one[number] is not None is not other[place]
            assert (one[number] == other[place]) is is_equal
    assert not found.equal.keys() & found.changed.keys()
    places = [*found.equal.values(), *found.changed.values()]
    assert len(set(places)) == len(places)
    assert [found.of(number) for number in found.changed] == [*found.changed.values()]


@given(CHUNKS, CHUNKS)
def test_every_chunk_that_both_images_have_is_found_however_often(one: Chunks, other: Chunks) -> None:
    both = Counter(each for each in one if each) & Counter(each for each in other if each)
    assert Counter(one[number] for number in counterparts(one, other).equal) == both


@given(CHUNKS)
def test_an_image_s_chunks_are_their_own_counterparts(one: Chunks) -> None:
    own = {number: number for number, each in enumerate(one) if each is not None}
    assert counterparts(one, one) == Counterparts(own, {})


@given(st.integers(1, 40), st.data())
def test_chunks_that_were_changed_or_inserted_leave_all_others_where_they_belong(
    count: int, data: st.DataObject
) -> None:
    one = [chunk(number + 1) for number in range(count)]
    new = data.draw(st.sets(st.integers(0, count - 1)))
    other: list[Chunk] = [chunk(1000 + number) if number in new else each for number, each in enumerate(one)]
    assert counterparts(one, other).changed == {number: number for number in sorted(new)}
    at, more = data.draw(st.integers(0, count)), data.draw(st.integers(1, 5))
    longer = [*one[:at], *(chunk(2000 + number) for number in range(more)), *one[at:]]
    found = counterparts(one, longer)
    assert found.equal == {number: number if number < at else number + more for number in range(count)}
    assert not found.changed


@given(st.integers(0, 1 << 32))
def test_chunks_that_moved_are_found_by_their_content(seed: int) -> None:
    one = [chunk(number + 1) for number in range(30)]
    other = one.copy()
    random.Random(seed).shuffle(other)
    found = counterparts(one, other)
    assert [other[found.equal[number]] for number in range(30)] == one and not found.changed


def test_a_changed_chunk_has_the_one_between_the_same_neighbours() -> None:
    assert changed("abcdef", "aBcdeF") == [("b", "B"), ("f", "F")]
    assert changed("mabcdef", "MNxabCdef") == [("m", "M"), ("c", "C")]
    assert changed("abcxyzde", "abcXYde") == [("x", "X"), ("y", "Y")]
    assert changed("ab.c.d", "a.B.Cd") == [("b", "B"), ("c", "C")], "zeros do not count"
    assert changed("abcd", "aBcDd") == [("b", "B")], "nothing was there before D"


def test_a_chunk_that_moved_is_no_neighbour() -> None:
    """`x` moved from the end to the beginning; b was between a and c all the time."""
    assert changed("abcdex", "xaBcdE") == [("b", "B"), ("e", "E")]


def test_chunks_of_equal_name_and_another_key_are_not_equal() -> None:
    one, other = Chunk(b"n" * 32, b"k" * 32), Chunk(b"n" * 32, b"l" * 32)
    assert counterparts([one], [other]) == Counterparts({}, {0: 0})
