"""The operations on tags: a few words that clients keep with a function and that change nothing.

Owns nothing.
"""

from __future__ import annotations

import msgspec

from sockd.functions.code.function_config import AwsAttributes
from sockd.http.aws import shapes
from sockd.http.aws.errors import InvalidParameterValue
from sockd.http.aws.names import function_named
from sockd.http.aws.operations import Call, Changes, Result, Table
from sockd.http.aws.routes import Operation
from sockd.http.worker import Worker


class TagOperations:
    """Tags are the function's; an ARN with a version is refused, as on AWS."""

    def __init__(self, worker: Worker, changes: Changes) -> None:
        self._worker = worker
        self._changes = changes

    def table(self) -> Table:
        """As `Operations.table`."""
        return {
            Operation.LIST_TAGS: self._list,
            Operation.TAG_RESOURCE: self._tag,
            Operation.UNTAG_RESOURCE: self._untag,
        }

    async def _list(self, call: Call) -> Result:
        return 200, {"Tags": self._attributes(_named(call)).tags}

    async def _tag(self, call: Call) -> Result:
        name, added = _named(call), shapes.parse(call.body, shapes.Tags).tags
        with self._changes.of(name):
            aws = self._attributes(name)
            tags = aws.tags | added
            shapes.check_tags(tags)
            await self._set(name, aws, tags)
        return 204, None

    async def _untag(self, call: Call) -> Result:
        name = _named(call)
        with self._changes.of(name):
            aws = self._attributes(name)
            gone = call.query.get("tagKeys", [])
            await self._set(name, aws, {key: aws.tags[key] for key in aws.tags if key not in gone})
        return 204, None

    def _attributes(self, name: str) -> AwsAttributes:
        return shapes.attributes(self._worker.functions.details(name))

    async def _set(self, name: str, aws: AwsAttributes, tags: dict[str, str]) -> None:
        changed = msgspec.structs.replace(aws, tags=tags)
        await self._worker.functions.configure(name, {"aws": msgspec.to_builtins(changed)})


def _named(call: Call) -> str:
    name, qualifier = function_named(call.segment)
    if qualifier is not None:
        raise InvalidParameterValue(
            "Tags on function aliases and versions are not supported. Please specify a function ARN."
        )
    return name
