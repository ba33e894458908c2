"""Disabling a function, as AWS does it: a reserved concurrency of 0, and back to the concurrency that it had.

Pure. The former concurrency is that of the newest remembered deploy that had one, so it needs no setting of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from sockd.functions.code.function_config import AwsAttributes, FunctionConfig


def changes_to_disable(config: FunctionConfig) -> dict[str, Any]:
    """What to change for all requests to be refused."""
    return {"concurrency": 0, "aws": _with_reserved(config, 0)}


def changes_to_enable(config: FunctionConfig, former: Iterable[FunctionConfig], default: int) -> dict[str, Any]:
    """What to change for requests to be served again.

    Args: former: of the remembered deploys, newest first; default: the concurrency if none of them has one."""
    last = next((each for each in former if each.concurrency), None)
    if last is None:
        return {"concurrency": default, "aws": _with_reserved(config, None)}
    return {
        "concurrency": last.concurrency,
        "aws": _with_reserved(config, (last.aws or AwsAttributes()).reserved_concurrency),
    }


def _with_reserved(config: FunctionConfig, reserved: int | None) -> dict[str, Any] | None:
    aws = msgspec.structs.replace(config.aws or AwsAttributes(), reserved_concurrency=reserved)
    return msgspec.to_builtins(aws) if aws != AwsAttributes() else None
