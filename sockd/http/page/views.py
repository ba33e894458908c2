"""The worker's data as values of templates: displayed strings, and geometry of charts.

Pure except for reading the worker. The numbers of functions and invocations are bounded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from sockd.base.request_ids import request_id_text
from sockd.base.spelling import size
from sockd.base.telemetry import COLD
from sockd.http.page import charts, words
from sockd.http.worker import Worker
from sockd.observe.failure_groups import FailureGroup
from sockd.observe.trace_spans import NO_FAILURES

Values = dict[str, Any]
MAX_FUNCTIONS = 100
MAX_FOUND = 500
MAX_INVOCATIONS = 20
MAX_COLD = 12
MAX_FAILED = 12
SPARK_HEIGHT, SPARK_STEP = 20, 5
PHASES = ("queue", "setup", "init", "exec")
CLOCK_NS = time.time_ns() - time.monotonic_ns()
"""From CLOCK_MONOTONIC to the time of day, the same for all pages: a moment that is shown does not wander."""


def glance(worker: Worker) -> Values:
    """The worker in a few numbers."""
    live = worker.numbers.live(MAX_FUNCTIONS)
    state, window_s = live["worker"], live["window_s"]
    count, cold, failed = state["count"], state["cold"], state["failed"]
    sandboxes = state["sandboxes"]
    reserved, total = state["memory_reserved_bytes"], state["memory_total_bytes"]
    return {
        "window": f"{window_s:.0f} s",
        "count": words.grouped(count),
        "rate": words.rate(count / window_s),
        "cold": words.percent(cold / count) if count else words.NOTHING,
        "cold_starts": words.grouped(cold),
        "failed": words.percent(failed / count) if count else words.NOTHING,
        "failures": words.grouped(failed),
        "busy": words.grouped(sandboxes["busy"]),
        "queued": state["queued"],
        "others": " · ".join(f"{words.grouped(sandboxes[kind])} {kind}" for kind in ("idle", "paused", "spare")),
        "reserved": size(reserved),
        "total": size(total),
        "memory": charts.stacked([("own", reserved, "")], total),
    }


def functions(worker: Worker) -> Values:
    """The table of functions: all, or the busiest."""
    live = worker.numbers.live(MAX_FUNCTIONS)
    count = live["worker"]["functions"]
    rows = {row["name"]: function_row(row) for row in live["functions"]}
    if count <= MAX_FUNCTIONS:
        for info in worker.functions.all():
            rows.setdefault(info.name, quiet_row(info.name, info.concurrency, info.state))
    return {
        "rows": [rows[name] for name in sorted(rows)],
        "count": words.many(count, "function"),
        "hidden": words.grouped(max(count - len(rows), 0)) if count > len(rows) else "",
        "window": f"{live['window_s']:.0f} s",
    }


def found_functions(worker: Worker, name: str) -> Values:
    """Functions whose names contain a text, whatever its case."""
    names = [info.name for info in worker.functions.all() if name.lower() in info.name.lower()]
    return {"wanted": name, "names": names[:MAX_FOUND], "hidden": max(len(names) - MAX_FOUND, 0)}


def function_row(row: Mapping[str, Any]) -> Values:
    """One function that had requests lately."""
    if not row["count"]:
        return quiet_row(row["name"], row["concurrency"]) | {"running": running(row)}
    return {
        "name": row["name"],
        "spark": spark(row["rates"]),
        "p50": words.ms(row["p50_ms"] * 1e6),
        "p99": words.ms(row["p99_ms"] * 1e6),
        "cold": words.percent(row["cold_share"]),
        "failed": words.grouped(row["failed"]),
        "is_failing": bool(row["failed"]),
        "count": words.grouped(row["count"]),
        "running": running(row),
    }


def quiet_row(name: str, concurrency: int, state: str = "ready") -> Values:
    """One that had none. Args: state: what it lacks, unless it can run."""
    numbers = dict.fromkeys(("p50", "p99", "cold", "failed"), words.NOTHING)
    now = running({"running": 0, "concurrency": concurrency, "queued": 0}) if state == "ready" else state
    return {"name": name, **numbers, "spark": [], "is_failing": False, "count": "0", "running": now}


def running(row: Mapping[str, Any]) -> str:
    """The requests of a function at this moment, and how many it serves at once."""
    waiting = f", {row['queued']} waiting" if row["queued"] else ""
    if not row["concurrency"]:
        return f"disabled, {row['running']} running" if row["running"] else "disabled"
    return f"{row['running']} of {row['concurrency']}{waiting}"


def spark(rates: Sequence[float]) -> list[charts.Column]:
    """A minute of rates as columns."""
    return charts.columns(rates, height=SPARK_HEIGHT, width=SPARK_STEP)


def caches(worker: Worker) -> Values:
    """The three tiers and the pool of networks, each with its share of hits since the worker started."""
    status = worker.numbers.status()
    counts, networks = status["caches"], status["networks"]
    handler, imports, install = counts["handler"], counts["import"], counts["install"]
    sandboxes = status["sandboxes"]
    tiers = [
        tier("Handler", [("hit", handler["hits"], "an idle sandbox"), ("miss", handler["misses"], "a new one")])
        | {
            "of": "requests found an idle sandbox",
            "now": f"{sandboxes['idle'] + sandboxes['paused']} kept, {status['evictions']} evicted",
        },
        tier(
            "Import",
            [
                ("hit", imports["full"], "all imported ahead"),
                ("part", imports["partial"], "some imported ahead"),
                ("miss", imports["missed"], "nothing imported ahead"),
            ],
        )
        | {
            "of": "cold starts with packages found all of them imported",
            "now": words.many(status["zygotes"], "Zygote")
            + f", {words.many(imports['unneeded'], 'cold start')} without packages",
        },
        tier("Install", [("hit", install["hits"], "installed"), ("miss", install["misses"], "fetched")])
        | {
            "of": "packages of deploys were installed already",
            "now": f"{words.many(status['packages'], 'package')} kept",
        },
        tier("Network", [("hit", networks["pool_hits"], "made ahead"), ("miss", networks["pool_misses"], "made then")])
        | {
            "of": "starts with a network of their own found it made ahead",
            "now": f"{networks['ready']} ready, {networks['in_use']} in use",
        },
    ]
    return {"tiers": tiers}


def tier(name: str, parts: Sequence[tuple[str, int, str]]) -> Values:
    """One cache; the first part is its hits."""
    total = sum(count for _, count, _ in parts)
    return {
        "name": name,
        "share": words.percent(parts[0][1] / total) if total else words.NOTHING,
        "total": words.grouped(total),
        "bar": charts.stacked(parts, total),
        "parts": [{"kind": kind, "count": words.grouped(count), "title": title} for kind, count, title in parts],
    }


def invocations(worker: Worker, function: str | None = None) -> Values:
    """The last requests, newest first."""
    rows = [invocation_row(trace) for trace in worker.traces.last(MAX_INVOCATIONS, function)]
    return {"rows": rows, "function": function}


def cold_starts(worker: Worker, function: str | None = None) -> Values:
    """The newest that were cold, of those that are remembered, newest first."""
    rows = [invocation_row(trace) for trace in worker.traces.last(MAX_COLD, function, "cold")]
    return {"rows": rows, "function": function, "most": MAX_COLD, "since": words.when(worker.numbers.started_s)}


def failures(worker: Worker, function: str | None = None) -> Values:
    """The groups of failures that failed last, newest first."""
    rows = [failure_group_row(group) for group in worker.traces.failure_groups(MAX_FAILED, function)]
    return {"rows": rows, "function": function, "since": words.when(worker.numbers.started_s)}


def failure_group_row(group: FailureGroup) -> Values:
    """Failures that have function, type and line in common."""
    first_s, last_s = unix_s(group.first_ns), unix_s(group.last_ns)
    return {
        "function": group.key.function,
        "error_type": group.key.error_type,
        "line": group.key.line,
        "count": words.grouped(group.count),
        "first": words.when(first_s),
        "first_stamp": words.stamp(first_s),
        "last": words.when(last_s),
        "last_stamp": words.stamp(last_s),
        "id": request_id_text(group.request_id),
        "message": words.first_line(group.message, 160),
    }


def invocation_row(trace: Mapping[str, Any]) -> Values:
    """One of them."""
    total = trace["answered_ns"] - trace["arrived_ns"]
    times = trace["times"]
    at_s = unix_s(trace["arrived_ns"])
    return {
        "id": trace["request_id"],
        "function": trace["function"],
        "clock": words.when(at_s),
        "stamp": words.stamp(at_s),
        "origin": trace["origin"],
        "is_cold": trace["origin"] in COLD,
        "total": words.ms(total),
        "bar": charts.stacked(
            [(phase, times[phase], f"{phase} {words.ms(times[phase])} ms") for phase in PHASES], total
        ),
        "spoken": ", ".join(f"{phase} {words.ms(times[phase])} ms" for phase in PHASES if times[phase]),
        "outcome": trace["outcome"][:120],
        "is_ok": trace["outcome"] in NO_FAILURES,
    }


def unix_s(monotonic_ns: int) -> float:
    """A moment of CLOCK_MONOTONIC as Unix time."""
    return (monotonic_ns + CLOCK_NS) / 1e9
