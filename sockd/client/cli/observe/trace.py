"""`sockd trace`: the last invocations, or the waterfall of one."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from sockd.client.cli.observe.waterfall import chrome, draw, ms, words
from sockd.client.cli.written_file import WrittenFile
from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.members import Members
from sockd.client.console.output import (
    NOT_FOUND,
    Failure,
    echo,
    echo_lines,
    echo_styled,
    json_option,
    print_json,
    say,
)
from sockd.client.console.tables import print_table

PLAIN_WIDTH = 120


@click.command()
@click.argument("request_id", metavar="[ID]", required=False)
@click.option("--chrome", "chrome_file", type=WrittenFile(), help="Write a Chrome trace.")
@click.option("-n", "--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many to list.")
@click.option("--slowest", is_flag=True, help="List the slowest stored invocations instead of the newest.")
@click.option("--cold", "kind", flag_value="cold", help="List only cold starts.")
@click.option("--failed", "kind", flag_value="failed", help="List only failures.")
@click.option("--slow", "kind", flag_value="slow", help="List only invocations of [traces] slow_ms or longer.")
@click.option("--function", metavar="NAME", default="", help="List only invocations of this function.")
@state_dir_option
@json_option
def trace(
    request_id: str | None,
    chrome_file: Path | None,
    limit: int,
    slowest: bool,
    kind: str | None,
    function: str,
    state_dir: Path,
    as_json: bool,
) -> None:
    """Show the waterfall of an invocation. In a group, of one on any worker.

    ID is its x-amzn-RequestId, or a beginning of it, or `last`; without one the last invocations are listed. The file of
    --chrome opens in chrome://tracing or ui.perfetto.dev."""
    management = Management(state_dir)
    members = Members.of(management)
    if request_id is None and chrome_file is None:
        order = "slowest" if slowest else "newest"
        query = {"limit": str(limit), "order": order, "kind": kind or "any", "function": function}
        found = members.rows("traces", query=query)
        if members.are_several:
            found.sort(key=took_ns if slowest else ended_s, reverse=True)
        if function and not found:
            management.check_function(function)
        show_list(found[:limit], as_json)
        return
    if request_id in (None, "last"):
        request_id = last_id(members)
    assert request_id is not None
    shown = one_trace(members, request_id)
    if chrome_file is not None:
        try:
            chrome_file.write_text(json.dumps(chrome(shown), indent=1))
        except OSError as error:
            raise Failure(f"{chrome_file} cannot be written", why=error.strerror or str(error)) from None
        say(f"written: {chrome_file}")
    if as_json:
        print_json(shown)
    elif chrome_file is None or sys.stdout.isatty():
        show(shown)


def show(trace: dict[str, Any]) -> None:
    """The waterfall, and what it means."""
    if sys.stdout.isatty():
        echo_styled((row.text, row.style) for row in draw(trace, shutil.get_terminal_size().columns))
    else:
        echo_lines(row.text for row in draw(trace, shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns))
    echo()
    echo_lines(words(trace))
    if trace.get("error"):
        echo()
        echo_lines(error_lines(trace))


def error_lines(trace: dict[str, Any]) -> list[str]:
    """What it failed with, as its log has it."""
    lines = f"[ERROR] {trace['outcome']}: {trace['error']}".splitlines()
    if not trace["stack"]:
        return lines
    return [*lines, "Traceback (most recent call last):", *"".join(trace["stack"]).splitlines()]


def show_list(traces: list[dict[str, Any]], as_json: bool) -> None:
    """A line for each."""
    if as_json:
        print_json(traces)
        return
    rows = [
        [
            each["request_id"],
            *([each["worker"]] if "worker" in each else []),
            each["function"],
            each["origin"],
            f"{ms(took_ns(each))} ms",
            each["initscript"] or "",
            each["outcome"],
        ]
        for each in traces
    ]
    worker = ["worker"] if traces and "worker" in traces[0] else []
    headings = ["request id", *worker, "function", "origin", "took", "initscript", "outcome"]
    print_table(headings, rows, optional=("initscript", "origin", "took"))


def took_ns(trace: dict[str, Any]) -> int:
    """Return the time from the request to its answer."""
    took: int = trace["answered_ns"] - trace["arrived_ns"]
    return took


def ended_s(trace: dict[str, Any]) -> float:
    """Return when an invocation of a list ended, as Unix time."""
    ended: float = trace.get("answered_s", 0.0)  # an older worker elsewhere does not say
    return ended


def last_id(members: Members) -> str:
    """Return the id of the newest invocation. Raises: Failure."""
    newest = members.rows("traces", query={"limit": "1"})
    if not newest:
        raise Failure("no invocation yet", fix="sockd invoke NAME", exit_code=NOT_FOUND)
    request_id: str = max(newest, key=ended_s)["request_id"]
    return request_id


def one_trace(members: Members, request_id: str) -> dict[str, Any]:
    """Return an invocation from the worker that has it. Raises: Failure: no worker has, or several have one that begins so."""
    found = members.get("traces", request_id)
    if len(found) > 1:
        workers = ", ".join(worker for worker, _ in found)
        raise Failure(
            f"invocations on {workers} begin with {request_id}", fix=f"sockd trace {found[0].answer['request_id']}"
        )
    (worker, trace), *_ = found
    return {**trace, "worker": worker} if worker else dict(trace)
