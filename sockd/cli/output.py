"""What all commands share: failures with an exit status, and the one way to the terminal: text, JSON, tables, progress, bytes.

Functions, packages and registries choose parts of what is printed, so every text is made `printable` here, and no other file
of the command line prints (tests/cli/test_output.py). rich is imported only when a person looks at a terminal.
"""

from __future__ import annotations

import codecs
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any

import click

from sockd.printable import one_line, printable

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
        echo("error: ", fg="red", bold=True, nl=False, err=True)
        # What follows the first line is set off, or a stranger's text could have a "fix:" of its own.
        echo(self.message.replace("\n", "\n    "), err=True)
        for word, text in (("why", self.why), ("fix", self.fix)):
            if text:
                echo(f"  {word}: " + text.replace("\n", "\n    "), err=True)


def exit_code_of(status: int) -> int:
    """The exit status that stands for an HTTP status."""
    return _BY_STATUS.get(status, FAILED)


def echo(text: str = "", *, nl: bool = True, err: bool = False, **style: Any) -> None:
    """A text, as terminals may have it. Args: err: to stderr; style: as click's."""
    click.secho(printable(text), nl=nl, err=err, **style)


def echo_lines(lines: Iterable[str]) -> None:
    """Texts that are a line each, whatever is in them."""
    for line in lines:
        click.echo(one_line(line))


def echo_styled(rows: Iterable[tuple[str, str]]) -> None:
    """Lines with the styles that rich has for them, cropped to the terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for text, style in rows:
        console.print(Text(one_line(text), style=style), overflow="crop", no_wrap=True)


def write_result(data: bytes, decoder: codecs.IncrementalDecoder | None = None, *, final: bool = False) -> None:
    """A function's bytes: as they are for a program that reads them, printable for a person at a terminal.

    Args: decoder: of an answer that comes in pieces; final: after the last of them."""
    if sys.stdout.isatty():
        text = data.decode(errors="replace") if decoder is None else decoder.decode(data, final)
        click.echo(printable(text), nl=False)
    else:
        sys.stdout.buffer.write(data)
    sys.stdout.flush()


def print_rich(shown: Any) -> None:
    """What only rich can lay out. Its texts are printable already."""
    from rich.console import Console

    Console().print(shown)


def print_json(value: object, *, indent: int | None = 2) -> None:
    """One value, indented for people who look anyway. (JSON of ASCII holds no character that a terminal obeys.)"""
    click.echo(json.dumps(value, indent=indent).replace("\x7f", "\\u007f"))


def say(text: str) -> None:
    """A message: not part of the result."""
    echo(text, err=True)


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
            table.add_row(*(Text(one_line(cell)) for cell in row))
        Console().print(table)
        return
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows) if any(headings) else rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def show_uncaught(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    """`sys.excepthook` of the command line: an error that nobody foresaw may quote a stranger, too."""
    say("".join(traceback.format_exception(kind, error, frames)).rstrip())


@contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """Shows what is being done, on stderr: one living line on a terminal, else a line each."""
    if not sys.stderr.isatty():
        say(first)
        yield say
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(one_line(first))) as status:
        yield lambda text: status.update(escape(one_line(text)))


def age(seconds: float) -> str:
    """A time ago, for people."""
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"
