"""Geometry: nothing leaves its drawing, and nothing that there is is invisible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sockd.http.page.charts import LEAST, columns, span, stacked, ticks

amounts = st.floats(0, 1e12, allow_nan=False)


@given(st.lists(amounts, max_size=8), amounts)
def test_parts_of_a_bar_lie_side_by_side_within_it(parts: list[float], total: float) -> None:
    at = 0.0
    for piece in stacked([("k", part, "") for part in parts], total):
        assert float(piece.x) >= at - 0.02
        at = float(piece.x) + float(piece.width)
        assert at <= 100.02


@given(amounts, amounts, amounts)
def test_a_moment_is_seen_wherever_it_is(start: float, end: float, total: float) -> None:
    piece = span("k", start, end, total)
    assert float(piece.width) >= min(LEAST, 100 - float(piece.x)) - 0.02
    assert float(piece.x) + float(piece.width) <= 100.02


@given(st.lists(st.floats(0, 1e6, allow_nan=False), max_size=12))
def test_columns_stand_on_the_ground_and_the_highest_is_as_high_as_may_be(values: list[float]) -> None:
    found = columns(values, height=20, width=5)
    assert len(found) == sum(value > 0 for value in values)
    assert all(column.y + column.height == 20 and column.height >= 1 for column in found)
    assert not found or max(column.height for column in found) == 20


@given(st.integers(1, 10**15))
def test_an_axis_begins_at_0_and_has_few_marks_at_round_moments(total_ns: int) -> None:
    found = ticks(total_ns)
    assert found[0] == ("0", 0) and len(found) <= 6
    assert all(float(tick.x) <= 100 and tick.ns <= total_ns for tick in found)
    step = found[1].ns if len(found) > 1 else 1
    assert str(step).rstrip("0") in ("1", "2", "5") and [tick.ns for tick in found] == [
        n * step for n in range(len(found))
    ]


def test_an_axis_without_a_length_has_no_marks() -> None:
    assert ticks(0) == []
