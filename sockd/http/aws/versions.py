"""The operations on published versions. (Deleting one, and looking at one, are operations on functions.)

Owns nothing.
"""

from __future__ import annotations

from sockd.http.aws import shapes
from sockd.http.aws.errors import InvalidParameterValue, PreconditionFailed
from sockd.http.aws.names import function_named, whole_function
from sockd.http.aws.operations import Call, Changes, Result, Table, page, version_key
from sockd.http.aws.routes import Operation
from sockd.http.worker import Worker
from sockd.http.worker_values import Details

MAX_DESCRIPTION_CHARS = 256


class VersionOperations:
    """Publishing what was deployed, and listing what was published."""

    def __init__(self, worker: Worker, changes: Changes) -> None:
        self._worker = worker
        self._changes = changes

    def table(self) -> Table:
        """As `Operations.table`."""
        return {
            Operation.PUBLISH_VERSION: self._publish,
            Operation.LIST_VERSIONS_BY_FUNCTION: self._list,
        }

    async def _publish(self, call: Call) -> Result:
        name = whole_function(call.segment)
        wanted = shapes.parse(call.body, shapes.Publish)
        check_description(wanted.description)
        with self._changes.of(name):
            latest = self._worker.functions.details(name)
            if wanted.revision_id not in (None, shapes.revision(latest)):
                raise PreconditionFailed()
            current = shapes.code_sha256(latest)
            if wanted.code_sha256 not in (None, "", current):
                raise InvalidParameterValue(
                    f"CodeSHA256 ({str(wanted.code_sha256)[:100]}) is different from current CodeSHA256 in $LATEST "
                    f"({current}). Please try again with the CodeSHA256 in $LATEST."
                )
            published = Details.of(await self._worker.versions.publish(name, wanted.description))
            if published.config.snapshot:  # it is being made
                published = self._worker.functions.details(name, published.version)
        return 201, shapes.configuration(published, published.version)

    async def _list(self, call: Call) -> Result:
        name = function_named(call.segment).name
        versions = self._worker.versions
        shown, more = page(call, versions.list(name), lambda each: version_key(name, each))
        details = [Details.of(versions.described(name, each)) for each in shown]
        return 200, {"Versions": [shapes.configuration(each, each.version) for each in details], **more}


def check_description(description: str | None) -> None:
    """Raises: InvalidParameterValue."""
    if len(description or "") > MAX_DESCRIPTION_CHARS:
        raise InvalidParameterValue(f"Description must be at most {MAX_DESCRIPTION_CHARS} characters")
