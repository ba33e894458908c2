"""The operations on provisioned concurrency.

Owns nothing.
"""

from __future__ import annotations

import time
from typing import Any

from sockd.base.errors import NoCapacity, NoSuchVersion
from sockd.base.function_arns import arn
from sockd.functions.provisioning import Status
from sockd.functions.registry.aliases import LATEST, number_of
from sockd.http.aws import shapes
from sockd.http.aws.errors import InvalidParameterValue, ResourceNotFound, ValidationFailed
from sockd.http.aws.names import Named, function_named, whole_function
from sockd.http.aws.operations import Call, Changes, Result, Table, page
from sockd.http.aws.routes import Operation
from sockd.http.worker import Worker


class ProvisionedOperations:
    """The operations on the provisioned concurrency of published versions and of aliases."""

    def __init__(self, worker: Worker, changes: Changes) -> None:
        self._worker = worker
        self._changes = changes

    def table(self) -> Table:
        """As `Operations.table`."""
        return {
            Operation.PUT_PROVISIONED_CONCURRENCY_CONFIG: self._put,
            Operation.GET_PROVISIONED_CONCURRENCY_CONFIG: self._get,
            Operation.DELETE_PROVISIONED_CONCURRENCY_CONFIG: self._delete,
            Operation.LIST_PROVISIONED_CONCURRENCY_CONFIGS: self._list,
        }

    async def _put(self, call: Call) -> Result:
        named = _qualified(call)
        wanted = shapes.parse(call.body, shapes.Provisioned).provisioned_concurrent_executions
        if wanted < 1:
            raise ValidationFailed(
                str(wanted), "provisionedConcurrentExecutions", "Member must have value greater than or equal to 1"
            )
        with self._changes.of(named.name):
            try:
                status = await self._worker.versions.provisioning.put(named.name, str(named.qualifier), wanted)
            except NoSuchVersion as error:
                raise _unknown(named, error) from None
            except NoCapacity as error:  # not its own 503, which SDKs try again
                raise InvalidParameterValue(
                    "Specified ConcurrentExecutions for function is greater than account's unreserved concurrency: "
                    f"{error.message}"
                ) from None
        return 202, described(status)

    async def _get(self, call: Call) -> Result:
        named = _published(call)
        try:
            return 200, described(self._worker.versions.provisioning.status(named.name, str(named.qualifier)))
        except NoSuchVersion as error:
            raise _unknown(named, error) from None

    async def _delete(self, call: Call) -> Result:
        named = _published(call)
        with self._changes.of(named.name):
            try:
                await self._worker.versions.provisioning.delete(named.name, str(named.qualifier))
            except NoSuchVersion as error:
                raise _unknown(named, error) from None
        return 204, None

    async def _list(self, call: Call) -> Result:
        name = whole_function(call.segment)
        self._worker.functions.details(name)
        shown, more = page(call, self._worker.versions.provisioning.list(name), lambda each: each.provision.qualifier)
        configs = [{"FunctionArn": arn(name, each.provision.qualifier), **described(each)} for each in shown]
        return 200, {"ProvisionedConcurrencyConfigs": configs, **more}


def described(status: Status) -> dict[str, Any]:
    """A ProvisionedConcurrencyConfig."""
    updated = time.gmtime(status.provision.updated_at)
    answer: dict[str, Any] = {
        "RequestedProvisionedConcurrentExecutions": status.provision.wanted,
        "AvailableProvisionedConcurrentExecutions": status.available,
        "AllocatedProvisionedConcurrentExecutions": status.available,
        "Status": status.state,
        "LastModified": time.strftime("%Y-%m-%dT%H:%M:%S+0000", updated),
    }
    if status.reason:
        answer["StatusReason"] = status.reason
    return answer


def _qualified(call: Call) -> Named:
    named = function_named(call.segment, call.parameter("Qualifier"))
    if named.qualifier is None:
        raise ValidationFailed("null", "qualifier", "Member must not be null")
    return named


def _published(call: Call) -> Named:
    named = _qualified(call)
    if named.qualifier == LATEST:
        raise InvalidParameterValue("The function resource provided must be an alias or a published version.")
    return named


def _unknown(named: Named, error: NoSuchVersion) -> ResourceNotFound:
    is_alias = number_of(error.qualifier) is None
    return ResourceNotFound(f"{'Cannot find alias arn' if is_alias else 'Function not found'}: {named.arn}")
