"""What browsers get about pages of other origins."""

from __future__ import annotations

import pytest

from sockd.functions.registry.function_url import Cors
from sockd.http.urls.cors import is_preflight, preflight, with_cors

PAGE = "https://page.example"
ONE = Cors(
    allow_origins=["https://PAGE.example", "http://localhost:3000"],
    allow_methods=["GET", "PUT"],
    allow_headers=["x-a", "content-type"],
    expose_headers=["x-b"],
    max_age=600,
    allow_credentials=True,
)
ANY = Cors(allow_origins=["*"], allow_methods=["*"], allow_headers=["*"])


def asked(origin: str = PAGE) -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": "PUT",
        "access-control-request-headers": "x-a, content-type",
    }


def test_a_preflight_is_one_by_its_headers() -> None:
    assert is_preflight("OPTIONS", asked())
    assert not is_preflight("PUT", asked())
    assert not is_preflight("OPTIONS", {"origin": PAGE})


def test_a_page_that_is_allowed_learns_all() -> None:
    assert preflight(ONE, asked()) == [
        ("vary", "Origin"),
        ("access-control-allow-origin", PAGE),
        ("access-control-allow-credentials", "true"),
        ("access-control-allow-methods", "GET,PUT"),
        ("access-control-allow-headers", "x-a,content-type"),
        ("access-control-max-age", "600"),
    ]
    assert with_cors(ONE, [("x", "y")], PAGE) == [
        ("x", "y"),
        ("vary", "Origin"),
        ("access-control-allow-origin", PAGE),
        ("access-control-allow-credentials", "true"),
        ("access-control-expose-headers", "x-b"),
    ]


@pytest.mark.parametrize("origin", ["https://page.example.evil", "http://page.example", "null", "", PAGE + ":444"])
def test_another_page_learns_nothing(origin: str) -> None:
    assert preflight(ONE, asked(origin)) == [("vary", "Origin")]
    assert with_cors(ONE, [], origin) == [("vary", "Origin")]


def test_all_pages() -> None:
    assert preflight(ANY, asked()) == [
        ("access-control-allow-origin", "*"),
        ("access-control-allow-methods", "*"),
        ("access-control-allow-headers", "*"),
    ]
    # Also where no page asks: a cache may give the answer to one that does.
    assert with_cors(ANY, [], None) == with_cors(ANY, [], PAGE) == [("access-control-allow-origin", "*")]


def test_where_credentials_are_sent_a_star_is_spelled_out() -> None:
    cors = Cors(allow_origins=["*"], allow_methods=["*"], allow_headers=["*"], allow_credentials=True)
    fields = dict(preflight(cors, asked()))
    assert fields["access-control-allow-origin"] == PAGE
    assert fields["access-control-allow-methods"] == "PUT"
    assert fields["access-control-allow-headers"] == "x-a, content-type"
    hostile = {**asked("https://é"), "access-control-request-headers": "é"}
    assert preflight(cors, hostile) == [("vary", "Origin")]


def test_the_functions_own_words_are_dropped_where_the_settings_speak() -> None:
    own = [("access-control-allow-origin", "https://other.example"), ("access-control-max-age", "1"), ("x", "y")]
    assert with_cors(None, own, PAGE) == own
    assert with_cors(ANY, own, None) == [("x", "y"), ("access-control-allow-origin", "*")]
    assert with_cors(ONE, own, None) == [("x", "y"), ("vary", "Origin")]
