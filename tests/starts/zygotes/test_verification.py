"""Two starts compared: what is a difference, what is noise, and what a sandbox may not make of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.starts.zygotes.verification.result import (
    MOST_SHOWN,
    BadFingerprint,
    Fingerprint,
    Name,
    differences,
    in_words,
    read_fingerprint,
)
from sockd_zygote.top_levels.checks import BEGUN, last_begun

Names = dict[str, str]
MODULES = st.dictionaries(
    st.sampled_from(["a", "b", "(checks)"]), st.dictionaries(st.sampled_from("xyz"), st.sampled_from("123"), max_size=3)
)


def reported(modules: dict[str, Names], owner: str = "") -> Fingerprint:
    """What a sandbox with these names says: each value is its own digest."""
    return Fingerprint(
        digests={name: str(sorted(names.items())) for name, names in modules.items()},
        names={name: {key: Name(value, value) for key, value in names.items()} for name, names in modules.items()},
        complete=True,
        owners=dict.fromkeys(modules, owner),
        pids=[],
        cpu_s=0.0,
    )


@given(MODULES, MODULES)
def test_a_fork_that_is_as_either_start_has_no_difference(one: dict[str, Names], other: dict[str, Names]) -> None:
    assert differences(reported(one), (reported(one), reported(other))) == []
    assert reported(one).differing(reported(one)) == []


@given(MODULES, MODULES)
def test_what_both_starts_have_otherwise_is_found(fork: dict[str, Names], own: dict[str, Names]) -> None:
    found = differences(reported(fork), (reported(own), reported(own)))
    assert bool(found) == (fork != own)
    assert {each.module for each in found} == set(reported(fork).differing(reported(own)))


@given(MODULES, MODULES, MODULES)
def test_no_more_is_found_than_differs_from_both(
    fork: dict[str, Names], own: dict[str, Names], again: dict[str, Names]
) -> None:
    found = differences(reported(fork), (reported(own), reported(again)))
    for each in found:
        here = fork.get(each.module, {}).get(each.name) if each.name else each.module in fork
        first = own.get(each.module, {}).get(each.name) if each.name else each.module in own
        assert here != first
        assert first == (again.get(each.module, {}).get(each.name) if each.name else each.module in again)


def test_words() -> None:
    own = reported({"openai": {"api_version": "'2024-06-01'", **dict.fromkeys("bcdefghijklm", "1")}}, "openai-1-a")
    found = differences(reported({"openai": {"api_version": "None"}}), (own, own))
    assert found[0].owner == "openai-1-a"
    words = in_words(found)
    assert words.startswith("openai.api_version: None instead of '2024-06-01'; openai.b: nothing instead of 1; ")
    assert words.endswith("openai.l: nothing instead of 1; and 1 more") and words.count(";") == MOST_SHOWN
    checks = differences(reported({"(checks)": {"ssl": "fails"}}), [reported({"(checks)": {"ssl": "works"}})] * 2)
    assert in_words(checks) == "(checks) ssl: fails instead of works"
    loaded = differences(reported({"a": {}}), [reported({})] * 2)
    assert in_words(loaded) == "a: it is loaded instead of it is not loaded"


def as_callers_get(name: Name) -> Fingerprint:
    """What a sandbox says that has a module with this name."""
    return msgspec.structs.replace(reported({"a": {}}), digests={"a": name.digest}, names={"a": {"x": name}})


def test_values_that_look_alike_are_reported_by_what_they_differ_in() -> None:
    own = as_callers_get(Name("1", "a dict of 3", {"its length": "3", "the item 'b'": "1", "the item 'c'": "1"}))
    fork = as_callers_get(Name("2", "a dict of 3", {"its length": "3", "the item 'b'": "2", "the item 'd'": "1"}))
    (found,) = differences(fork, [own, own])
    assert str(found) == "a.x: a dict of 3 in both, which differ in the item 'b' and in the item 'd'"
    (found,) = differences(as_callers_get(Name("2", "a dict of 3")), [as_callers_get(Name("1", "a dict of 3"))] * 2)
    assert str(found) == "a.x: a dict of 3 in both, which differ in a part without a name"


GOOD: dict[str, Any] = {"digests": {}, "names": {}, "complete": True, "owners": {}, "pids": [1], "cpu_s": 0.1}


@pytest.mark.parametrize(
    "change",
    [
        {"digests": []},
        {"names": {"a": {"b": ["1"]}}},
        {"names": {"a": {"b": ["1", "1", {"c": 1}]}}},
        {"cpu_s": "1"},
        {"more": 1},
        {"complete": None},
        {"owners": {"a": 1}},
        {"steps": {}},
        {"failure": None},
    ],
)
def test_what_is_no_fingerprint_is_refused(change: dict[str, Any]) -> None:
    good = read_fingerprint(msgspec.json.encode(GOOD))
    assert (good.cpu_s, good.steps, good.failure) == (0.1, [], "")
    with pytest.raises(BadFingerprint):
        read_fingerprint(msgspec.json.encode({**GOOD, **change}))


@given(st.binary(max_size=50))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with pytest.raises(BadFingerprint):
        read_fingerprint(body)


def test_what_was_begun_last() -> None:
    log = f"noise\n{BEGUN}import a\nhello\n{BEGUN}import b.c\nmore\n".encode()
    assert last_begun(log) == "import b.c"
    assert last_begun(b"noise") == last_begun(b"") == ""
