"""What all commands share: failures with an exit status, JSON, tables, progress.

rich is imported only when a person looks at a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import click

FAILED, USAGE, NOT_FOUND, THROTTLED, TIMED_OUT, UNREACHABLE = 1, 2, 3, 4, 5, 69
_BY_STATUS = {404: NOT_FOUND, 429: THROTTLED, 504: TIMED_OUT}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Failure(click.ClickException):
    """What went wrong, why, and one command that helps; ends the program with `exit_code`."""

    exit_code: int  # type: ignore[misc]  # click's own pattern: read from the instance

    def __init__(self, what: str, *, why: str = "", fix: str = "", exit_code: int = FAILED) -> None:
        super().__init__(what)
        self.why = why
        self.fix = fix
        self.exit_code = exit_code

    def show(self, file: IO[Any] | None = None) -> None:
        click.secho("error: ", fg="red", bold=True, nl=False, err=True)
        click.echo(self.message, err=True)
        if self.why:
            click.echo(f"  why: {self.why}", err=True)
        if self.fix:
            click.echo(f"  fix: {self.fix}", err=True)


def exit_code_of(status: int) -> int:
    """The exit status that stands for an HTTP status."""
    return _BY_STATUS.get(status, FAILED)


def print_json(value: object) -> None:
    """One value, indented for people who look anyway."""
    click.echo(json.dumps(value, indent=2))


def say(text: str) -> None:
    """A message: not part of the result."""
    click.echo(text, err=True)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows under headings: lines that a terminal folds in their columns, or plain columns where nobody looks."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(headings))
        for number, heading in enumerate(headings, start=1):
            # Where the terminal is too narrow, names and the last column fold; numbers between them do not.
            table.add_column(heading, overflow="fold", no_wrap=1 < number < len(headings))
        for row in rows:
            table.add_row(*map(Text, row))
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows) if any(headings) else rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """Shows what is being done, on stderr: one living line on a terminal, else a line each."""
    if not sys.stderr.isatty():
        say(first)
        yield say
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(first)) as status:
        yield lambda text: status.update(escape(text))


def age(seconds: float) -> str:
    """A time ago, for people."""
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"
