"""The operations on concurrency of functions and of the worker.

Owns nothing.
"""

from __future__ import annotations

import msgspec

from sockd.base.config import CodeConfig
from sockd.http.aws import shapes
from sockd.http.aws.errors import InvalidParameterValue
from sockd.http.aws.names import whole_function
from sockd.http.aws.operations import Call, Changes, Result, Table
from sockd.http.aws.routes import Operation
from sockd.http.worker import Worker


class ConcurrencyOperations:
    """Reserved concurrency is the setting `concurrency` of a function."""

    def __init__(self, worker: Worker, changes: Changes, config: CodeConfig) -> None:
        self._worker = worker
        self._changes = changes
        self._config = config

    def table(self) -> Table:
        """As `Operations.table`."""
        return {
            Operation.PUT_FUNCTION_CONCURRENCY: self._put,
            Operation.GET_FUNCTION_CONCURRENCY: self._get,
            Operation.DELETE_FUNCTION_CONCURRENCY: self._delete,
            Operation.GET_ACCOUNT_SETTINGS: self._account_settings,
        }

    async def _put(self, call: Call) -> Result:
        wanted = shapes.parse(call.body, shapes.Concurrency).reserved_concurrent_executions
        name = whole_function(call.segment)
        provisioned = self._worker.versions.provisioning.wanted(name)
        if wanted < provisioned:
            raise InvalidParameterValue(
                f" ReservedConcurrentExecutions  {wanted} should not be lower than function's total provisioned "
                f"concurrency [{provisioned}]."
            )
        await self._set(name, wanted, wanted)
        return 200, {"ReservedConcurrentExecutions": wanted}

    async def _delete(self, call: Call) -> Result:
        await self._set(whole_function(call.segment), self._worker.functions.default_concurrency(), None)
        return 204, None

    async def _set(self, name: str, concurrency: int, reserved: int | None) -> None:
        with self._changes.of(name):
            aws = shapes.attributes(self._worker.functions.details(name))
            changed = msgspec.structs.replace(aws, reserved_concurrency=reserved)
            await self._worker.functions.configure(
                name, {"aws": msgspec.to_builtins(changed), "concurrency": concurrency}
            )

    async def _get(self, call: Call) -> Result:
        details = self._worker.functions.details(whole_function(call.segment))
        reserved = shapes.attributes(details).reserved_concurrency
        return 200, {} if reserved is None else {"ReservedConcurrentExecutions": reserved}

    async def _account_settings(self, call: Call) -> Result:
        most = self._worker.functions.sandboxes_that_fit()
        everything = self._worker.functions.all_details()
        return 200, {
            "AccountLimit": {
                "TotalCodeSize": 80530636800,  # AWS's 75 GB; here it is the disk that ends
                "CodeSizeUnzipped": self._config.max_code_bytes,
                "CodeSizeZipped": self._config.max_zip_bytes,
                "ConcurrentExecutions": most,
                "UnreservedConcurrentExecutions": most,
            },
            "AccountUsage": {
                "TotalCodeSize": sum(details.record.code_bytes for details in everything),
                "FunctionCount": len(everything),
            },
        }
