"""SeBS's NoSQL API, on DynamoDB: reads that the function's initscript made are here already, all else is boto3's.

Keys are pairs (attribute, value); the table's own name is in the environment: NOSQL_STORAGE_TABLE_<name>. An initscript's
request counts as the function's if its JSON means the same as what `get_request` and `query_request` make.
"""

from __future__ import annotations

import _thread
import json
import os

from sockd_storage import attributes
from sockd_storage.reads import Read

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from typing import Any

    Key = tuple[str, Any]

_lock = _thread.allocate_lock()


class nosql:
    """One instance a process; it holds nothing, and all threads may use it. Errors of the network are boto3's own."""

    instance: nosql | None = None

    @staticmethod
    def get_instance() -> nosql:
        """The process's instance. Makes no connection."""
        with _lock:
            if nosql.instance is None:
                nosql.instance = nosql()
            return nosql.instance

    def insert(self, table_name: str, primary_key: Key, secondary_key: Key, data: dict[str, Any]) -> None:
        """Put an item; one with these keys is replaced."""
        table = table_of(table_name)
        item = attributes.item_from_python({**data, **dict((primary_key, secondary_key))})
        client().put_item(TableName=table, Item=item)

    def update(self, table_name: str, primary_key: Key, secondary_key: Key, updates: dict[str, Any]) -> None:
        """Set some attributes of an item."""
        table = table_of(table_name)
        names = {f"#name{index}": name for index, name in enumerate(updates)}
        values = {f":value{index}": attributes.from_python(value) for index, value in enumerate(updates.values())}
        client().update_item(
            TableName=table,
            Key=key_of(primary_key, secondary_key),
            UpdateExpression="SET " + ", ".join(f"#name{index} = :value{index}" for index in range(len(updates))),
            ExpressionAttributeNames=names,
            ExpressionAttributeValues=values,
        )

    def delete(self, table_name: str, primary_key: Key, secondary_key: Key) -> None:
        """Delete an item, if it is there."""
        table = table_of(table_name)
        client().delete_item(TableName=table, Key=key_of(primary_key, secondary_key))

    def get(self, table_name: str, primary_key: Key, secondary_key: Key) -> dict[str, Any]:
        """One item. Raises: KeyError when it is not there."""
        request = get_request(table_of(table_name), primary_key, secondary_key)
        reply = call("GetItem", request)
        return attributes.item_to_python(reply["Item"])

    def query(self, table_name: str, primary_key: Key, secondary_key_name: str) -> list[dict[str, Any]]:
        """All items that have this primary key."""
        request = query_request(table_of(table_name), primary_key)
        items: list[dict[str, Any]] = []
        while True:
            reply = call("Query", request)
            items += map(attributes.item_to_python, reply["Items"])
            if not reply.get("LastEvaluatedKey"):
                return items
            request = {**request, "ExclusiveStartKey": reply["LastEvaluatedKey"]}


def table_of(name: str) -> str:
    """The table's own name. Raises: RuntimeError when the environment does not tell it."""
    variable = f"NOSQL_STORAGE_TABLE_{name}"
    if variable not in os.environ:
        raise RuntimeError(f"Couldn't find an environment variable {variable} for table {name}")
    return os.environ[variable]


def key_of(primary_key: Key, secondary_key: Key) -> dict[str, Any]:
    """Both keys as DynamoDB wants them."""
    return attributes.item_from_python(dict((primary_key, secondary_key)))


def get_request(table: str, primary_key: Key, secondary_key: Key) -> dict[str, Any]:
    """The body of the GetItem that `get` makes."""
    return {"TableName": table, "Key": key_of(primary_key, secondary_key)}


def query_request(table: str, primary_key: Key) -> dict[str, Any]:
    """The body of the Query that `query` makes, which is what SeBS's own wrapper makes."""
    return {
        "TableName": table,
        "KeyConditionExpression": f"{primary_key[0]} = :keyvalue",
        "ExpressionAttributeValues": {":keyvalue": attributes.from_python(primary_key[1])},
    }


def client() -> Any:
    """The process's boto3 client."""
    from sockd_storage import network

    return network.client("dynamodb")


def call(method: str, request: dict[str, Any]) -> dict[str, Any]:
    """Make a read, or have it made already."""
    read = Read([f"dynamodb.{method}", json.dumps(request, default=str)])
    message = read.prefetched()
    reply = parse(bytes(message.view)) if message is not None else None
    if isinstance(reply, dict) and ("Item" in reply or "Items" in reply):
        read.done("region")
        return reply
    dynamodb = client()
    answer: dict[str, Any] = read.from_network(dynamodb.get_item if method == "GetItem" else dynamodb.query, **request)
    return answer


def parse(text: str | bytes) -> Any:
    """JSON, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
