"""The reference pages are what the code says now."""

from __future__ import annotations

import pytest

from docs import reference

PAGES = reference.pages()


def test_no_page_is_missing_and_none_is_left_over() -> None:
    assert {path.name for path in reference.PAGES.iterdir()} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_the_code_would_write_it(name: str) -> None:
    written = (reference.PAGES / name).read_text()
    assert written == PAGES[name], "run `make docs`"
