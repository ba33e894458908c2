"""Function identifiers of this API: a name, a name with a qualifier, a partial or complete ARN.

Pure. An ARN must have the account and the region that functions see in their context (`sockd.base.function_arns`). Others are
refused as on AWS, where no request reaches another region, and no function of another account without that account's policy.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from sockd.base.function_arns import PARTITION, PREFIX, REGION, FunctionArn, arn, parse
from sockd.functions.registry.aliases import LATEST
from sockd.http.access.signatures import AccessDenied
from sockd.http.aws.errors import InvalidParameterValue, ResourceNotFound, ValidationFailed

FUNCTIONS_ONLY = (
    "This operation is permitted on Lambda functions only. Aliases and versions do not support this operation. Please "
    "specify either a function name or an unqualified function ARN."
)
_QUALIFIER = re.compile(r"\$LATEST|[A-Za-z0-9_-]{1,128}")


class Named(NamedTuple):
    """A function as a request names it."""

    name: str
    qualifier: str | None
    """$LATEST, a number or an alias; None: it said nothing."""

    @property
    def arn(self) -> str:
        """As it was named."""
        return arn(self.name, self.qualifier)


def function_named(segment: str, qualifier: str | None = None) -> Named:
    """What a part of a path names.

    Args:
        segment: percent-encoded.
        qualifier: the parameter of the query.
    Raises: ValidationFailed, InvalidParameterValue; ResourceNotFound, AccessDenied: it is not a function of this worker."""
    text = unquote(segment)
    found = parse(text)
    if found is None:
        raise ValidationFailed(
            text, "functionName", "Member must satisfy regular expression pattern: [a-zA-Z0-9-_]{1,64}"
        )
    if qualifier is not None and not _QUALIFIER.fullmatch(qualifier):
        raise ValidationFailed(
            qualifier, "qualifier", r"Member must satisfy regular expression pattern: \$LATEST|[a-zA-Z0-9-_]+"
        )
    _check_local(found)
    own = found.qualifier
    if own and qualifier and own != qualifier:
        raise InvalidParameterValue(
            "The derived qualifier from the function name does not match the specified qualifier."
        )
    return Named(found.name, own or qualifier)


def _check_local(named: FunctionArn) -> None:
    """Raises: ResourceNotFound, AccessDenied."""
    if named.partition != PARTITION:
        raise ResourceNotFound(
            f"Functions of the partition '{named.partition}' are not reachable in this partition ('{PARTITION}')"
        )
    if named.region != REGION:
        raise ResourceNotFound(f"Functions from '{named.region}' are not reachable in this region ('{REGION}')")
    if not named.is_local:
        raise AccessDenied(
            f"The function {named.name} of the account {named.account} is not accessible: this worker's ARNs begin with "
            f"{PREFIX}"
        )


def whole_function(segment: str, qualifier: str | None = None) -> str:
    """The name of a function, of an operation that is not for one version. Raises: as `function_named`."""
    named = function_named(segment, qualifier)
    if named.qualifier not in (None, LATEST):
        raise InvalidParameterValue(FUNCTIONS_ONLY)
    return named.name
