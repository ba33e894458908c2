"""How a cold start is judged: by what it still had to import."""

from __future__ import annotations

import pytest

from sockd.starts.zygotes.learning.import_hits import ImportHits

A, B = frozenset({"a-1-aaaaaaaaaaaa"}), frozenset({"b-1-bbbbbbbbbbbb"})


@pytest.mark.parametrize(
    ("closure", "held", "imported", "judgement"),
    [
        (frozenset[str](), frozenset[str](), 0, "unneeded"),
        (A, A, 0, "full"),
        (A, frozenset[str](), 0, "full"),
        (A | B, A, 3, "partial"),
        (A, frozenset[str](), 3, "missed"),
    ],
)
def test_a_start_is_judged_by_what_it_imported_itself(
    closure: frozenset[str], held: frozenset[str], imported: int, judgement: str
) -> None:
    hits = ImportHits()
    hits.count(closure, held, imported)
    counts = {"full": 0, "partial": 0, "missed": 0, "unneeded": 0, "passed_over": 0, judgement: 1}
    assert vars(hits) == counts


@pytest.mark.parametrize(("imported", "counted"), [(3, 1), (0, 0)])
def test_a_start_that_imported_nothing_lost_nothing_by_a_zygote_that_was_passed_over(
    imported: int, counted: int
) -> None:
    hits = ImportHits()
    hits.count(A, frozenset(), imported, passed_over=True)
    assert hits.passed_over == counted
