"""The operations on functions: deploy, read, change, in AWS's shapes.

Owns nothing.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec

from sockd.base.config import CodeConfig
from sockd.base.errors import NoSuchFunction, VersionFailed
from sockd.functions.code.function_config import AwsAttributes
from sockd.functions.deploys import deploy_check
from sockd.functions.registry.aliases import LATEST, number_of
from sockd.http.aws import shapes
from sockd.http.aws.archives import archive, empty_archive
from sockd.http.aws.errors import InvalidParameterValue, PreconditionFailed, ResourceConflict, ValidationFailed
from sockd.http.aws.names import Named, function_named, whole_function
from sockd.http.aws.operations import Call, Changes, Result, Table, page, version_key
from sockd.http.aws.routes import Operation
from sockd.http.worker import Worker
from sockd.http.worker_values import Details


class FunctionOperations:
    """Create, read, update, delete."""

    def __init__(self, worker: Worker, changes: Changes, config: CodeConfig, tmp: Path) -> None:
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
        }

    # -- deploying

    async def _create(self, call: Call) -> Result:
        wanted = shapes.parse(call.body, shapes.Create)
        name, _ = function_named(wanted.function_name or "")
        wanted.check(name)
        with self._changes.of(name):
            with contextlib.suppress(NoSuchFunction):
                self._worker.functions.details(name)
                raise ResourceConflict(f"Function already exist: {name}")
            changes = wanted.changes(AwsAttributes(tags=wanted.tags))
            if wanted.code.image_uri is not None:
                changes["image"] = wanted.code.image_uri
            # A function whose code does not start is there nevertheless, as on AWS: its State is Failed.
            await self._deploy(name, wanted.code, {**changes, deploy_check.CHECK: deploy_check.FIRST})
            return 201, shapes.configuration(await self._published(name, wanted.publish))

    async def _update_code(self, call: Call) -> Result:
        name = whole_function(call.segment)
        code = shapes.parse(call.body, shapes.UpdateCode)
        code.check(code.architectures)
        with self._changes.of(name):
            details = self._checked(name, code.revision_id)
            self._check_package_type(details, code)
            if code.dry_run:
                return 200, shapes.configuration(await self._tried(details, code))
            aws = shapes.attributes(details)
            uri = code.image_uri
            settings = shapes.kept(details, aws) if uri is None else shapes.of_image(details, uri, aws)
            try:
                await self._deploy(name, code, settings)
            except VersionFailed:  # the code before runs on, and LastUpdateStatus is Failed
                return 200, shapes.configuration(self._worker.functions.details(name))
            details = await self._published(name, code.publish)
            return 200, shapes.configuration(details, details.version if code.publish else None)

    async def _published(self, name: str, publish: bool) -> Details:
        """What has just been deployed, with a number if that was asked for."""
        return (
            Details.of(await self._worker.versions.publish(name)) if publish else self._worker.functions.details(name)
        )

    def _check_package_type(self, details: Details, code: shapes.Code) -> None:
        """Raises: InvalidParameterValue: a function stays an archive's or an image's, as on AWS."""
        is_image = bool(details.record.image)
        if is_image != (code.image_uri is not None):
            given, kind = ("ZipFile", "Image") if is_image else ("ImageUri", "Zip")
            raise InvalidParameterValue(
                f"Please do not provide {given} when updating a function with packageType {kind}."
            )

    async def _deploy(self, name: str, code: shapes.Code, settings: dict[str, Any]) -> None:
        if code.image_uri is not None:
            async with empty_archive(self._tmp) as path:
                await self._worker.functions.deploy(name, path, overrides=settings, progress=lambda line: None)
            return
        async with archive(code.zip_file, self._tmp, self._config.max_zip_bytes) as uploaded:
            settings["aws"] |= {"zip_sha256": uploaded.sha256, "zip_bytes": uploaded.size_bytes}
            await self._worker.functions.deploy(name, uploaded.path, overrides=settings, progress=lambda line: None)

    async def _tried(self, details: Details, code: shapes.Code) -> Details:
        """The function as it would be with other code; of an image nothing is known before it is imported."""
        if code.image_uri is not None:
            return details
        async with archive(code.zip_file, self._tmp, self._config.max_zip_bytes) as uploaded:
            await self._worker.functions.check_archive(uploaded.path)
        aws = msgspec.structs.replace(
            shapes.attributes(details), zip_sha256=uploaded.sha256, zip_bytes=uploaded.size_bytes
        )
        return details._replace(config=msgspec.structs.replace(details.config, aws=aws))

    async def _delete(self, call: Call) -> Result:
        name, qualifier = self._named(call)
        if qualifier == LATEST:
            raise InvalidParameterValue("$LATEST version cannot be deleted without deleting the function.")
        with self._changes.of(name):
            if qualifier is None:
                await self._worker.functions.remove(name)
            else:
                await self._delete_version(name, qualifier)
        return 204, None

    async def _delete_version(self, name: str, qualifier: str) -> None:
        number = number_of(qualifier)
        if number is None:
            raise InvalidParameterValue("Deletion of aliases is not currently supported.")
        await self._worker.functions.delete_version(name, number)

    # -- changing settings

    async def _update_configuration(self, call: Call) -> Result:
        name = whole_function(call.segment)
        settings = shapes.parse(call.body, shapes.Update)
        settings.check(name)
        with self._changes.of(name):
            details = self._checked(name, settings.revision_id)
            if details.record.image and (settings.runtime or settings.handler):
                raise InvalidParameterValue("Runtime and Handler are not for functions created with an ImageUri.")
            await self._worker.functions.configure(name, settings.changes(shapes.attributes(details)))
            return 200, shapes.configuration(self._worker.functions.details(name))

    # -- looking

    async def _get(self, call: Call) -> Result:
        name, qualifier = self._named(call)
        answer: dict[str, Any] = {
            "Configuration": shapes.configuration(self._worker.functions.details(name, qualifier or ""), qualifier),
            "Code": shapes.code_location(self._worker.functions.details(name, qualifier or "")),
        }
        aws = shapes.attributes(self._worker.functions.details(name))
        if aws.tags:
            answer["Tags"] = aws.tags
        if aws.reserved_concurrency is not None:
            answer["Concurrency"] = {"ReservedConcurrentExecutions": aws.reserved_concurrency}
        return 200, answer

    async def _get_configuration(self, call: Call) -> Result:
        name, qualifier = self._named(call)
        return 200, shapes.configuration(self._worker.functions.details(name, qualifier or ""), qualifier)

    async def _list(self, call: Call) -> Result:
        version = call.parameter("FunctionVersion")
        if version not in (None, "ALL"):
            raise ValidationFailed(version or "", "functionVersion", "Member must satisfy enum value set: [ALL]")
        if version is None:
            shown, more = page(call, self._worker.functions.all_details(), lambda details: details.record.name)
            return 200, {"Functions": [shapes.configuration(details) for details in shown], **more}
        versions = self._worker.versions
        some, more = page(call, versions.everything(), lambda each: version_key(*each))
        every = [Details.of(versions.described(*each)) for each in some]
        return 200, {"Functions": [shapes.configuration(details, details.version) for details in every], **more}

    # -- what they have in common

    def _named(self, call: Call) -> Named:
        return function_named(call.segment, call.parameter("Qualifier"))

    def _checked(self, name: str, revision: str | None) -> Details:
        """The current version, if it is that which the caller knows. Raises: PreconditionFailed, NoSuchFunction."""
        details = self._worker.functions.details(name)
        if revision is not None and revision != shapes.revision(details):
            raise PreconditionFailed()
        return details
