"""The page of one invocation: waterfall, critical path, and the reason of a cold start.

Pure: a trace of the worker (`sockd.observe.trace_spans`) in, values of the template out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sockd.http.page import charts, words
from sockd.http.page.views import Values, unix_s
from sockd.observe.trace_axis import extent, in_order
from sockd.observe.trace_spans import NO_FAILURES

MAX_SPANS = 80
KINDS = frozenset(("queue", "memory", "fork", "network", "prepare", "thaw", "setup", "init", "exec", "answer"))
COLD = {
    "spare": "A spare was available: it had been forked and confined in advance.",
    "zygote": "No spare was available: the sandbox was forked for this request.",
    "template": "The sandbox was forked from the version's snapshot, which had run its init.",
}
WARM = {
    "warm": "An idle sandbox served it.",
    "paused": "A paused sandbox served it: it was thawed.",
}


def trace_page(trace: Mapping[str, Any]) -> Values:
    """All values of the page."""
    total = trace["answered_ns"] - trace["arrived_ns"]
    at_s = unix_s(trace["arrived_ns"])
    return {
        "id": trace["request_id"],
        "function": trace["function"],
        "version": trace["version"],
        "sandbox": trace["sandbox"],
        "origin": trace["origin"],
        "is_cold": trace["origin"] in COLD,
        "outcome": trace["outcome"][:200],
        "is_ok": trace["outcome"] in NO_FAILURES,
        "total": words.ms(total),
        "clock": words.when(at_s),
        "stamp": words.stamp(at_s),
        "error": error(trace),
        "story": story(trace),
        "imported": [imported(each) for each in trace["imported"]],
        "initscript": initscript(trace),
        **waterfall(trace),
        **critical(trace, total),
    }


def error(trace: Mapping[str, Any]) -> str:
    """What it failed with, and where; empty: it did not fail."""
    if trace["outcome"] in NO_FAILURES:
        return ""
    stack = "".join(trace["stack"])
    return words.printable(f"{trace['outcome']}: {trace['error']}\n" + (f"\n{stack}" if stack else ""))


def story(trace: Mapping[str, Any]) -> list[str]:
    """Why it was cold or not, in sentences."""
    origin = trace["origin"]
    if origin not in COLD:
        return [WARM.get(origin, "")]
    if origin == "template":
        return [trace["why"], COLD[origin]]
    held = trace["zygote"]
    zygote = "the root Zygote, which has no packages" if held == "root Zygote" else f"the Zygote that holds {held}"
    modules = sum(each["modules"] for each in trace["imported"])
    spent = words.ms(sum(each["ns"] for each in trace["imported"]))
    imports = (
        f"It imported {words.many(modules, 'module')} of packages itself, in {spent} ms."
        if modules
        else "It imported no package: the Zygote had imported all that it needs."
    )
    passed_over = (
        f"A Zygote with more of its packages was passed over: {trace['passed_over']}." if trace["passed_over"] else ""
    )
    return [trace["why"], COLD[origin], f"It comes from {zygote}.", imports, *filter(None, [passed_over])]


def imported(each: Mapping[str, Any]) -> Values:
    """What it imported of one package."""
    name, _, version = each["package"].rpartition("-")[0].rpartition("-")
    return {
        "name": name or each["package"],
        "version": version,
        "modules": words.grouped(each["modules"]),
        "ms": words.ms(each["ns"]),
    }


def initscript(trace: Mapping[str, Any]) -> str:
    """What its initscript did, in a sentence; empty: it has none."""
    if trace["initscript"] is None:
        return ""
    fetched, hidden = trace["fetched_ns"], trace["hidden_ns"]
    if not fetched:
        return f"{trace['initscript']}; nothing was fetched before the answer."
    share = words.percent(hidden / fetched)
    used, of = trace["replies"]["used"], trace["replies"]["reads"]
    return (
        f"{trace['initscript']}; something was being fetched for {words.ms(fetched)} ms, and for {words.ms(hidden)} ms of "
        f"them ({share}) the function did not wait. {used} of {of} reads were served from it."
    )


def waterfall(trace: Mapping[str, Any]) -> Values:
    """Rows on one time axis."""
    start, end = extent(trace)
    spans = in_order(trace["spans"])
    rows: list[Values] = []
    for each in spans[:MAX_SPANS]:
        first, last = each["start_ns"] - start, each["end_ns"] - start
        rows.append(
            {
                "track": each["track"],
                "is_first": not rows or rows[-1]["track"] != each["track"],
                "name": each["name"],
                "detail": each["detail"],
                "start": words.ms(first),
                "ms": words.ms(last - first) if last > first else "·",
                "piece": charts.span(kind_of(each["name"], each["track"]), first, last, end - start),
            }
        )
    answer = charts.span("answered", trace["answered_ns"] - start, trace["answered_ns"] - start, end - start)
    return {
        "rows": rows,
        "more": max(len(spans) - MAX_SPANS, 0),
        "answer": answer,
        "axis": words.ms(end - start),
        "ticks": [{"x": tick.x, "ms": words.tick(tick.ns)} for tick in charts.ticks(end - start)],
    }


def kind_of(name: str, track: str = "") -> str:
    """The colour of a span or step: a word of this file, whatever a function called its error."""
    if track in ("initscript", "rpc", "reads"):
        return track
    word = name.partition(" ")[0]
    return "reads" if word == "read" else word if word in KINDS else "failed"


def critical(trace: Mapping[str, Any], total: int) -> Values:
    """What the answer waited for."""
    steps = [
        {
            "name": step["name"],
            "kind": kind_of(step["name"]),
            "ms": words.ms(step["ns"]),
            "share": words.percent(step["ns"] / total) if total else "",
        }
        for step in trace["critical"]
    ]
    parts = [(kind_of(step["name"]), step["ns"], step["name"]) for step in trace["critical"]]
    return {"steps": steps, "path": charts.stacked(parts, total)}
