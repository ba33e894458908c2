"""SPECIFICATION.md is true as far as a test can tell: each promise names what proves it, and that exists."""

from __future__ import annotations

import pytest

from tests.spec.promises import Promise, aims, cases, missing, names_in, promises

ALL = promises()


@pytest.mark.parametrize("promise", ALL, ids=lambda promise: str(promise.number))
def test_a_promise_is_proven_or_says_why_not(promise: Promise) -> None:
    assert list(missing(promise)) == []


def test_promises_are_numbered() -> None:
    assert [promise.number for promise in ALL] == list(range(1, len(ALL) + 1))
    assert len(ALL) >= 20


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("No bold sentence. Proof: case `A1`.", "bold"),
        ("**It is fast.**", "either a proof or a reason"),
        ("**It is fast.** **Unproven:** no.", "either a proof or a reason"),
        ("**It is fast.** Proof: everybody says so.", "names nothing"),
        ("**It is fast.** Proof: case `A1`. **Unproven:** but nobody has looked.", "either"),
        ("**It is fast.** Proof: `tests/test_layers.py::test_imports_point_up`.", "no test"),
        ("**It is fast.** Proof: `tests/nowhere.py::test_it`.", "no test"),
        ("**It is fast.** Proof: case `A999`.", "no case"),
        ('**It is fast.** Proof: bench `cold_start` "no-op p50, ms" `<= 0.1`.', "no aim"),
        ('**It is fast.** Proof: bench `hot_start` "no-op p50, ms" `<= 2.5`.', "no aim"),
        ('**It is fast.** Proof: bench `packages` "*" `<= 2`.', "no aim"),
        ('**It is fast.** Proof: bench `cold_start` row "podman", "cold start".', "no row"),
        ('**It is fast.** Proof: performance "runc" / "crun" column 1 `>= 100`.', "performance.md has"),
        ('**It is fast.** Proof: performance "podman" column 1 `>= 1`.', "performance.md has no"),
        ("**It is fast.** Proof: case `A1`; `tests/test_layers::test_imports_point_down`.", "can be read"),
    ],
)
def test_a_promise_that_nothing_keeps_is_found(text: str, words: str) -> None:
    (promise,) = promises(f"1. {text}")
    assert any(words in said for said in missing(promise)), list(missing(promise))


def test_what_is_there_is_found() -> None:
    assert {"A1", "D1", "S1"} <= cases()
    assert "test_imports_point_down" in names_in("tests/test_layers.py")
    assert ("no-op p50, times the floor's", "<= 2") in aims("cold_start")
    assert ("cold p50 with * paused sandboxes, times empty", "<= 1.5") in aims("density")
