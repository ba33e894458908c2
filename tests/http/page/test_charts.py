"""Geometry: nothing leaves its drawing, and nothing that there is is invisible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sockd.http.page.charts import LEAST, columns, span, stacked

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
