"""The NoSQL API: reads that the initscript made, and everything else against DynamoDB (moto's)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.storage_lib.conftest import Observer, named
from tests.storage_lib.engine_end import EngineEnd

KEYS = (("cart_id", "c1"), ("product_id", "p1"))
GET = {"TableName": "table-7", "Key": {"product_id": {"S": "p1"}, "cart_id": {"S": "c1"}}}
QUERY = {
    "TableName": "table-7",
    "KeyConditionExpression": "cart_id = :keyvalue",
    "ExpressionAttributeValues": {":keyvalue": {"S": "c1"}},
}
ITEM = {
    "cart_id": {"S": "c1"},
    "n": {"N": "5"},
    "f": {"N": "2.50"},
    "big": {"N": "12345678901234567890"},
    "m": {"M": {"l": {"L": [{"BOOL": False}, {"NULL": True}, {"B": "AAE="}]}}},
    "s": {"NS": ["1", "2"]},
}
PLAIN = {
    "cart_id": "c1",
    "n": 5,
    "f": 2.5,
    "big": 12345678901234567890,
    "m": {"l": [False, None, b"\0\1"]},
    "s": {1, 2},
}


@pytest.fixture
def nosql(
    function: Callable[[str], ModuleType],
    ends: Any,
    monkeypatch: pytest.MonkeyPatch,
    engine: EngineEnd,
    observer: Observer,
) -> Any:
    """The one instance of a function that has an initscript."""
    monkeypatch.setenv("SOCKD_INITSCRIPT_FD", named(ends[1]))
    monkeypatch.setenv("SOCKD_STORAGE_GRACE_S", "0.05")
    monkeypatch.setenv("NOSQL_STORAGE_TABLE_shopping_cart", "table-7")
    return function("nosql").nosql.get_instance()


@pytest.fixture
def dynamodb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """moto's DynamoDB inside this process, with the table."""
    import boto3
    from moto import mock_aws

    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        client = boto3.client("dynamodb")
        names = (("cart_id", "HASH"), ("product_id", "RANGE"))
        client.create_table(
            TableName="table-7",
            KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in names],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name, _ in names],
            BillingMode="PAY_PER_REQUEST",
        )
        yield client
        client.close()


def test_a_read_is_served_whatever_the_order_of_its_json(nosql: Any, engine: EngineEnd) -> None:
    for number in range(2):
        body = json.dumps(GET, indent=number)
        engine.message(number, json.dumps({"Item": ITEM}).encode(), "dynamodb.GetItem", body)
    engine.message(2, json.dumps({"Items": [ITEM, {}], "Count": 2}).encode(), "dynamodb.Query", json.dumps(QUERY))
    assert nosql.get("shopping_cart", *KEYS) == PLAIN
    assert nosql.get("shopping_cart", *reversed(KEYS)) == PLAIN
    assert nosql.query("shopping_cart", KEYS[0], "product_id") == [PLAIN, {}]
    assert [served for _, served in engine.reads()] == ["region"] * 3


def test_another_read_is_not(nosql: Any, engine: EngineEnd, dynamodb: Any) -> None:
    nosql.insert("shopping_cart", *KEYS, {"n": 1})
    other = {**GET, "Key": {**GET["Key"], "cart_id": {"S": "c2"}}}  # type: ignore[dict-item]
    engine.message(0, json.dumps({"Item": ITEM}).encode(), "dynamodb.GetItem", json.dumps(other))
    engine.message(1, json.dumps({"Item": ITEM}).encode(), "dynamodb.GetItem", "[not JSON")
    engine.message(2, b"not JSON", "dynamodb.GetItem", json.dumps(GET))
    for _ in range(3):
        assert nosql.get("shopping_cart", *KEYS)["n"] == 1
    assert [served for _, served in engine.reads()] == ["network"] * 3


def test_what_is_missing_is_a_key_error(nosql: Any, engine: EngineEnd, dynamodb: Any) -> None:
    engine.message(0, b"{}", "dynamodb.GetItem", json.dumps(GET))
    engine.end()
    with pytest.raises(KeyError):
        nosql.get("shopping_cart", *KEYS)


def test_after_any_write_the_table_is_read_anew(
    nosql: Any, engine: EngineEnd, dynamodb: Any, observer: Observer
) -> None:
    for number in range(5):
        engine.message(number, json.dumps({"Items": []}).encode(), "dynamodb.Query", json.dumps(QUERY))
        engine.checked(number, same=False)
    seen = [nosql.query("shopping_cart", KEYS[0], "product_id")]
    observer.has_written = True
    nosql.insert("shopping_cart", *KEYS, dict(PLAIN))
    seen.append(nosql.query("shopping_cart", KEYS[0], "product_id"))
    nosql.update("shopping_cart", *KEYS, {"n": 6, "size": "a reserved word"})
    seen.append(nosql.query("shopping_cart", KEYS[0], "product_id"))
    nosql.delete("shopping_cart", *KEYS)
    seen.append(nosql.query("shopping_cart", KEYS[0], "product_id"))
    whole = {**PLAIN, "product_id": "p1"}
    assert seen == [[], [whole], [{**whole, "n": 6, "size": "a reserved word"}], []]
    assert [served for _, served in engine.reads()] == ["region", "network", "network", "network"]


def test_a_table_that_the_environment_does_not_name(nosql: Any) -> None:
    with pytest.raises(RuntimeError, match="NOSQL_STORAGE_TABLE_other"):
        nosql.get("other", *KEYS)


@pytest.mark.parametrize("value", [object(), float("nan"), float("inf"), {1, "a"}, set(), 1j])
def test_what_dynamodb_cannot_hold_is_a_type_error(function: Callable[[str], ModuleType], value: object) -> None:
    with pytest.raises(TypeError):
        function("sockd_storage.attributes").from_python(value)
