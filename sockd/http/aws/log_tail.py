"""LogResult: the end of what a request printed, between the lines that AWS puts around it, as text or as JSON. Pure."""

from __future__ import annotations

import base64
import json
import math
import time
from typing import Any

from sockd.base.errors import TimedOut
from sockd.http.worker_values import InvocationResult
from sockd.observe.failure_log import moment

LOG_TAIL_BYTES = 4096


def log_tail(result: InvocationResult, request_id: str) -> str:
    """The last bytes of it, in base64."""
    log = result.log if not result.log or result.log.endswith(b"\n") else result.log + b"\n"
    first, last = _as_json(result, request_id) if result.json_log_level else _as_text(result, request_id)
    return base64.b64encode((first.encode() + log + last.encode())[-LOG_TAIL_BYTES:]).decode()


def _as_text(result: InvocationResult, request_id: str) -> tuple[str, str]:
    """What comes before the log, and behind it: SeBS's parser, among others, reads REPORT."""
    times = result.invocation.times
    duration_ms = times.exec / 1e6
    report = (
        f"REPORT RequestId: {request_id}\tDuration: {duration_ms:.2f} ms\tBilled Duration: {math.ceil(duration_ms)} ms\t"
        f"Memory Size: {result.memory_mb} MB\tMax Memory Used: {_used_mb(result)} MB\t"
    )
    if result.invocation.cold:
        report += f"Init Duration: {times.init / 1e6:.2f} ms\t"
    start = f"START RequestId: {request_id} Version: {result.invocation.version}\n"
    return start, f"END RequestId: {request_id}\n{report}\n"


def _as_json(result: InvocationResult, request_id: str) -> tuple[str, str]:
    """The same as platform events; with the level warn only the report of a failure."""
    if result.json_log_level == "warn" and result.failure is None:
        return "", ""
    times = result.invocation.times
    duration_ms = times.exec / 1e6
    metrics = {
        "durationMs": round(duration_ms, 3),
        "billedDurationMs": math.ceil(duration_ms),
        "memorySizeMB": result.memory_mb,
        "maxMemoryUsedMB": _used_mb(result),
    }
    if result.invocation.cold:
        metrics["initDurationMs"] = round(times.init / 1e6, 3)
    status = "success" if result.failure is None else "timeout" if isinstance(result.failure, TimedOut) else "error"
    report = _event("platform.report", {"requestId": request_id, "metrics": metrics, "status": status})
    if result.json_log_level == "warn":
        return "", report
    return _event("platform.start", {"requestId": request_id, "version": result.invocation.version}), report


def _event(kind: str, record: dict[str, Any]) -> str:
    return json.dumps({"time": moment(time.time()), "type": kind, "record": record}) + "\n"


def _used_mb(result: InvocationResult) -> int:
    # Not known only where it could not be read; then it is no more than the limit.
    return math.ceil(result.peak_bytes / 2**20) if result.peak_bytes else result.memory_mb
