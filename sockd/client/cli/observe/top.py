"""`sockd top`: the busiest functions, their latency and sandboxes, live."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from sockd.base.spelling import size
from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.members import Answered, Members
from sockd.client.console.output import echo_lines, json_option, print_json
from sockd.client.console.terminal import watch
from sockd.client.console.times import short_ms

PLAIN_WIDTH = 120
MIN_NAME = 8
BARS = " ▁▂▃▄▅▆▇█"

Live = dict[str, Any]


class Column(NamedTuple):
    """One column of the table. Of those that do not fit, the one with the highest `rank` goes first."""

    heading: str
    width: int
    rank: int
    cells: dict[str, str]


@click.command()
@click.option("-n", "--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Most functions.")
@click.option("--interval", type=click.FloatRange(0.2, 3600), default=1.0, show_default=True, help="Seconds.")
@state_dir_option
@json_option
def top(limit: int, interval: float, state_dir: Path, as_json: bool) -> None:
    """Show the busiest functions: rates and latencies of the last minute, running, waiting and idle sandboxes. In a group, those
    of all workers.

    Updates until Ctrl-C; prints once with --json or without a terminal. took: from a request's arrival to its answer."""
    members = Members.of(Management(state_dir))

    query = {"limit": str(limit)}

    def drawn(width: int) -> list[str]:
        silent: list[str] = []
        return screen(members.get("live", query=query, note=silent.append), silent, width, limit)

    if as_json:
        answers = members.get("live", query=query)
        print_json(dict(answers) if members.are_several else answers[0].answer)
    elif sys.stdout.isatty():
        watch(drawn, interval)
    else:
        echo_lines(drawn(shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns))


def screen(answers: Sequence[Answered], silent: Sequence[str], width: int, limit: int) -> list[str]:
    """The screen of one worker, or of a group: a line for each worker, then the functions with their workers.

    Args: silent: words about workers that do not answer; limit: the most functions."""
    if not answers[0].worker:
        return lines(answers[0].answer, width)
    rows = [{**row, "name": f"{row['name']} on {worker}"} for worker, live in answers for row in live["functions"]]
    rows.sort(key=lambda row: row["rate"], reverse=True)
    longest = max(len(worker) for worker, _ in answers)
    heads = [f"{worker:<{longest}}  {'  '.join(worker_lines(live['worker']))}" for worker, live in answers]
    return [line[:width].rstrip() for line in (*heads, *silent, "", *table_lines(rows[:limit], width))]


def lines(live: Live, width: int) -> list[str]:
    """The screen of one worker: two lines for the worker, headings, a line for each function."""
    return [
        line[:width].rstrip() for line in (*worker_lines(live["worker"]), "", *table_lines(live["functions"], width))
    ]


def table_lines(functions: list[dict[str, Any]], width: int) -> list[str]:
    """The table: headings, a line for each function."""
    names = [function["name"] for function in functions]
    longest = max([*map(len, names), MIN_NAME])
    least = min(longest, max(width // 4, MIN_NAME))
    columns = fitting(columns_of(functions), width - least)
    taken = sum(column.width + 2 for column in columns)
    name_width = max(min(longest, width - taken), least)
    table = ["  ".join([f"{'function':<{name_width}}", *(f"{column.heading:>{column.width}}" for column in columns)])]
    for name in names:
        shown = name if len(name) <= name_width else f"{name[: name_width - 1]}…"
        cells = [f"{column.cells[name]:>{column.width}}" for column in columns]
        table.append("  ".join([f"{shown:<{name_width}}", *cells]))
    return table if names else ["no invocation in the last minute"]


def worker_lines(worker: dict[str, Any]) -> list[str]:
    """The worker in two lines."""
    sandboxes = worker["sandboxes"]
    states = ", ".join(
        f"{sandboxes[state]} {state}" for state in ("busy", "idle", "paused", "spare") if state in sandboxes
    )
    return [
        f"{worker['rate']:.1f}/s  {worker['queued']} queued  sandboxes: {states}",
        f"memory {size(worker['memory_reserved_bytes'])} of {size(worker['memory_total_bytes'])}  "
        f"{worker['zygotes']} Zygotes  {worker['functions']} functions  {worker['evictions']} evictions",
    ]


def columns_of(functions: Sequence[dict[str, Any]]) -> list[Column]:
    """All columns but the name."""

    def column(heading: str, width: int, rank: int, cell: Any) -> Column:
        cells = {function["name"]: str(cell(function)) for function in functions}
        return Column(heading, max([width, *map(len, cells.values())]), rank, cells)

    return [
        column("rate", 7, 0, lambda each: f"{each['rate']:.1f}/s"),
        column("p50", 6, 1, lambda each: short_ms(each["p50_ms"])),
        column("p99", 6, 2, lambda each: short_ms(each["p99_ms"])),
        column("errors", 6, 3, lambda each: each["failed"] or "-"),
        column("cold", 5, 4, lambda each: f"{100 * each['cold_share']:.0f} %"),
        column("running", 7, 5, lambda each: f"{each['running']}/{each['concurrency']}"),
        column("queued", 6, 6, lambda each: each["queued"] or "-"),
        column("idle", 4, 8, lambda each: each["idle"]),
        column("memory", 6, 7, lambda each: size(each["memory_bytes"])),
        column("last minute", 12, 9, lambda each: sparkline(each["rates"])),
    ]


def fitting(columns: list[Column], width: int) -> list[Column]:
    """As many columns as fit, in their order."""
    chosen = sorted(columns, key=lambda column: column.rank)
    while chosen and sum(column.width + 2 for column in chosen) > width:
        chosen.pop()
    return [column for column in columns if column in chosen]


def sparkline(rates: Sequence[float]) -> str:
    """Rates as a little drawing; the highest is full."""
    most = max(rates, default=0) or 1
    return "".join(BARS[-(-int(rate * 1000) * (len(BARS) - 1) // int(most * 1000 + 1))] for rate in rates)
