"""The operations on functions, all but Invoke: deploying, looking and changing, in AWS's shapes.

Owns the names of functions that are being changed: two clients never change one function at the same time.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sockd.config import CodeConfig
from sockd.errors import NoSuchFunction
from sockd.http.aws import shapes
from sockd.http.aws.archives import archive
from sockd.http.aws.errors import InvalidParameterValue, PreconditionFailed, ResourceConflict, ValidationFailed
from sockd.http.aws.names import arn, function_named
from sockd.http.aws.routes import Operation
from sockd.http.aws.worker import Details, LambdaWorker
from sockd.lambdas.function_config import AwsAttributes

PAGE = 50
"""Most functions of one answer, as on AWS."""


@dataclass(frozen=True, slots=True)
class Call:
    """What an operation is called with."""

    segment: str
    """The part of the path that names a function or an ARN, percent-encoded; empty if none does."""
    query: dict[str, list[str]]
    body: bytes | bytearray

    def parameter(self, name: str) -> str | None:
        """The first of this name in the query."""
        values = self.query.get(name)
        return values[0] if values else None


Result = tuple[int, dict[str, Any] | None]
"""A status, and what is answered."""


class FunctionOperations:
    """`run` runs one."""

    def __init__(self, worker: LambdaWorker, config: CodeConfig, tmp: Path) -> None:
        """Args: tmp: a directory for uploads, on the disk of the state directory."""
        self._worker = worker
        self._config = config
        self._tmp = tmp
        self._changing: set[str] = set()
        self._operations: dict[Operation, Callable[[Call], Awaitable[Result]]] = {
            Operation.CREATE_FUNCTION: self._create,
            Operation.LIST_FUNCTIONS: self._list,
            Operation.GET_FUNCTION: self._get,
            Operation.DELETE_FUNCTION: self._delete,
            Operation.GET_FUNCTION_CONFIGURATION: self._get_configuration,
            Operation.UPDATE_FUNCTION_CONFIGURATION: self._update_configuration,
            Operation.UPDATE_FUNCTION_CODE: self._update_code,
            Operation.LIST_VERSIONS_BY_FUNCTION: self._list_versions,
            Operation.PUT_FUNCTION_CONCURRENCY: self._put_concurrency,
            Operation.GET_FUNCTION_CONCURRENCY: self._get_concurrency,
            Operation.DELETE_FUNCTION_CONCURRENCY: self._delete_concurrency,
            Operation.GET_ACCOUNT_SETTINGS: self._account_settings,
            Operation.LIST_TAGS: self._list_tags,
            Operation.TAG_RESOURCE: self._tag,
            Operation.UNTAG_RESOURCE: self._untag,
        }

    async def run(self, operation: Operation, call: Call) -> Result:
        """Raises: SockdError."""
        return await self._operations[operation](call)

    # -- deploying

    async def _create(self, call: Call) -> Result:
        wanted = shapes.parse(call.body, shapes.Create)
        name, _ = function_named(wanted.function_name or "")
        wanted.check()
        with self._change(name):
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
        with self._change(name):
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
        with self._change(name):
            await self._worker.remove(name)
        return 204, None

    # -- changing settings

    async def _update_configuration(self, call: Call) -> Result:
        name, qualified = self._named(call)
        settings = shapes.parse(call.body, shapes.Settings)
        settings.check()
        with self._change(name):
            details = self._checked(name, settings.revision_id)
            await self._worker.configure(name, settings.changes(shapes.attributes(details)))
            return 200, shapes.configuration(self._worker.details(name), qualified=qualified)

    async def _put_concurrency(self, call: Call) -> Result:
        wanted = shapes.parse(call.body, shapes.Concurrency).reserved_concurrent_executions
        await self._set_concurrency(self._named(call)[0], wanted, wanted)
        return 200, {"ReservedConcurrentExecutions": wanted}

    async def _delete_concurrency(self, call: Call) -> Result:
        await self._set_concurrency(self._named(call)[0], self._worker.default_concurrency(), None)
        return 204, None

    async def _set_concurrency(self, name: str, concurrency: int, reserved: int | None) -> None:
        with self._change(name):
            aws = shapes.attributes(self._worker.details(name))
            await self._set_attributes(name, aws, concurrency=concurrency, reserved_concurrency=reserved)

    async def _tag(self, call: Call) -> Result:
        name, added = function_named(call.segment)[0], shapes.parse(call.body, shapes.Tags).tags
        with self._change(name):
            aws = shapes.attributes(self._worker.details(name))
            tags = aws.tags | added
            shapes.check_tags(tags)
            await self._set_attributes(name, aws, tags=tags)
        return 204, None

    async def _untag(self, call: Call) -> Result:
        name = function_named(call.segment)[0]
        with self._change(name):
            aws = shapes.attributes(self._worker.details(name))
            gone = call.query.get("tagKeys", [])
            await self._set_attributes(name, aws, tags={key: aws.tags[key] for key in aws.tags if key not in gone})
        return 204, None

    async def _set_attributes(
        self, name: str, aws: AwsAttributes, *, concurrency: int | None = None, **attributes: Any
    ) -> None:
        changes: dict[str, Any] = {"aws": msgspec.to_builtins(msgspec.structs.replace(aws, **attributes))}
        if concurrency is not None:
            changes["concurrency"] = concurrency
        await self._worker.configure(name, changes)

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

    async def _get_concurrency(self, call: Call) -> Result:
        reserved = shapes.attributes(self._worker.details(self._named(call)[0])).reserved_concurrency
        return 200, {} if reserved is None else {"ReservedConcurrentExecutions": reserved}

    async def _list_tags(self, call: Call) -> Result:
        return 200, {"Tags": shapes.attributes(self._worker.details(function_named(call.segment)[0])).tags}

    async def _list(self, call: Call) -> Result:
        version = call.parameter("FunctionVersion")
        if version not in (None, "ALL"):
            raise ValidationFailed(version or "", "functionVersion", "Member must satisfy enum value set: [ALL]")
        most, after = _max_items(call.parameter("MaxItems")), _marker(call.parameter("Marker"))
        rest = [details for details in self._worker.all_details() if details.record.name > after]
        answer: dict[str, Any] = {
            "Functions": [shapes.configuration(details, qualified=version == "ALL") for details in rest[:most]]
        }
        if len(rest) > most:
            answer["NextMarker"] = base64.urlsafe_b64encode(rest[most - 1].record.name.encode()).decode()
        return 200, answer

    async def _list_versions(self, call: Call) -> Result:
        details = self._worker.details(self._named(call)[0])
        return 200, {"Versions": [shapes.configuration(details, qualified=True)]}

    async def _account_settings(self, call: Call) -> Result:
        most = self._worker.sandboxes_that_fit()
        everything = self._worker.all_details()
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

    # -- what they have in common

    def _named(self, call: Call) -> tuple[str, bool]:
        return function_named(call.segment, call.parameter("Qualifier"))

    def _checked(self, name: str, revision: str | None) -> Details:
        """The current version, if it is that which the caller knows. Raises: PreconditionFailed, NoSuchFunction."""
        details = self._worker.details(name)
        if revision is not None and revision != shapes.revision(details):
            raise PreconditionFailed()
        return details

    @contextlib.contextmanager
    def _change(self, name: str) -> Iterator[None]:
        """Be the only one who changes this function. Raises: ResourceConflict."""
        if name in self._changing:
            raise ResourceConflict(
                f"The operation cannot be performed at this time. An update is in progress for resource: {arn(name)}"
            )
        self._changing.add(name)
        try:
            yield
        finally:
            self._changing.discard(name)


def _max_items(text: str | None) -> int:
    if text is None:
        return PAGE
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not 1 <= int(text) <= 10_000:
        raise ValidationFailed(text, "maxItems", "Member must be a number from 1 to 10000")
    return min(int(text), PAGE)


def _marker(text: str | None) -> str:
    try:
        return base64.b64decode(text or "", b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidParameterValue("Marker is not one of ours") from None
