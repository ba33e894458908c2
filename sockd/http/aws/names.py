"""Function identifiers of this API: a name, a name with a qualifier, a partial or complete ARN.

Pure. Account and region of an ARN are ignored. ARNs in answers have the account and region that functions see in their
context.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from sockd.http.aws.errors import InvalidParameterValue, ValidationFailed
from sockd.registry.aliases import LATEST

ARN_PREFIX = "arn:aws:lambda:local:000000000000:function:"
FUNCTIONS_ONLY = (
    "This operation is permitted on Lambda functions only. Aliases and versions do not support this operation. Please "
    "specify either a function name or an unqualified function ARN."
)
_NAME = re.compile(
    r"(?:arn:aws[a-z-]*:lambda:[a-z0-9-]{1,32}:)?(?:[0-9]{12}:)?(?:function:)?"
    r"(?P<name>[A-Za-z0-9_-]{1,64})(?::(?P<qualifier>\$LATEST|[A-Za-z0-9_-]{1,128}))?"
)
_QUALIFIER = re.compile(r"\$LATEST|[A-Za-z0-9_-]{1,128}")


def arn(name: str, qualifier: str | None = None) -> str:
    """The ARN of a function, or of one version or alias of it."""
    return f"{ARN_PREFIX}{name}:{qualifier}" if qualifier else f"{ARN_PREFIX}{name}"


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
    Raises: ValidationFailed, InvalidParameterValue."""
    text = unquote(segment)
    found = _NAME.fullmatch(text)
    if found is None:
        raise ValidationFailed(
            text, "functionName", "Member must satisfy regular expression pattern: [a-zA-Z0-9-_]{1,64}"
        )
    if qualifier is not None and not _QUALIFIER.fullmatch(qualifier):
        raise ValidationFailed(
            qualifier, "qualifier", r"Member must satisfy regular expression pattern: \$LATEST|[a-zA-Z0-9-_]+"
        )
    own = found["qualifier"]
    if own and qualifier and own != qualifier:
        raise InvalidParameterValue(
            "The derived qualifier from the function name does not match the specified qualifier."
        )
    return Named(found["name"], own or qualifier)


def whole_function(segment: str, qualifier: str | None = None) -> str:
    """The name of a function, of an operation that is not for one version. Raises: as `function_named`."""
    named = function_named(segment, qualifier)
    if named.qualifier not in (None, LATEST):
        raise InvalidParameterValue(FUNCTIONS_ONLY)
    return named.name
