"""Numbers as people read them, and strangers' text with nothing in it that acts."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.http.page import words


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0.00"), (4_200, "0.00"), (214_000, "0.21"), (4_250_000, "4.2"), (38_400_000, "38"), (1.204e9, "1\u202f204")],
)
def test_durations(ns: float, text: str) -> None:
    assert words.ms(ns) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0"), (0.001, "<1"), (0.5, "50"), (0.996, ">99"), (1, "100"), (0.01, "1"), (0.99, "99")]
)
def test_shares_that_are_not_quite_none_or_all_are_not_reported_as_that(share: float, text: str) -> None:
    assert words.percent(share) == f"{text}\u202f%"


@pytest.mark.parametrize(
    ("rate", "text"), [(0, "0"), (0.01, "<0.1"), (0.25, "0.2"), (12.4, "12"), (10_000, "10\u202f000")]
)
def test_rates(rate: float, text: str) -> None:
    assert words.rate(rate) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x00b", "a␀b"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b[2J", "␛[2J"),
        ("a\r\nb\tc", "a\nb\tc"),
        ("over\rwritten", "over␍written"),
        ("\u202eexe.txt", "\\u202eexe.txt"),
        ("\ud800", "\\ud800"),
        ("żółw 🐢", "żółw 🐢"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(text: str, shown: str) -> None:
    assert words.printable(text) == shown


def test_a_carriage_return_inside_a_record_ends_a_line() -> None:
    assert words.log_text(b"[ERROR] E\rTraceback\r\n", 100) == "[ERROR] E\nTraceback\n"


@given(st.binary(max_size=200), st.integers(1, 100))
def test_a_log_is_text_whatever_was_printed(raw: bytes, limit: int) -> None:
    text = words.log_text(raw, limit)
    assert not words.CONTROLS.search(text)
    text.encode()
    assert ("before this" in text) >= (len(raw) > limit)


def test_a_time_of_another_day_has_its_date() -> None:
    noon = time.mktime((2026, 11, 28, 12, 0, 0, 0, 0, -1))
    assert words.when(noon, noon + 3600) == "12:00:00"
    assert words.when(noon, noon + 86400) == "2026-11-28 12:00"
    assert words.when(noon - 13 * 3600, noon) == "2026-11-27 23:00"
