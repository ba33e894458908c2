"""The table of operations, and pages of lists."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.base.config import Config
from sockd.http.aws.access import Access
from sockd.http.aws.lambda_api import LambdaApi
from sockd.http.aws.operations import PAGE, Call, gather, page
from sockd.http.aws.routes import Operation
from sockd.http.aws.tags import TagOperations
from tests.http.aws.fake_lambda import FakeLambda


def listing(**query: str) -> Call:
    return Call((), {name: [value] for name, value in query.items()}, {}, b"", bytes(16), 0)


def test_each_operation_has_one_method(tmp_path: object) -> None:
    api = LambdaApi(FakeLambda(), Access({}), Config(), tmp_path)  # type: ignore[arg-type]
    assert set(api.operations) == set(Operation)


def test_no_operation_has_two() -> None:
    tags = TagOperations(FakeLambda(), None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="ListTags is offered twice"):
        gather((tags, tags))


@given(
    st.lists(st.text(string.ascii_letters, min_size=1), unique=True, max_size=200).map(sorted),
    st.integers(1, 100),
    st.integers(0, 10**6),
)
def test_pages_are_the_list_even_if_a_marked_entry_goes(entries: list[str], most: int, removed: int) -> None:
    found: list[str] = []
    marker: dict[str, str] = {}
    while True:
        shown, more = page(listing(MaxItems=str(most), **marker), entries, str)
        assert len(shown) <= min(most, PAGE)
        found += shown
        if not more:
            break
        marker = {"Marker": more["NextMarker"]}
        if removed % 3 == 0:
            entries = [entry for entry in entries if entry != shown[-1]]
    assert found == sorted({*found, *entries})
