"""The record of an event that is over, as AWS Lambda sends it to destinations.

Pure. Payloads are put in as they are if they are JSON, as text if not; nothing is made of them here.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec

from sockd.base.function_arns import arn
from sockd.events.event import Event

LATEST = "$LATEST"


def record(
    event: Event,
    payload: bytes,
    *,
    condition: str,
    now: float,
    version: str = "",
    answer: bytes | None = None,
    is_error: bool = False,
) -> bytes:
    """JSON.

    Args:
        now: Unix time.
        version: what ran; empty: nothing has.
        answer: JSON, what the function answered, or its error.
        is_error: the answer is an error's."""
    fields: dict[str, Any] = {
        "version": "1.0",
        "timestamp": timestamp(now),
        "requestContext": {
            "requestId": str(uuid.UUID(bytes=event.id)),
            "functionArn": arn(event.function, event.qualifier or LATEST),
            "condition": condition,
            "approximateInvokeCount": event.attempts,
        },
        "requestPayload": embedded(payload),
    }
    if answer is not None:
        context: dict[str, Any] = {"statusCode": 200, "executedVersion": version or LATEST}
        if is_error:
            context["functionError"] = "Unhandled"
        fields["responseContext"] = context
        fields["responsePayload"] = embedded(answer)
    return msgspec.json.encode(fields)


def embedded(content: bytes) -> msgspec.Raw | str | None:
    """Bytes as a part of JSON: as they are, if they are JSON themselves."""
    if not content:
        return None
    try:
        content.decode()  # what follows does not look into strings
        return msgspec.json.decode(content, type=msgspec.Raw)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return content.decode("utf-8", "backslashreplace")


def timestamp(now: float) -> str:
    """Unix time as AWS writes it."""
    seconds, milliseconds = divmod(int(now * 1000), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{milliseconds:03}Z"
