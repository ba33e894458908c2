"""SPECIFICATION.md is true as far as a test can tell: each promise has a proof that exists, or a reason why it has none."""

from __future__ import annotations

import pytest

from tests.spec.promises import (
    Promise,
    Proof,
    aims,
    cases,
    names_in,
    promises,
    proofs,
    wrong_promise,
    wrong_proof,
)

ALL = promises()


@pytest.mark.parametrize("promise", ALL, ids=lambda promise: str(promise.number))
def test_a_promise_is_short_and_has_a_proof(promise: Promise) -> None:
    assert list(wrong_promise(promise)) == []
    assert list(wrong_proof(proofs().get(promise.number, Proof()))) == []


def test_promises_are_numbered_and_each_has_one_proof() -> None:
    assert [promise.number for promise in ALL] == list(range(1, len(ALL) + 1))
    assert len(ALL) >= 20
    assert list(proofs()) == [promise.number for promise in ALL]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("No bold sentence.", "bold"),
        ("**It is fast.** Proof: case `A1`.", "belongs in tests/spec/proofs.toml"),
        ("**It is fast.** **Unproven:** no.", "belongs in tests/spec/proofs.toml"),
        ("**It is fast.** " + "Very fast. " * 30, "one or two sentences"),
    ],
)
def test_a_promise_that_is_not_one_is_found(text: str, words: str) -> None:
    (promise,) = promises(f"1. {text}")
    assert any(words in said for said in wrong_promise(promise)), list(wrong_promise(promise))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("everybody says so", "cannot be read"),
        ("case A1, case A2", "cannot be read"),
        ("tests/test_layers::test_imports_point_down", "cannot be read"),
        ("tests/test_layers.py::test_imports_point_up", "no test"),
        ("tests/nowhere.py::test_it", "no test"),
        ("tests/nowhere.py", "no file"),
        ("case A999", "no case"),
        ('bench cold_start "no-op p50, ms" <= 0.1', "no aim"),
        ('bench hot_start "no-op p50, ms" <= 2.5', "no aim"),
        ('bench packages "*" <= 2', "no aim"),
        ('bench cold_start row "podman", "cold start"', "no row"),
        ('performance "runc" / "crun" column 1 >= 100', "performance.md has"),
        ('performance "podman" column 1 >= 1', "performance.md has no"),
    ],
)
def test_evidence_that_proves_nothing_is_found(text: str, words: str) -> None:
    (said,) = wrong_proof(Proof(evidence=(text,)))
    assert words in said


def test_a_promise_without_evidence_says_why() -> None:
    assert list(wrong_proof(Proof())) == ["it must have evidence, or a reason why there is none"]
    assert list(wrong_proof(Proof(unproven="It was run for an hour only."))) == []


def test_what_is_there_is_found() -> None:
    assert {"A1", "D1", "S1"} <= cases()
    assert "test_imports_point_down" in names_in("tests/test_layers.py")
    assert ("no-op p50, times the floor's", "<= 2") in aims("cold_start")
    assert ("cold p50 with * paused sandboxes, times empty", "<= 1.5") in aims("density")
