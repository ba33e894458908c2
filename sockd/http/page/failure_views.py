"""Failed invocations as the values of a template: each with its error, its traceback and what it printed.

Pure but for reading the worker. Bounded: a page has so many failures, and so many bytes of each one's log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from sockd.errors import NoSuchFunction, SockdError
from sockd.http.page import trace_view, words
from sockd.http.page.function_views import log_row
from sockd.http.page.views import Values, invocation_row
from sockd.http.page.worker import PageWorker

MAX_FAILURES = 50
MAX_LOG_BYTES = 8 << 10


async def failures_page(worker: PageWorker, function: str | None) -> Values:
    """The last failures of one function, or of all, the newest first."""
    summaries = worker.traces(MAX_FAILURES, function, "failed")
    traces = await asyncio.gather(*(described(worker, each["request_id"]) for each in summaries))
    return {
        "function": function,
        "failures": [failure_row(worker, trace) for trace in traces if trace is not None],
        "most": MAX_FAILURES,
    }


async def described(worker: PageWorker, request_id: str) -> Mapping[str, Any] | None:
    """A trace with its error; None: it was forgotten in the meantime."""
    try:
        return await worker.trace(request_id)
    except SockdError:
        return None


def failure_row(worker: PageWorker, trace: Mapping[str, Any]) -> Values:
    """One failure."""
    return {
        **invocation_row(trace),
        "message": words.first_line(trace["error"], 160),
        "error": trace_view.error(trace),
        "log": log_of(worker, trace["function"], trace["request_id"]),
    }


def log_of(worker: PageWorker, function: str, request_id: str) -> str:
    """What an invocation printed, as far as it is in memory; empty: nothing."""
    with contextlib.suppress(NoSuchFunction):  # removed since
        records = worker.logs(function, request_id=request_id, limit=1)
        return "".join(log_row(record, MAX_LOG_BYTES)["text"] for record in records)
    return ""
