"""Policies of functions: what is kept of them, for how long, and what a URL's openness follows from."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sockd.base.errors import NoSuchFunction
from sockd.functions.registry.aliases import Alias
from sockd.functions.registry.function_policies import FunctionPolicies
from sockd.functions.registry.policy import INVOKE_URL, NoSuchStatement, Policy, Statement, StatementExists
from sockd.functions.registry.registry import Registry
from sockd.functions.registry.registry_schema import SCHEMA_VERSION

pytestmark = pytest.mark.anyio
PUBLIC = Statement("public", INVOKE_URL, "*", "NONE")


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    registry = await Registry.open(tmp_path / "registry.sqlite")
    await registry.put("f", digest="d", code_bytes=1, handler="f:f", config="{}", closure="[]")
    yield registry
    await registry.aclose()


@pytest.fixture
def policies(registry: Registry) -> FunctionPolicies:
    return FunctionPolicies(registry)


async def test_a_policy_is_there_after_a_restart(policies: FunctionPolicies, tmp_path: Path) -> None:
    await policies.add("f", "", PUBLIC)
    kept = await policies.remove("f", "", "public")
    again = await Registry.open(tmp_path / "registry.sqlite")
    assert FunctionPolicies(again).of("f") == kept
    assert not kept.opens_urls and kept.statements == ()
    await again.aclose()


async def test_each_change_has_another_revision(policies: FunctionPolicies) -> None:
    revisions = {
        (await policies.add("f", "", Statement(str(n), "lambda:InvokeFunction", "*"))).revision for n in range(3)
    }
    assert len(revisions | {(await policies.remove("f", "", "1")).revision}) == 4


async def test_what_cannot_be_changed(policies: FunctionPolicies) -> None:
    await policies.add("f", "", PUBLIC)
    with pytest.raises(StatementExists):
        await policies.add("f", "", PUBLIC)
    with pytest.raises(NoSuchStatement):
        await policies.remove("f", "", "other")
    with pytest.raises(NoSuchFunction):
        await policies.add("none", "", PUBLIC)


async def test_a_policy_goes_with_its_alias_its_version_and_its_function(
    registry: Registry, policies: FunctionPolicies
) -> None:
    await registry.publish("f", 1, "")
    await registry.change("f", lambda function: function.with_alias(Alias("f", "prod", "1")))
    for qualifier in ("", "1", "prod"):
        await policies.add("f", qualifier, PUBLIC)
    await registry.change("f", lambda function: function.without_alias("prod"))
    assert registry.of("f").policies.keys() == {"", "1"}
    await registry.unpublish("f", 1)
    assert registry.of("f").policies.keys() == {""}
    await registry.delete("f")
    await registry.put("f", digest="d", code_bytes=1, handler="f:f", config="{}", closure="[]")
    assert policies.of("f") == Policy()


@pytest.mark.parametrize(
    ("statement", "opens"),
    [
        (PUBLIC, True),
        (Statement("a", INVOKE_URL, "*"), True),
        (Statement("a", INVOKE_URL, "*", "AWS_IAM"), False),
        (Statement("a", INVOKE_URL, "123456789012", "NONE"), False),
        (Statement("a", INVOKE_URL, "*", "NONE", source_arn="arn:aws:s3:::b"), False),
        (Statement("a", INVOKE_URL, "*", "NONE", organization="o-1"), False),
    ],
)
def test_a_statement_about_urls_decides(statement: Statement, opens: bool) -> None:
    assert Policy().opens_urls
    assert Policy().with_statement(statement, "r").opens_urls is opens


async def test_a_file_of_an_earlier_schema_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    registry = await Registry.open(path)
    await registry.put("f", digest="d", code_bytes=1, handler="f:f", config="{}", closure="[]")
    await registry.aclose()
    database = sqlite3.connect(path)
    database.execute("UPDATE functions SET value = json_remove(value, '$.policies')")
    database.execute("PRAGMA user_version = 6")
    database.commit()
    database.close()
    registry = await Registry.open(path)
    assert registry.of("f").policies == {} and registry.get("f").digest == "d"
    await registry.aclose()
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
