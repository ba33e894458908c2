"""Distributions and closures: names that become directories, and the closure that the registry keeps."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.starts.packages.distribution import Closure, Distribution

DIGEST = "8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254"

names = st.from_regex(r"[a-z0-9]{1,8}(-[a-z0-9]{1,8}){0,2}", fullmatch=True)
versions = st.from_regex(r"([0-9]!)?[0-9]{1,3}(\.[0-9]{1,3}){0,2}(rc1|\.post1|\+cu118)?", fullmatch=True)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
distributions = st.builds(Distribution, name=names, version=versions, digest=digests, url=st.text())


def distribution(name: str = "six", version: str = "1.16.0", digest: str = DIGEST) -> Distribution:
    return Distribution(name=name, version=version, digest=digest, url="https://index/six.whl")


def test_a_key_is_name_version_and_the_first_digits_of_the_digest() -> None:
    assert distribution().key == "six-1.16.0-8abb2f1d8689"


def test_two_wheels_of_one_version_have_different_keys() -> None:
    assert distribution().key != distribution(digest="0" * 64).key


@pytest.mark.parametrize(
    "field",
    [
        {"name": "../six"},
        {"name": "Six"},
        {"name": "six_"},
        {"name": ""},
        {"version": "1/../.."},
        {"version": ".."},
        {"version": "1:2"},
        {"version": ""},
        {"digest": "8abb"},
        {"digest": DIGEST.upper()},
    ],
)
def test_what_could_leave_the_store_is_no_distribution(field: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="not a distribution"):
        distribution(**field)


def test_decoding_checks_what_making_checks() -> None:
    data = Closure.of([distribution()]).to_json().replace(b'"six"', b'"../six"')
    with pytest.raises(msgspec.ValidationError):
        Closure.from_json(data)


@given(st.lists(distributions, unique_by=lambda each: each.name))
def test_a_closure_survives_json_and_does_not_depend_on_order(made: list[Distribution]) -> None:
    closure = Closure.of(made)
    assert Closure.from_json(closure.to_json()) == closure == Closure.of(reversed(made))
    assert closure.keys == {each.key for each in made}
    assert hash(closure) == hash(Closure.from_json(closure.to_json()))


def test_a_closure_names_each_package_once() -> None:
    with pytest.raises(ValueError, match="once"):
        Closure.of([distribution(version="1.15.0"), distribution(version="1.16.0")])
