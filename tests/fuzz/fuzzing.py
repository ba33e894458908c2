"""What the tests of this folder share: how many examples are tried, and JSON as somebody hostile writes it."""

from __future__ import annotations

import json
import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.support.examples import examples

WANTED = int(os.environ.get("SOCKD_FUZZ_EXAMPLES", "0"))
"""Examples of each test; 0: as many as the test says."""


def fuzz(most: int) -> settings:
    """The settings of a test that tries so many examples, fewer in the quick run, unless the environment sets another number."""
    # A fixture of a test is one for all its examples here: a server, a daemon, an engine.
    return settings(max_examples=WANTED or examples(most), deadline=None, suppress_health_check=list(HealthCheck))


def integers() -> st.SearchStrategy[int]:
    """Small ones, those at the edges of every machine type, and those beyond."""
    edges = [
        sign * (1 << bits) + one
        for bits in (7, 8, 15, 16, 31, 32, 63, 64, 100)
        for sign in (1, -1)
        for one in (-1, 0, 1)
    ]
    return st.integers(-3, 300) | st.sampled_from(edges) | st.integers()


def texts(most: int = 20) -> st.SearchStrategy[str]:
    """Any characters, halves of surrogate pairs included: JSON can say them, UTF-8 cannot."""
    return st.text(max_size=most) | st.text(st.sampled_from("a/:.\0\r\n\ud800\udfff\u2028"), max_size=most)


def values() -> st.SearchStrategy[Any]:
    """All that JSON can say, with Python's NaN and infinities."""
    scalars = st.none() | st.booleans() | integers() | st.floats() | texts()
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts(8), inner, max_size=4), max_leaves=8
    )


def encoded(value: Any) -> bytes:
    """The JSON of a value, half surrogate pairs as escapes."""
    return json.dumps(value).encode()


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects that have these fields, each mostly as it should be; some lack some, and some have others."""
    each = {name: strategy | strategy | strategy | values() for name, strategy in fields.items()}
    return st.fixed_dictionaries({}, optional=each) | st.fixed_dictionaries(each) | st.fixed_dictionaries(each)
