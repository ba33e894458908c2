"""Tables: rows under headings, in a terminal of any width.

POLICY: names and ids are never shortened or wrapped. In a narrow terminal the optional columns are omitted, in their order; then
the last column is wrapped. A pipe gets all columns.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

from sockd.base.printable import one_line
from sockd.client.console.output import echo, say

GAP = "  "
LEAST = 8
"""The least width of a column that is wrapped."""


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, optional: Sequence[str] = ()) -> None:
    """Print rows under headings; without a line of headings if all are empty.

    Args: optional: headings of columns that a narrow terminal omits, the least important first."""
    table = [list(map(one_line, headings)), *(list(map(one_line, row)) for row in rows)]
    left_out: list[str] = []
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if width is not None:
        table, left_out = narrowed(table, width, optional)
    for number, line in enumerate(lines(table, width)):
        if number or any(headings):
            echo(line, **({} if number else {"bold": True}))
    if left_out:
        say(f"too narrow for: {', '.join(left_out)}")


def narrowed(table: list[list[str]], width: int, optional: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """The table without the optional columns that do not fit, and the omitted headings."""
    left_out: list[str] = []
    for heading in optional:
        if natural_width(table) <= width:
            break
        at = table[0].index(heading)
        table = [[*row[:at], *row[at + 1 :]] for row in table]
        left_out.append(heading)
    return table, left_out


def natural_width(table: Sequence[Sequence[str]]) -> int:
    """The table's width in terminal columns."""
    widths = [max(map(cells, column)) for column in zip(*table, strict=True)]
    return sum(widths) + len(GAP) * (len(widths) - 1)


def lines(table: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """The table's lines. Args: width: of the terminal, for wrapping the last column; None: no wrapping."""
    widths = [max(map(cells, column)) for column in zip(*table, strict=True)]
    before = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    last = widths[-1] if width is None else max(min(widths[-1], width - before), LEAST)
    made = []
    for *first, end in table:
        padded = [cell + " " * (column - cells(cell)) for cell, column in zip(first, widths, strict=False)]
        text, *more = [end] if cells(end) <= last else textwrap.wrap(end, last)
        made.append(GAP.join([*padded, text]).rstrip())
        made.extend(" " * before + text for text in more)
    return made


def cells(text: str) -> int:
    """A text's width in terminal columns."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)
