"""Failed invocations as the values of a template: each with its error, its traceback and what it printed.

Pure but for reading the worker. Bounded: a page has so many failures, and so many bytes of each one's log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from sockd.http.page import trace_view, words
from sockd.http.page.function_views import log_row
from sockd.http.page.views import Values, invocation_row
from sockd.http.page.worker import PageWorker
from sockd.plain.errors import NoSuchFunction
from sockd.plain.telemetry import LogRecord

MAX_FAILURES = 50
MAX_LOG_BYTES = 8 << 10
MAX_RECORDS = 500
"""Of each function; the log of an older failure is on the page of its trace."""


def failures_page(worker: PageWorker, function: str | None) -> Values:
    """The last failures of one function, or of all, the newest first."""
    traces = worker.traces(MAX_FAILURES, function, "failed")
    logs = {name: newest_logs(worker, name) for name in {trace["function"] for trace in traces}}
    return {
        "function": function,
        "failures": [failure_row(trace, logs[trace["function"]].get(trace["request_id"])) for trace in traces],
        "most": MAX_FAILURES,
    }


def failure_row(trace: Mapping[str, Any], record: LogRecord | None) -> Values:
    """One failure. Args: record: what it printed, if that is among the newest logs."""
    return {
        **invocation_row(trace),
        "message": words.first_line(trace["error"], 160),
        "error": trace_view.error(trace),
        "log": log_row(record, MAX_LOG_BYTES)["text"] if record is not None else "",
    }


def newest_logs(worker: PageWorker, function: str) -> Mapping[str, LogRecord]:
    """The newest logs of a function by request id, in one pass: a search for each failure would look through all logs."""
    with contextlib.suppress(NoSuchFunction):  # removed since
        return {record.request_id: record for record in worker.logs(function, request_id=None, limit=MAX_RECORDS)}
    return {}


def log_of(worker: PageWorker, function: str, request_id: str) -> str:
    """What an invocation printed, as far as it is in memory; empty: nothing."""
    with contextlib.suppress(NoSuchFunction):  # removed since
        records = worker.logs(function, request_id=request_id, limit=1)
        return "".join(log_row(record, MAX_LOG_BYTES)["text"] for record in records)
    return ""
