"""The events of schedules, in the shape of EventBridge's.

Pure.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from sockd.base.errors import BadRequest
from sockd.base.function_arns import ACCOUNT, PARTITION, REGION
from sockd.events.schedules.schedule_expressions import as_aws
from sockd.events.schedules.schedule_table import Schedule


def check_event(event: bytes, limit: int) -> None:
    """Whether it can be the `detail` of events. Raises: BadRequest."""
    if len(event) > limit:
        raise BadRequest(f"the event has {len(event)} bytes; the limit is {limit}")
    try:
        event.decode()
        if event:
            msgspec.json.decode(event, type=msgspec.Raw)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        raise BadRequest("the event must be JSON") from None


def event_of(schedule: Schedule) -> bytes:
    """The event of a tick, as EventBridge would send it: `time` is when it was due, `detail` the schedule's own event."""
    fields: dict[str, Any] = {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": "Scheduled Event",
        "source": "aws.events",
        "account": ACCOUNT,
        "time": as_aws(schedule.next_at),
        "region": REGION,
        "resources": [f"arn:{PARTITION}:events:{REGION}:{ACCOUNT}:rule/{schedule.name}"],
        "detail": msgspec.Raw(schedule.event or b"{}"),
    }
    return msgspec.json.encode(fields)
