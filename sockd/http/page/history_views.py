"""The last hour as values of templates: charts, and a table by minute.

Pure but for reading the worker.
"""

from __future__ import annotations

from collections.abc import Sequence

from sockd.http.page import charts, words
from sockd.http.page.views import Values
from sockd.http.worker import Worker
from sockd.observe.history import MINUTE_S, Minute

HEIGHT, STEP = 36, 6
NONE = Minute(0, 0, 0, 0, 0)
Hour = Sequence[tuple[int, Minute | None]]


def history(worker: Worker, function: str | None = None) -> Values:
    """The hour of a function, or of the worker, in three charts."""
    hour = worker.numbers.history(function)
    minutes = [minute or NONE for _, minute in hour]
    return {
        "function": function,
        "since": words.clock(hour[0][0])[:5],
        "until": words.clock(hour[-1][0] + MINUTE_S)[:5],
        "charts": [requests_chart(minutes), cold_chart(minutes), latency_chart(minutes)]
        if any(each.count for each in minutes)
        else [],
        "width": STEP * len(minutes),
        "height": HEIGHT,
    }


def requests_chart(minutes: Sequence[Minute]) -> Values:
    """Requests, and those of them that failed."""
    counts, failed = [each.count for each in minutes], [each.failed for each in minutes]
    total = f"{words.many(sum(counts), 'request')}, {words.grouped(sum(failed))} failed"
    note = f"{total}; at most {words.grouped(max(counts))} a minute"
    return chart("Requests", note, [("exec", counts), ("failed", failed)])


def cold_chart(minutes: Sequence[Minute]) -> Values:
    """Requests that were cold."""
    cold = [each.cold for each in minutes]
    return chart(
        "Cold starts", f"{words.grouped(sum(cold))}; at most {words.grouped(max(cold))} a minute", [("setup", cold)]
    )


def latency_chart(minutes: Sequence[Minute]) -> Values:
    """The 99th percentile of each minute, and the median in it."""
    p99, p50 = [each.p99_ns for each in minutes], [each.p50_ns for each in minutes]
    note = f"at most {words.ms(max(p99))} ms, the median {words.ms(max(p50))} ms"
    return chart("p99 and p50", note, [("shared", p99), ("setup", p50)])


def chart(title: str, note: str, series: Sequence[tuple[str, Sequence[int]]]) -> Values:
    """One chart; the first series is the highest, the others stand in front of it."""
    most = max(series[0][1])
    paths = [
        {"kind": kind, "d": charts.column_path(values, most, height=HEIGHT, width=STEP)}
        for kind, values in series
        if most
    ]
    return {"title": title, "note": note, "paths": paths}


def history_page(worker: Worker, function: str | None) -> Values:
    """The hour by minute, the newest first; minutes without requests are left out."""
    hour = worker.numbers.history(function)
    rows = [minute_row(at_s, minute) for at_s, minute in reversed(hour) if minute is not None]
    return {**history(worker, function), "rows": rows}


def minute_row(at_s: int, minute: Minute) -> Values:
    """One minute."""
    return {
        "clock": words.clock(at_s)[:5],
        "stamp": words.stamp(at_s),
        "count": words.grouped(minute.count),
        "failed": words.grouped(minute.failed),
        "cold": words.grouped(minute.cold),
        "p50": words.ms(minute.p50_ns),
        "p99": words.ms(minute.p99_ns),
        "is_failing": bool(minute.failed),
    }
