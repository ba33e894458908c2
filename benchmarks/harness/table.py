"""A result on a terminal: one table of rows, one of aims, the notes. With rich where it is installed, else in plain text."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.harness.results import Aim, Published, Result, Row

ROW_HEADINGS = ("case", "metric", "unit", "p50", "p99", "n")
AIM_HEADINGS = ("aim", "wanted", "measured", "")
PAPER_HEADINGS = ("where", "what", "unit", "paper", "ours", "whole request")


def print_result(result: Result) -> None:
    """Print the whole result to stdout."""
    machine = result.machine
    title = (
        f"{result.name} on Linux {machine['kernel']}, {machine['cpus']} x {machine['cpu']}, load {machine['load_1m']}"
    )
    print_table(title, ROW_HEADINGS, [row_cells(row) for row in result.rows])
    if result.published:
        print_table("beside the paper", PAPER_HEADINGS, [paper_cells(each) for each in result.published])
    if result.aims:
        print_table("aims", AIM_HEADINGS, [aim_cells(aim) for aim in result.aims])
    for note in result.notes:
        print(f"note: {note}")


def row_cells(row: Row) -> tuple[str, ...]:
    tail = "" if row.p99 is None else number(row.p99)
    return row.case, row.metric, row.unit, number(row.p50), tail, str(row.n)


def aim_cells(aim: Aim) -> tuple[str, ...]:
    return aim.name, aim.aim, number(aim.value), "holds" if aim.holds else "MISSED"


def paper_cells(each: Published) -> tuple[str, ...]:
    ours = each.why if each.ours is None else number(each.ours)
    request = "" if each.request is None else number(each.request)
    return each.where, each.subject, each.unit, each.paper, ours, request


def number(value: float) -> str:
    """Three significant digits, never in exponent notation."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}" if abs(value) >= 1 else f"{value:.3f}"


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print one table; cells that look like numbers are aligned right."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        print(plain_table(title, headings, rows))
        return
    table = Table()
    for column, heading in enumerate(headings):
        numeric = all(looks_numeric(row[column]) for row in rows)
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row, style="red" if "MISSED" in row else None)
    width = None if sys.stdout.isatty() else 120
    console = Console(markup=False, highlight=False, width=width)
    console.print(title)
    console.print(table)


def plain_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as text, columns two spaces apart."""
    lines = [tuple(headings), *map(tuple, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([title, *text])


def looks_numeric(cell: str) -> bool:
    return not cell or cell.lstrip("-").replace(",", "").replace(".", "", 1).isdigit()
