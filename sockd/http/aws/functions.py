"""The operations on functions: deploying, looking and changing, in AWS's shapes.

Owns nothing.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec

from sockd.config import CodeConfig
from sockd.errors import NoSuchFunction
from sockd.http.aws import shapes
from sockd.http.aws.archives import archive
from sockd.http.aws.errors import InvalidParameterValue, PreconditionFailed, ResourceConflict, ValidationFailed
from sockd.http.aws.names import function_named
from sockd.http.aws.operations import Call, Changes, Result, Table, page
from sockd.http.aws.routes import Operation
from sockd.http.aws.worker import Details, LambdaWorker
from sockd.lambdas.function_config import AwsAttributes


class FunctionOperations:
    """Create, read, update, delete."""

    def __init__(self, worker: LambdaWorker, changes: Changes, config: CodeConfig, tmp: Path) -> None:
        """Args: tmp: a directory for uploads, on the disk of the state directory."""
        self._worker = worker
        self._changes = changes
        self._config = config
        self._tmp = tmp

    def table(self) -> Table:
        """As `Operations.table`."""
        return {
            Operation.CREATE_FUNCTION: self._create,
            Operation.LIST_FUNCTIONS: self._list,
            Operation.GET_FUNCTION: self._get,
            Operation.DELETE_FUNCTION: self._delete,
            Operation.GET_FUNCTION_CONFIGURATION: self._get_configuration,
            Operation.UPDATE_FUNCTION_CONFIGURATION: self._update_configuration,
            Operation.UPDATE_FUNCTION_CODE: self._update_code,
            Operation.LIST_VERSIONS_BY_FUNCTION: self._list_versions,
        }

    # -- deploying

    async def _create(self, call: Call) -> Result:
        wanted = shapes.parse(call.body, shapes.Create)
        name, _ = function_named(wanted.function_name or "")
        wanted.check()
        with self._changes.of(name):
            with contextlib.suppress(NoSuchFunction):
                self._worker.details(name)
                raise ResourceConflict(f"Function already exist: {name}")
            changes = wanted.changes(AwsAttributes(tags=wanted.tags))
            await self._deploy(name, wanted.code, changes)
            return 201, shapes.configuration(self._worker.details(name))

    async def _update_code(self, call: Call) -> Result:
        name, qualified = self._named(call)
        code = shapes.parse(call.body, shapes.Code)
        code.check()
        with self._changes.of(name):
            details = self._checked(name, code.revision_id)
            if code.dry_run:
                details = await self._tried(details, code)
            else:
                await self._deploy(name, code, shapes.kept(details, shapes.attributes(details)))
                details = self._worker.details(name)
            return 200, shapes.configuration(details, qualified=qualified)

    async def _deploy(self, name: str, code: shapes.Code, settings: dict[str, Any]) -> None:
        async with archive(code.zip_file, self._tmp, self._config.max_zip_bytes) as uploaded:
            settings["aws"] |= {"zip_sha256": uploaded.sha256, "zip_bytes": uploaded.size_bytes}
            await self._worker.deploy(name, uploaded.path, overrides=settings, progress=lambda line: None)

    async def _tried(self, details: Details, code: shapes.Code) -> Details:
        """The function as it would be with other code."""
        async with archive(code.zip_file, self._tmp, self._config.max_zip_bytes) as uploaded:
            await self._worker.check_archive(uploaded.path)
        aws = msgspec.structs.replace(
            shapes.attributes(details), zip_sha256=uploaded.sha256, zip_bytes=uploaded.size_bytes
        )
        return details._replace(config=msgspec.structs.replace(details.config, aws=aws))

    async def _delete(self, call: Call) -> Result:
        name, qualified = self._named(call)
        if qualified:
            raise InvalidParameterValue("$LATEST version cannot be deleted without deleting the function.")
        with self._changes.of(name):
            await self._worker.remove(name)
        return 204, None

    # -- changing settings

    async def _update_configuration(self, call: Call) -> Result:
        name, qualified = self._named(call)
        settings = shapes.parse(call.body, shapes.Settings)
        settings.check()
        with self._changes.of(name):
            details = self._checked(name, settings.revision_id)
            await self._worker.configure(name, settings.changes(shapes.attributes(details)))
            return 200, shapes.configuration(self._worker.details(name), qualified=qualified)

    # -- looking

    async def _get(self, call: Call) -> Result:
        name, qualified = self._named(call)
        details = self._worker.details(name)
        answer: dict[str, Any] = {
            "Configuration": shapes.configuration(details, qualified=qualified),
            "Code": {"RepositoryType": "sockd"},
        }
        aws = shapes.attributes(details)
        if aws.tags:
            answer["Tags"] = aws.tags
        if aws.reserved_concurrency is not None:
            answer["Concurrency"] = {"ReservedConcurrentExecutions": aws.reserved_concurrency}
        return 200, answer

    async def _get_configuration(self, call: Call) -> Result:
        name, qualified = self._named(call)
        return 200, shapes.configuration(self._worker.details(name), qualified=qualified)

    async def _list(self, call: Call) -> Result:
        version = call.parameter("FunctionVersion")
        if version not in (None, "ALL"):
            raise ValidationFailed(version or "", "functionVersion", "Member must satisfy enum value set: [ALL]")
        shown, more = page(call, self._worker.all_details(), lambda details: details.record.name)
        functions = [shapes.configuration(details, qualified=version == "ALL") for details in shown]
        return 200, {"Functions": functions, **more}

    async def _list_versions(self, call: Call) -> Result:
        details = self._worker.details(self._named(call)[0])
        return 200, {"Versions": [shapes.configuration(details, qualified=True)]}

    # -- what they have in common

    def _named(self, call: Call) -> tuple[str, bool]:
        return function_named(call.segment, call.parameter("Qualifier"))

    def _checked(self, name: str, revision: str | None) -> Details:
        """The current version, if it is that which the caller knows. Raises: PreconditionFailed, NoSuchFunction."""
        details = self._worker.details(name)
        if revision is not None and revision != shapes.revision(details):
            raise PreconditionFailed()
        return details
