"""One function as the values of templates: its last minute, settings, versions, URLs, imports, dead letters, the end of its log.

Pure but for reading the worker. Bounded: a page has so many rows, and so many bytes of a log, whatever was printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sockd.base.spelling import network, size
from sockd.base.telemetry import LogRecord
from sockd.http.page import words
from sockd.http.page.event_views import event_row, schedule_row
from sockd.http.page.sources import PageSources
from sockd.http.page.views import Values, spark
from sockd.http.worker import Worker
from sockd.observe.recent import SLOT_NS, SLOTS

MAX_RECORDS = 30
MAX_RECORD_BYTES = 4 << 10
MAX_LOG_BYTES = 32 << 10
MAX_ROWS = 20
"""The most rows of each table: versions, deploys, schedules and dead letters."""
MAX_PACKAGES = 100


def recent_rates(worker: Worker, name: str) -> Values:
    """One function's last minute. Raises: NoSuchFunction, by which an open page learns that the function was removed."""
    worker.functions.info(name)
    seen = worker.numbers.recent_rates(name)
    share = seen.failed / seen.count if seen.count else 0.0
    seconds = SLOT_NS * SLOTS // 10**9
    return {
        "count": words.grouped(seen.count),
        "rate": words.rate(seen.count / seconds),
        "columns": spark(seen.rates),
        "window": f"{seconds} s",
        "p50": words.ms(seen.p50_ns) if seen.count else words.NOTHING,
        "p99": words.ms(seen.p99_ns) if seen.count else words.NOTHING,
        "cold": words.percent(seen.cold_share) if seen.count else words.NOTHING,
        "failed": words.percent(share) if seen.count else words.NOTHING,
        "cold_starts": words.grouped(round(seen.cold_share * seen.count)),
        "failures": words.grouped(seen.failed),
    }


def facts(worker: Worker, name: str) -> Values:
    """What a function is. Raises: NoSuchFunction."""
    info = worker.functions.info(name)
    return {
        "name": info.name,
        "version": f"{info.version_number} ({info.version[:12]})",
        "handler": f"image {info.image[:80]}" if info.image else info.handler,
        "limits": f"{info.memory_mb} MB, {info.timeout_s:g} s, {info.concurrency} at once",
        "network": network(info.network, info.egress, has_private=info.has_private),
        "code": size(info.code_bytes),
        "initscript": info.initscript[:12],
        "deployed": words.day(info.updated_at),
        "deployed_stamp": words.stamp(info.updated_at),
        "packages": info.packages,
        "state": "" if info.state == "ready" else info.state,
        "state_reason": info.state_reason,
    }


def registered(sources: PageSources, name: str) -> Values:
    """Its versions, aliases, URLs and schedules. Raises: NoSuchFunction."""
    found = sources.versions(name)
    schedules = sources.schedules(name)
    return {
        "versions": [version_row(each, found) for each in reversed(found["versions"][-MAX_ROWS:])],
        "deploys": [deploy_row(each) for each in found["deploys"][:MAX_ROWS]],
        "aliases": [alias_row(each) for each in found["aliases"][:MAX_ROWS]],
        "provisioned": [provision_row(each) for each in found["provisioned"][:MAX_ROWS]],
        "urls": [each._asdict() for each in sources.urls(name)[:MAX_ROWS]],
        "schedules": [schedule_row(each) for each in schedules[:MAX_ROWS]],
    }


async def dead_letters(sources: PageSources, name: str) -> list[Values]:
    """A function's newest dead letters."""
    return [event_row(each) for each in await sources.dead_letters(name, MAX_ROWS)]


def version_row(version: Mapping[str, Any], found: Mapping[str, Any]) -> Values:
    """One published version."""
    number = version["version"]
    return {
        "number": str(number),
        "deploy": str(version["deploy"]),
        "code": version["digest"][:12],
        "published": words.day(version["published_at"]),
        "description": version["description"],
        "aliases": ", ".join(each["alias"] for each in found["aliases"] if leads_to(each, str(number))),
    }


def leads_to(alias: Mapping[str, Any], number: str) -> bool:
    return alias["version"] == number or number in alias["canary"]


def deploy_row(deploy: Mapping[str, Any]) -> Values:
    """One deploy."""
    return {
        "deploy": str(deploy["deploy"]),
        "code": deploy["digest"][:12],
        "deployed": words.day(deploy["deployed_at"]),
    }


def alias_row(alias: Mapping[str, Any]) -> Values:
    """Which versions an alias leads to, and how its canary does, or what became of it."""
    canary = "".join(f", {words.percent(share)} to version {number}" for number, share in alias["canary"].items())
    limit = f"; {alias['outcome']}" if alias["outcome"] else ""
    if (guard := alias["guard"]) is not None:
        limit = f"; {guard['failed']} of its last {guard['requests']} requests failed, {words.percent(guard['most_errors'])} may"
    return {"alias": alias["alias"], "leads": f"version {alias['version']}{canary}{limit}"}


def provision_row(provision: Mapping[str, Any]) -> Values:
    """Initialized sandboxes that are kept for a version or an alias."""
    return {
        "qualifier": provision["qualifier"],
        "kept": f"{provision['available']} of {provision['wanted']} initialized sandboxes",
        "reason": provision["reason"],
    }


def imports(worker: Worker, name: str) -> Values:
    """What importing its packages costs, and which of them a Zygote has imported. Raises: NoSuchFunction."""
    found = worker.packages.imports(name)
    packages = found["packages"]
    return {
        "imports": [import_row(each) for each in packages[:MAX_PACKAGES]],
        "more_imports": max(len(packages) - MAX_PACKAGES, 0),
        "seen": found["seen"],
        "sharing": found["sharing"],
        "passed_over": [
            {"zygote": ", ".join(each["packages"]), "reason": each["reason"]}
            for each in found["passed_over"]
            if each["reason"] not in found["sharing"]
        ],
    }


def import_row(package: Mapping[str, Any]) -> Values:
    """One package: whether its import is spared, and if not, why."""
    name, _, version = package["package"].partition("==")
    return {
        "name": name,
        "version": version,
        "ms": words.ms(package["ms"] * 1e6),
        "in_zygote": package["in_zygote"],
        "ahead_ms": words.ms(package["ahead_ms"] * 1e6) if package["ahead_ms"] else "",
        "refused": package["refused"] or "",
    }


def log(worker: Worker, name: str, request_id: str | None = None) -> Values:
    """What a function printed, newest first, or one request of it. Raises: NoSuchFunction."""
    records = worker.logs.tail(name, request_id=request_id, limit=MAX_RECORDS)
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
        "clock": words.when(record.time_s),
        "stamp": words.stamp(record.time_s),
        "text": words.log_text(record.text, limit),
        "dropped": size(record.dropped_bytes) if record.dropped_bytes else "",
    }
