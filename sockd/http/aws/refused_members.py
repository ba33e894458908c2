"""Members of requests that AWS obeys and sockd does not: each is refused, unless its value is the default.

A member that is accepted and dropped would promise what the worker does not do, such as a sandbox for each tenant. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sockd.http.aws.errors import InvalidParameterValue


class NotOffered(NamedTuple):
    """One member."""

    instead: str
    """What to do, for the error."""
    defaults: Mapping[str, Any] = {}
    """The values of a structure's members that ask for nothing, by the members' names."""

    def is_default(self, value: Any) -> bool:
        """Whether a value asks for nothing. Clients also send empty values, and structures of empty values."""
        if isinstance(value, dict):
            return all(not inner or inner == self.defaults.get(name) for name, inner in value.items())
        return not value


_NO_KMS = "there is no KMS; the worker encrypts secrets itself (`sockd secret`), leave it out"
_NO_S3 = "code is a ZipFile within the request, or an ImageUri"
_NO_TENANTS = "sandboxes are a function's, not a tenant's: deploy one function for each tenant"
_NO_DURABLE = "executions are not checkpointed; leave it out"

BODY: Mapping[str, NotOffered] = {
    "AcceleratorConfig": NotOffered("functions have no accelerators; leave it out"),
    "CapacityProviderConfig": NotOffered("the worker's host is the only capacity; leave it out"),
    "CodeSigningConfigArn": NotOffered("signatures of code are not verified; leave it out"),
    "DeadLetterConfig": NotOffered(
        "events that fail are kept as dead letters; PutFunctionEventInvokeConfig sends them elsewhere"
    ),
    "DurableConfig": NotOffered(_NO_DURABLE),
    "FileSystemConfigs": NotOffered("functions have /tmp only"),
    "KMSKeyArn": NotOffered(_NO_KMS),
    "Layers": NotOffered("name packages in requirements.txt"),
    "PublishTo": NotOffered("versions have numbers: set Publish, or call PublishVersion without PublishTo"),
    "RuntimeConfig": NotOffered("a runtime has no versions to choose from; set Runtime alone"),
    "S3Bucket": NotOffered(_NO_S3),
    "S3Key": NotOffered(_NO_S3),
    "S3ObjectStorageMode": NotOffered(_NO_S3),
    "S3ObjectVersion": NotOffered(_NO_S3),
    "SourceKMSKeyArn": NotOffered(_NO_KMS),
    "TenancyConfig": NotOffered(_NO_TENANTS),
    "TracingConfig": NotOffered(
        "there is no X-Ray; every invocation is traced (`sockd trace`, [otlp]), leave it out or set PassThrough",
        {"Mode": "PassThrough"},
    ),
    "VpcConfig": NotOffered("see `network` and `egress` in sockd.toml"),
}
"""By the member's name, wherever in a body it stands."""
HEADERS: Mapping[str, tuple[str, NotOffered]] = {
    "x-amz-durable-execution-name": ("DurableExecutionName", NotOffered(_NO_DURABLE)),
    "x-amz-tenant-id": ("TenantId", NotOffered(_NO_TENANTS)),
}
"""Headers of the operations that invoke; by lower-case name, with the member's."""
QUERY: Mapping[str, NotOffered] = {"MasterRegion": NotOffered("no function is a replica of Lambda@Edge; leave it out")}
"""By the parameter's name."""


def check_member(name: str, value: Any) -> None:
    """Check a member of a body. Raises: InvalidParameterValue."""
    member = BODY.get(name)
    if member is not None and not member.is_default(value):
        raise refused(name, member)


def check_parameters(headers: Mapping[str, str], query: Mapping[str, list[str]]) -> None:
    """Check headers and query of a request. Raises: InvalidParameterValue."""
    for header, (name, member) in HEADERS.items():
        if not member.is_default(headers.get(header)):
            raise refused(name, member)
    for name, member in QUERY.items():
        if any(query.get(name, ())):
            raise refused(name, member)


def refused(name: str, member: NotOffered) -> InvalidParameterValue:
    """The error for a member whose value asks for something."""
    return InvalidParameterValue(f"{name} is not offered by sockd: {member.instead}")
