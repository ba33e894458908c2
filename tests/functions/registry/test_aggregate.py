"""One function as a value: what follows from each change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from sockd.base.errors import NoSuchFunction, NoSuchVersion
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.aliases import Alias
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.function_url import FunctionUrl
from sockd.functions.registry.provisions import Provision
from sockd.functions.registry.publications import VersionInUse

RECORD = FunctionRecord("f", 1, "d1", 10, "f:f", "{}", "[]", "", 5.0, 5.0)
ALIAS = Alias("f", "prod", "1")


def deployed(*digests: str, keep: int = 5) -> FunctionAggregate:
    function = FunctionAggregate("f")
    for number, digest in enumerate(digests):
        record = replace(RECORD, digest=digest, published_at=5.0 + number, created_at=5.0 + number)
        function = function.with_deploy(record, keep)
    return function


def with_all() -> FunctionAggregate:
    url = FunctionUrl("id", "f", "prod", "NONE", "BUFFERED", None, 5.0, 5.0)
    function = deployed("d1").with_publication(1, "", 6.0).with_alias(ALIAS)
    for qualifier in ("prod", "1"):
        function = function.with_provision(Provision("f", qualifier, 2, 7.0))
    return function.with_url(url).with_url(structs.replace(url, id="other", qualifier=""))


def test_deploys_are_counted_and_the_first_one_says_when_the_function_came_to_be() -> None:
    function = deployed("d1", "d2")
    assert [(each.version, each.published_at, each.created_at) for each in function.deploys] == [(1, 5, 5), (2, 6, 5)]
    assert function.current.digest == "d2"


def test_the_current_deploy_again_is_no_change() -> None:
    function = deployed("d1", "d2")
    assert function.with_deploy(replace(RECORD, digest="d2", published_at=99.0, created_at=99.0), 5) is function
    assert [each.digest for each in deployed("d1", "d2", "d1").deploys] == ["d1", "d2", "d1"]


def test_old_deploys_are_forgotten_but_for_published_ones() -> None:
    function = deployed("d1", "d2").with_publication(1, "", 6.0)
    for digest in ("d3", "d4"):
        function = function.with_deploy(replace(RECORD, digest=digest), keep=2)
    assert [each.version for each in function.deploys] == [1, 3, 4]
    assert function.published(1)[1].digest == "d1"
    assert [each.version for each in function.without_publication(1, keep=2).deploys] == [3, 4]


def test_what_hangs_on_an_alias_goes_with_it() -> None:
    function = with_all().without_alias("prod")
    assert (list(function.aliases), list(function.provisions), list(function.urls)) == ([], ["1"], [""])


def test_what_hangs_on_a_published_version_goes_with_it() -> None:
    with pytest.raises(VersionInUse, match="used by alias prod"):
        with_all().without_publication(1, keep=5)
    function = with_all().without_alias("prod").without_publication(1, keep=5)
    assert not function.publications and not function.provisions


def test_numbers_outlive_everything() -> None:
    function = with_all().removed()
    assert function == FunctionAggregate("f", last_number=1)
    assert list(function.with_deploy(RECORD, 5).with_publication(1, "", 9.0).publications) == [2]


def test_what_is_not_there_has_an_error_of_its_own() -> None:
    function = deployed("d1")
    with pytest.raises(NoSuchFunction):
        FunctionAggregate("f").current  # noqa: B018  # a property
    with pytest.raises(NoSuchFunction, match="no deploy 2 of 'f' is remembered"):
        function.with_publication(2, "", 6.0)
    with pytest.raises(NoSuchVersion):
        function.published(1)
    with pytest.raises(NoSuchVersion):
        function.alias("prod")


def test_a_change_leaves_the_value_before_it_as_it_was() -> None:
    function = with_all()
    before = repr(function)
    function.without_alias("prod").without_publication(1, 5).without_url("").with_config(1, '{"other":1}')
    assert repr(function) == before
