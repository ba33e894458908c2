"""Tables: rows under headings, in a terminal of any width.

POLICY: names and ids are shown whole, in one line. Where a terminal is too narrow, the columns that are named as optional are
left out, in that order; then the last column is wrapped within its own width. A pipe is given everything.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

from sockd.console.output import echo, say
from sockd.plain.printable import one_line

GAP = "  "
LEAST = 8
"""Of a column that is wrapped."""


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, optional: Sequence[str] = ()) -> None:
    """Rows under headings; headings that are all empty are not printed.

    Args: optional: headings of columns that a narrow terminal does without, the least important first."""
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
    """The table without the optional columns that do not fit, and their headings."""
    left_out: list[str] = []
    for heading in optional:
        if natural_width(table) <= width:
            break
        at = table[0].index(heading)
        table = [[*row[:at], *row[at + 1 :]] for row in table]
        left_out.append(heading)
    return table, left_out


def natural_width(table: Sequence[Sequence[str]]) -> int:
    """Columns of a terminal that the whole table takes."""
    widths = [max(map(cells, column)) for column in zip(*table, strict=True)]
    return sum(widths) + len(GAP) * (len(widths) - 1)


def lines(table: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """The table's lines. Args: width: of the terminal, in which the last column is wrapped; None: nothing is."""
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
    """Columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)
