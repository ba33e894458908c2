"""What the worker does at this moment, for `sockd top` and the page: a line for the worker, a row per busy function.

Owns nothing and changes nothing. Bounded: only the busiest functions have a row, however many there are.
"""

from __future__ import annotations

import time
from typing import Any

from sockd.observe.recent import WINDOW_NS, Recent
from sockd.worker.for_apis.status_views import sandbox_counts
from sockd.worker.worker import Worker


def live(worker: Worker, recent: Recent, limit: int) -> dict[str, Any]:
    """As `Numbers.live` of the APIs' worker."""
    now_ns = time.monotonic_ns()
    names = [*recent.busiest(limit, now_ns)]
    # Those that wait or run and have not answered yet are busy, too.
    names += [name for name in worker.functions.live.allowances.active() if name not in names][: limit - len(names)]
    rows = [row for name in names if (row := _row(worker, recent, name, now_ns)) is not None]
    budget, total = worker.budget, recent.total(now_ns)
    return {
        "window_s": WINDOW_NS / 1e9,
        "worker": {
            "functions": len(worker.functions.live.names()),
            "rate": recent.rate(now_ns),
            "count": total.requests,
            "cold": total.cold,
            "failed": total.failed,
            "sandboxes": sandbox_counts(worker),
            "queued": worker.functions.live.allowances.waiting(),
            "zygotes": len(worker.tree.nodes),
            "memory_reserved_bytes": budget.used,
            "memory_total_bytes": budget.total,
            "evictions": worker.handlers.evictions,
        },
        "functions": rows,
    }


def _row(worker: Worker, recent: Recent, name: str, now_ns: int) -> dict[str, Any] | None:
    """One function; None, if it was removed this minute, or cannot run."""
    function = worker.functions.live.by_name.get(name)
    if function is None:
        return None
    version, admission = function.version, worker.functions.live.allowances.admission(name)
    lately = recent.of(name, now_ns)
    idle, held_bytes = worker.handlers.held(version.program)
    return {
        "name": name,
        "rate": lately.rate,
        "rates": lately.rates,
        "p50_ms": lately.p50_ns / 1e6,
        "p99_ms": lately.p99_ns / 1e6,
        "count": lately.count,
        "cold_share": lately.cold_share,
        "failed": lately.failed,
        "running": admission.running,
        "concurrency": admission.concurrency,
        "queued": admission.waiting,
        "idle": idle,
        "memory_bytes": held_bytes + admission.running * version.program.limits.memory_bytes,
    }
