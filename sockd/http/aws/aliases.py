"""The operations on aliases.

Owns nothing.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from sockd.base.errors import NoSuchVersion
from sockd.base.function_arns import arn
from sockd.functions.registry.aliases import LATEST, NAME, Alias, number_of
from sockd.http.aws import shapes
from sockd.http.aws.errors import (
    InvalidParameterValue,
    PreconditionFailed,
    ResourceConflict,
    ResourceNotFound,
    ValidationFailed,
)
from sockd.http.aws.names import whole_function
from sockd.http.aws.operations import Call, Changes, Result, Table, page
from sockd.http.aws.routes import Operation
from sockd.http.aws.versions import check_description
from sockd.http.worker import Worker

WEIGHTS = "routingConfig.additionalVersionWeights"


class AliasOperations:
    """Create, read, update, delete."""

    def __init__(self, worker: Worker, changes: Changes) -> None:
        self._worker = worker
        self._changes = changes

    def table(self) -> Table:
        """As `Operations.table`."""
        return {
            Operation.CREATE_ALIAS: self._create,
            Operation.GET_ALIAS: self._get,
            Operation.UPDATE_ALIAS: self._update,
            Operation.DELETE_ALIAS: self._delete,
            Operation.LIST_ALIASES: self._list,
        }

    async def _create(self, call: Call) -> Result:
        function = whole_function(call.segment)
        wanted = shapes.parse(call.body, shapes.AliasShape)
        if not NAME.fullmatch(wanted.name):
            raise ValidationFailed(
                wanted.name, "name", "Member must satisfy regular expression pattern: (?!^[0-9]+$)([a-zA-Z0-9-_]+)"
            )
        if wanted.function_version is None:
            raise InvalidParameterValue("FunctionVersion is a mandatory parameter of an alias")
        with self._changes.of(function):
            with contextlib.suppress(NoSuchVersion):
                self._worker.versions.alias(function, wanted.name)
                raise ResourceConflict(f"Alias already exists: {arn(function, wanted.name)}")
            alias = changed(Alias(function, wanted.name, wanted.function_version), wanted)
            return 201, described(await self._put(alias))

    async def _get(self, call: Call) -> Result:
        return 200, described(self._alias(call, "Cannot find alias arn"))

    async def _update(self, call: Call) -> Result:
        wanted = shapes.parse(call.body, shapes.AliasShape)
        with self._changes.of(whole_function(call.segment)):
            alias = self._alias(call, "Alias not found")
            if wanted.revision_id not in (None, alias.revision):
                raise PreconditionFailed()
            return 200, described(await self._put(changed(alias, wanted)))

    async def _delete(self, call: Call) -> Result:
        function = whole_function(call.segment)
        with self._changes.of(function):
            await self._worker.functions.delete_alias(function, unquote(call.segments[1]))
        return 204, None

    async def _list(self, call: Call) -> Result:
        version = call.parameter("FunctionVersion")
        aliases = [
            alias
            for alias in self._worker.versions.aliases(whole_function(call.segment))
            if version in (None, alias.version)
        ]
        shown, more = page(call, aliases, lambda alias: alias.alias)
        return 200, {"Aliases": [described(alias) for alias in shown], **more}

    def _alias(self, call: Call, unknown: str) -> Alias:
        """Raises: ResourceNotFound, NoSuchFunction."""
        function, name = whole_function(call.segment), unquote(call.segments[1])
        try:
            return self._worker.versions.alias(function, name)
        except NoSuchVersion:
            raise ResourceNotFound(f"{unknown}: {arn(function, name[:128])}") from None

    async def _put(self, alias: Alias) -> Alias:
        """Raises: ResourceNotFound, for a version that it is to lead to and that there is not."""
        try:
            return await self._worker.versions.put_alias(alias)
        except NoSuchVersion as error:
            raise ResourceNotFound(f"Function not found: {arn(alias.name, error.qualifier)}") from None


def changed(alias: Alias, wanted: shapes.AliasShape) -> Alias:
    """The alias of a body. Raises: InvalidParameterValue, ValidationFailed."""
    check_description(wanted.description)
    if wanted.description is not None:
        alias = replace(alias, description=wanted.description)
    if wanted.function_version is not None:
        if wanted.function_version != LATEST and number_of(wanted.function_version) is None:
            raise ValidationFailed(
                wanted.function_version,
                "functionVersion",
                r"Member must satisfy regular expression pattern: (\$LATEST|[0-9]+)",
            )
        alias = replace(alias, version=wanted.function_version, guard=None)
    if wanted.routing_config is not None:
        alias = replace(alias, other="", weight=0.0, guard=None)
        weights = wanted.routing_config.additional_version_weights or {}
        if len(weights) > 1:
            raise InvalidParameterValue("Number of items in AdditionalVersionWeights cannot be greater than 1")
        for version, weight in weights.items():
            _check_weight(version, weight)
            alias = replace(alias, other=version, weight=weight)
    return alias


def _check_weight(version: str, weight: float) -> None:
    value = f"{{{version[:64]}={weight}}}"
    if not 0 <= weight < 1:
        raise ValidationFailed(
            value,
            WEIGHTS,
            "Map value must satisfy constraint: [Member must have value less than or equal to 1.0, Member must have value "
            "greater than or equal to 0.0, Member must not be null]",
        )
    if number_of(version) is None:
        raise ValidationFailed(
            value,
            WEIGHTS,
            "Map keys must satisfy constraint: [Member must have length less than or equal to 1024, Member must have "
            "length greater than or equal to 1, Member must satisfy regular expression pattern: [0-9]+]",
        )


def described(alias: Alias) -> dict[str, Any]:
    """An AliasConfiguration."""
    answer: dict[str, Any] = {
        "AliasArn": arn(alias.name, alias.alias),
        "Name": alias.alias,
        "FunctionVersion": alias.version,
        "Description": alias.description,
        "RevisionId": alias.revision,
    }
    if alias.other:
        answer["RoutingConfig"] = {"AdditionalVersionWeights": {alias.other: alias.weight}}
    return answer
