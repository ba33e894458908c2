"""A service as the values of templates: what its program does now. Pure but for reading the worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sockd.base.spelling import size, span
from sockd.http.page import words
from sockd.http.page.views import Values
from sockd.http.worker import Worker

KINDS = {"running": "", "waiting": "bad"}
REASON_CHARS = 500


def row_of(worker: Worker, name: str) -> Mapping[str, Any] | None:
    """Return what `sockd ps` shows of a service; None: the function is none."""
    return next((row for row in worker.numbers.services() if row["name"] == name), None)


def service(worker: Worker, name: str) -> Values:
    """What its program does now. Times are whole seconds, so that a page changes once a second at most."""
    row = row_of(worker, name)
    if row is None:
        return {"state": "removed", "kind": "bad"}
    runs = bool(row["sandbox"])
    draining = f", {row['draining']} of an older version" if row["draining"] else ""
    again = f"; again in {span(row['retry_in_s'])}" if row["retry_in_s"] else ""
    reason = row["port_reason"] or row["reason"]
    return {
        "state": row["state"],
        "kind": KINDS.get(row["state"], ""),
        "runs": runs,
        "up": f"for {span(row['up_s'])}" if runs else "its first request starts it",
        "start": f"started in {words.ms(row['start_s'] * 1e9)} ms" if runs else "",
        "connections": words.grouped(row["connections"]),
        "open": f"open now{draining}",
        "memory": size(row["memory_bytes"]) if runs else words.NOTHING,
        "port": str(row["port"]),
        "published": f"at port {row['published']} of the host" if row["published"] else "at /run alone",
        "starts": words.grouped(row["starts"]),
        "failures": words.many(row["failures"], "failure"),
        "reason": words.first_line(words.printable(reason), REASON_CHARS) + again if reason else "",
    }
