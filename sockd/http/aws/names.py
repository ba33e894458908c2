"""What functions are called in this API: a name, a name with a qualifier, a partial or a whole ARN.

Pure. Account and region of an ARN are not looked at: there is one worker, and the ARNs that it tells have the account
and the region that functions see in their context.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from sockd.http.aws.errors import InvalidParameterValue, ResourceNotFound, ValidationFailed

ARN_PREFIX = "arn:aws:lambda:local:000000000000:function:"
LATEST = "$LATEST"
_NAME = re.compile(
    r"(?:arn:aws[a-z-]*:lambda:[a-z0-9-]{1,32}:)?(?:[0-9]{12}:)?(?:function:)?"
    r"(?P<name>[A-Za-z0-9_-]{1,64})(?::(?P<qualifier>\$LATEST|[A-Za-z0-9_-]{1,128}))?"
)
_QUALIFIER = re.compile(r"\$LATEST|[A-Za-z0-9_-]{1,128}")


def arn(name: str) -> str:
    """The ARN of a function, without a version."""
    return f"{ARN_PREFIX}{name}"


def function_named(segment: str, qualifier: str | None = None) -> tuple[str, bool]:
    """The function that a part of a path names, and whether with the qualifier $LATEST.

    Args:
        segment: percent-encoded.
        qualifier: the parameter of the query.
    Raises: ValidationFailed, InvalidParameterValue, ResourceNotFound: there is no other version than $LATEST."""
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
    wanted = own or qualifier
    if wanted not in (None, LATEST):
        raise ResourceNotFound(f"Function not found: {arn(found['name'])}:{wanted}")
    return found["name"], wanted is not None
