"""Names of functions as AWS writes them: a name, or a partial or complete ARN, perhaps with a version or an alias.

Pure. A worker is one region of one account: the ARNs of its functions begin with `PREFIX`, also in their context objects. The
ARN of another region or account names another function than the local one of the same name.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PARTITION = "aws"
REGION = "local"
ACCOUNT = "000000000000"
PREFIX = f"arn:{PARTITION}:lambda:{REGION}:{ACCOUNT}:function:"
_NAME = re.compile(
    r"(?:arn:(?P<partition>aws[a-z-]*):lambda:(?P<region>[a-z0-9-]{1,32}):)?(?:(?P<account>[0-9]{12}):)?(?:function:)?"
    r"(?P<name>[A-Za-z0-9_-]{1,64})(?::(?P<qualifier>\$LATEST|[A-Za-z0-9_-]{1,128}))?"
)


class FunctionArn(NamedTuple):
    """The parts of a name; a part that the text leaves out is the worker's own."""

    partition: str
    region: str
    account: str
    name: str
    qualifier: str
    """$LATEST, a number or an alias; empty: none was given."""

    @property
    def is_local(self) -> bool:
        """Whether it names a function of a worker."""
        return (self.partition, self.region, self.account) == (PARTITION, REGION, ACCOUNT)


def parse(text: str) -> FunctionArn | None:
    """Return the parts of a name; None: the text names no function."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    own = {"partition": PARTITION, "region": REGION, "account": ACCOUNT, "qualifier": ""}
    return FunctionArn(**{key: value if value is not None else own[key] for key, value in found.groupdict().items()})


def arn(name: str, qualifier: str | None = None) -> str:
    """Return the ARN of a function, or of one version or alias of it."""
    return f"{PREFIX}{name}:{qualifier}" if qualifier else f"{PREFIX}{name}"
