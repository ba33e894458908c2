"""One function as the values of templates: its last minute, its settings, the tail of its log.

Pure but for reading the worker. Bounded: a page has so many bytes of a log, whatever was printed.
"""

from __future__ import annotations

from sockd.http.page import words
from sockd.http.page.views import Values, spark
from sockd.http.page.worker import PageWorker
from sockd.lambdas.recent import SLOT_NS, SLOTS
from sockd.spelling import size
from sockd.telemetry import LogRecord

MAX_RECORDS = 30
MAX_RECORD_BYTES = 4 << 10
MAX_LOG_BYTES = 32 << 10


def lately(worker: PageWorker, name: str) -> Values:
    """One function's last minute."""
    seen = worker.lately(name)
    share = seen.failed / seen.count if seen.count else 0.0
    seconds = SLOT_NS * SLOTS // 10**9
    return {
        "rate": words.rate(seen.rate) if seen.count else "0",
        "count": words.many(seen.count, "request"),
        "columns": spark(seen.rates),
        "window": f"{seconds} s",
        "p50": words.ms(seen.p50_ns) if seen.count else words.NOTHING,
        "p99": words.ms(seen.p99_ns) if seen.count else words.NOTHING,
        "cold": words.percent(seen.cold_share) if seen.count else words.NOTHING,
        "failed": words.percent(share) if seen.count else words.NOTHING,
        "failures": words.grouped(seen.failed),
    }


def facts(worker: PageWorker, name: str) -> Values:
    """What a function is. Raises: NoSuchFunction."""
    info = worker.function(name)
    return {
        "name": info.name,
        "version": f"{info.version_number} ({info.version[:12]})",
        "handler": info.handler,
        "limits": f"{info.memory_mb} MB, {info.timeout_s:g} s, {info.concurrency} at once",
        "network": info.network,
        "code": size(info.code_bytes),
        "initscript": info.initscript[:12],
        "deployed": words.day(info.updated_at),
        "deployed_stamp": words.stamp(info.updated_at),
        "packages": info.packages,
    }


def log(worker: PageWorker, name: str, request_id: str | None = None) -> Values:
    """What a function printed, newest first, or one request of it. Raises: NoSuchFunction."""
    records = worker.logs(name, request_id=request_id, limit=MAX_RECORDS)
    kept: list[Values] = []
    left = MAX_LOG_BYTES
    for record in reversed(records):
        if left <= 0:
            break
        kept.append(log_row(record, min(left, MAX_RECORD_BYTES if request_id is None else MAX_LOG_BYTES)))
        left -= len(record.text)
    return {"rows": kept, "name": name, "request_id": request_id}


def log_row(record: LogRecord, limit: int) -> Values:
    """One record. Args: limit: most bytes of its text."""
    return {
        "id": record.request_id,
        "clock": words.clock(record.time_s),
        "stamp": words.stamp(record.time_s),
        "text": words.log_text(record.text, limit),
        "dropped": size(record.dropped_bytes) if record.dropped_bytes else "",
    }
