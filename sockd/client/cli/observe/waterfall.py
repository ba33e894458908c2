"""The waterfall of a trace: rows on one time axis, its summary, and the format of Chrome's tracing page.

Pure: a trace of the management API in (`sockd.observe.trace_spans`), text and plain data out. The caller that prints it chooses
the colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sockd.observe.trace_axis import extent, in_order

MAX_ROWS = 60
"""Rows of a drawing; `--json` has all spans."""
NAME_WIDTH = 36
LEAST_AXIS = 20
LEAST_NAME = 12
STYLES = {"daemon": "blue", "sandbox": "green", "initscript": "magenta", "rpc": "yellow", "reads": "cyan"}
"""The styles of the tracks."""

Trace = Mapping[str, Any]


class Row(NamedTuple):
    """One line of the drawing."""

    style: str
    text: str


def draw(trace: Trace, width: int) -> list[Row]:
    """The waterfall in lines of at most `width` columns, if these suffice."""
    start, end = extent(trace)
    spans = in_order(trace["spans"])
    names = max(min(NAME_WIDTH, width - 27 - LEAST_AXIS), LEAST_NAME)
    axis = max(width - names - 26, LEAST_AXIS)
    answer = column(trace["answered_ns"], start, end, axis)
    rows = [Row("bold", f"{'':{names + 13}}0{ms(end - start):>{axis - 1}} ms")]
    track = ""
    for span in spans[:MAX_ROWS]:
        label = span["track"] if span["track"] != track else ""
        track = span["track"]
        bar = bar_of(span, start, end, axis, answer)
        took = f"{ms(span['end_ns'] - span['start_ns']):>8} ms" if span["end_ns"] > span["start_ns"] else f"{'':11}"
        name = f"{label:<11}{shorten(span['name'], names)}"
        rows.append(Row(STYLES.get(track, ""), f"{name:<{names + 13}}{bar} {took}  {span['detail']}".rstrip()))
    if len(spans) > MAX_ROWS:
        rows.append(Row("dim", f"... and {len(spans) - MAX_ROWS} spans more: sockd trace {trace['request_id']} --json"))
    return rows


def words(trace: Trace) -> list[str]:
    """What the drawing means, in a line each: how long, what was hidden, what the answer waited for."""
    total = trace["answered_ns"] - trace["arrived_ns"]
    lines = [
        f"{trace['function']} version {trace['version']}, {trace['origin']}, {trace['sandbox']}: "
        f"{trace['outcome']} after {ms(total)} ms"
    ]
    if trace["initscript"] is not None:
        lines.append(f"initscript: {trace['initscript']}" + hidden_words(trace) + replies_words(trace["replies"]))
        lines += [f"  {line}" for line in trace["log"].splitlines()]
    if trace["passed_over"]:
        lines.append(f"a Zygote with more of its packages was passed over: {trace['passed_over']}")
    path = " > ".join(f"{step['name']} {ms(step['ns'])}" for step in trace["critical"])
    return [*lines, f"critical path (ms): {path}"]


def hidden_words(trace: Trace) -> str:
    """The share of the fetch time during which the function did not wait, whatever it used then."""
    fetched, hidden = trace["fetched_ns"], trace["hidden_ns"]
    if not fetched:
        return ", nothing fetched before the answer"
    share = round(100 * hidden / fetched)
    return f", fetched for {ms(fetched)} ms, of which {ms(hidden)} ms ({share} %) were hidden"


def replies_words(replies: Mapping[str, int]) -> str:
    """The use of the replies; the rows of the reads say why each other was not served."""
    return f"; sent {replies['sent']} messages, served {replies['used']} of {replies['reads']} reads"


def bar_of(span: Mapping[str, Any], start: int, end: int, axis: int, answer: int) -> str:
    """One span on the axis; a moment is a dot, and where the answer went out there is a line."""
    first, last = (column(span[key], start, end, axis) for key in ("start_ns", "end_ns"))
    cells = ["│" if place == answer else " " for place in range(axis)]
    cells[first : last + 1] = "█" * (last - first + 1) if span["end_ns"] > span["start_ns"] else "●"
    return "".join(cells)


def column(at_ns: int, start: int, end: int, axis: int) -> int:
    """The column of a time."""
    return min(max((at_ns - start) * axis // (end - start), 0), axis - 1)


def ms(ns: int) -> str:
    """A duration as text."""
    return f"{ns / 1e6:.2f}" if ns < 100_000_000 else f"{ns / 1e6:.0f}"


def shorten(text: str, width: int) -> str:
    """Shorten a text to its beginning and end."""
    if len(text) <= width:
        return text
    return f"{text[: width // 2 - 1]}…{text[-(width - width // 2) :]}"


def chrome(trace: Trace) -> dict[str, Any]:
    """The trace as chrome://tracing, Perfetto and speedscope read it: complete events, in µs from the request on.

    What overlaps on one track (RPCs do) is put on several threads, as a thread's events must nest."""
    start = trace["arrived_ns"]
    threads: dict[str, int] = {}
    events: list[dict[str, Any]] = []
    for span, lane in in_lanes(in_order(trace["spans"])):
        name = span["track"] if lane == 0 else f"{span['track']} {lane + 1}"
        thread = threads.setdefault(name, len(threads) + 1)
        events.append(
            {
                "ph": "X",
                "name": span["name"],
                "cat": span["track"],
                "ts": (span["start_ns"] - start) / 1e3,
                "dur": (span["end_ns"] - span["start_ns"]) / 1e3,
                "pid": 1,
                "tid": thread,
                "args": {"detail": span["detail"]},
            }
        )
    heads = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": {"name": name}}
        for name, thread in threads.items()
    ]
    process = {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": f"sockd: {trace['function']}"}}
    facts = {key: value for key, value in trace.items() if isinstance(value, str | int | None)}
    return {"traceEvents": [process, *heads, *events], "displayTimeUnit": "ms", "otherData": facts}


def in_lanes(spans: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], int]]:
    """Each span with a lane of its track in which it overlaps no other."""
    ends: dict[str, list[int]] = {}
    placed = []
    for span in spans:
        lanes = ends.setdefault(span["track"], [])
        lane = next((number for number, end in enumerate(lanes) if end <= span["start_ns"]), len(lanes))
        lanes[lane : lane + 1] = [span["end_ns"]]
        placed.append((span, lane))
    return placed
