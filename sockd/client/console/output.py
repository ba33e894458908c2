"""Output of all commands: failures with an exit status, text, JSON, progress, bytes.

Functions, packages and registries choose parts of what is printed, so every text is made `printable` here, and no other file
of the command line prints, but for `tables` and `terminal` (tests/client/cli/test_output.py). rich is imported only when a person
looks at a terminal. With NO_COLOR in the environment nothing is styled, on any stream.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import click

from sockd.base.own_command import runnable
from sockd.base.printable import one_line, printable

if TYPE_CHECKING:
    from rich.console import Console

FAILED, USAGE, NOT_FOUND, THROTTLED, TIMED_OUT, UNREACHABLE, INTERRUPTED = 1, 2, 3, 4, 5, 69, 130
EXIT_CODES = {
    0: "done",
    FAILED: "the function or the command failed",
    USAGE: "wrong usage: an invalid option, argument or file",
    NOT_FOUND: "not found: a function, version, schedule, event, request, package or benchmark",
    THROTTLED: "the function is throttled",
    TIMED_OUT: "the function timed out",
    UNREACHABLE: "no worker answers, or this user may not use it",
    INTERRUPTED: "Ctrl-C, unless it is the normal end of the command",
}
"""The meaning of each exit status, in all commands (docs/reference/cli.md)."""
_BY_STATUS = {404: NOT_FOUND, 429: THROTTLED, 504: TIMED_OUT}
_WANTS_JSON = "sockd.json"
_HOW_FAR = re.compile(r": \d+( of \d+)? MB$")


def _note_json(ctx: click.Context, parameter: click.Parameter, value: bool) -> bool:
    if value:
        ctx.meta[_WANTS_JSON] = True
    return value


json_option = click.option(
    "--json", "as_json", is_flag=True, is_eager=True, callback=_note_json, help="Print JSON, including errors."
)


def wants_json(ctx: click.Context) -> bool:
    """Whether the current command prints JSON."""
    return bool(ctx.meta.get(_WANTS_JSON))


class Failure(click.ClickException):
    """An error, its reason, and a command that fixes it; ends the program with `exit_code`."""

    exit_code: int  # type: ignore[misc]  # click's own pattern: read from the instance

    def __init__(self, what: str, *, why: str = "", fix: str = "", exit_code: int = FAILED, kind: str = "") -> None:
        """Args: kind: the worker's name of the error, for programs; people do not see it."""
        super().__init__(what)
        self.why = why
        self.kind = kind
        self.fix = runnable(fix)
        self.exit_code = exit_code

    def show(self, file: IO[Any] | None = None) -> None:
        echo("error: ", fg="red", bold=True, nl=False, err=True)
        # What follows the first line is set off, or a stranger's text could have a "fix:" of its own.
        echo(self.message.replace("\n", "\n    "), err=True)
        for word, text in (("why", self.why), ("fix", self.fix)):
            if text:
                echo(f"  {word}: " + text.replace("\n", "\n    "), err=True)


class JsonFailure(click.ClickException):
    """Print an error as one JSON object on stderr, with the fields of a `Failure` for every kind of error."""

    exit_code: int  # type: ignore[misc]  # as above

    def __init__(self, error: click.ClickException) -> None:
        super().__init__(error.format_message())
        self.exit_code = error.exit_code
        self._why = getattr(error, "why", "") or getattr(error, "kind", "")
        self._fix = getattr(error, "fix", "")

    def show(self, file: IO[Any] | None = None) -> None:
        fields = {"error": self.message, "why": self._why, "fix": self._fix, "exit_code": self.exit_code}
        click.echo(_json(fields, None), err=True)


def exit_code_of(status: int) -> int:
    """The exit status for an HTTP status."""
    return _BY_STATUS.get(status, FAILED)


def is_plain() -> bool:
    """Whether output must not be styled (https://no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def echo(text: str = "", *, nl: bool = True, err: bool = False, **style: Any) -> None:
    """Print a text, made safe for terminals. Args: err: to stderr; style: as in click."""
    text = printable(text)
    _put(click.style(text, **style) if style and not is_plain() else text, nl=nl, err=err)


def echo_lines(lines: Iterable[str]) -> None:
    """Print each text as one line."""
    for line in lines:
        _put(one_line(line))


def console(*, stderr: bool = False) -> Console:
    """A rich console, without styles if they are disabled."""
    from rich.console import Console

    return Console(stderr=stderr, color_system=None if is_plain() else "auto")


def echo_styled(rows: Iterable[tuple[str, str]]) -> None:
    """Print lines with rich's styles, cropped to the terminal."""
    from rich.text import Text

    screen = console()
    for text, style in rows:
        screen.print(Text(one_line(text), style=style), overflow="crop", no_wrap=True)


def write_result(data: bytes, decoder: codecs.IncrementalDecoder | None = None, *, final: bool = False) -> None:
    """Write a function's bytes: unchanged to a pipe, made printable for a terminal.

    Args: decoder: for a streamed answer; final: after its last piece."""
    if sys.stdout.isatty():
        text = data.decode(errors="replace") if decoder is None else decoder.decode(data, final)
        _put(printable(text), nl=False)
        return
    with _failing_if_full():
        sys.stdout.buffer.write(data)
        sys.stdout.flush()


def _put(text: str, *, nl: bool = True, err: bool = False) -> None:
    with _failing_if_full():
        click.echo(text, nl=nl, err=err)


@contextmanager
def _failing_if_full() -> Iterator[None]:
    """Raises: Failure if a write fails, except when the reader has closed the pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure("the output cannot be written", why=error.strerror or str(error)) from None


def print_json(value: object, *, indent: int | None = 2) -> None:
    """Print one value, indented. ASCII JSON contains no control characters."""
    _put(_json(value, indent))


def _json(value: object, indent: int | None) -> str:
    return json.dumps(value, indent=indent).replace("\x7f", "\\u007f")


def say(text: str) -> None:
    """Print a message that is not part of the result."""
    echo(text, err=True)


def suggest(text: str, command: str) -> None:
    """Print a message with a command."""
    say(f"{text}: {runnable(command)}")


def show_uncaught(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    """`sys.excepthook` of the command line: an unexpected error may also quote untrusted text."""
    say("".join(traceback.format_exception(kind, error, frames)).rstrip())


@contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """Progress on stderr: one updated line on a terminal, otherwise one line per step.

    How far a step is ("writing: 3 of 40 MB") is shown on a terminal only."""
    if not sys.stderr.isatty():
        last = ""

        def step(text: str) -> None:
            nonlocal last
            if (stage := _HOW_FAR.sub("", text)) != last:
                last = stage
                say(stage)

        step(first)
        yield step
        return
    from rich.text import Text

    screen = console(stderr=True)

    def line(text: str) -> Text:
        shown = Text(one_line(text))
        shown.truncate(
            max(screen.width - 3, 1), overflow="ellipsis"
        )  # next to the spinner: a longer one becomes several lines
        return shown

    with screen.status(line(first)) as status:
        yield lambda text: status.update(line(text))


def age(seconds: float) -> str:
    """The time since a moment, as text."""
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"
