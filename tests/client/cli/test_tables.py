"""Tables and whatever else is printed, in terminals of 80 columns and with NO_COLOR."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sockd.client.cli.functions import functions
from sockd.client.cli.functions.schedule import moment
from sockd.client.console import tables
from tests.client.cli.pty_process import Terminal
from tests.client.cli.serving import Served

ID = "0a1b2c3d-0000-4000-8000-000000000000"
LONG = "a-function-whose-name-is-as-long-as-the-names-of-functions-may-be"[:64]
ESCAPE = b"\x1b["


@contextmanager
def shown(served: Served, *arguments: str, **environment: str) -> Iterator[Terminal]:
    """What a command shows in a terminal of 80 columns."""
    command = [sys.executable, "-m", "sockd", *arguments]
    known = {**served.environment(), "PYTHONUNBUFFERED": "1", **environment}
    known = {key: value for key, value in known.items() if value}
    terminal = Terminal(command, known, columns=80)
    try:
        yield terminal
    finally:
        terminal.close()


def test_names_are_whole_at_80_columns_and_what_matters_least_is_left_out() -> None:
    rows = [(LONG, "1", "handler:handler", "128 MB", "3 s", "10", "host", "1", "120 B", "1000 d ago")]
    table, left_out = tables.narrowed([list(functions.HEADINGS), *map(list, rows)], 80, functions.OPTIONAL)
    lines = tables.lines(table, 80)
    assert lines[1].startswith(f"{LONG} ") and all(len(line) <= 80 for line in lines)
    assert left_out[0] == "code" and "v" not in left_out
    assert tables.narrowed([["name", "code"], ["f", "1 B"]], 80, ("code",)) == ([["name", "code"], ["f", "1 B"]], [])


def test_only_the_last_column_is_wrapped_and_a_pipe_is_given_everything() -> None:
    table = [["id", "why"], [ID, "word " * 30]]
    lines = tables.lines(table, 80)
    assert lines[1].startswith(ID) and len(lines) > 3 and all(len(line) <= 80 for line in lines)
    assert all(line.startswith(" " * len(ID)) for line in lines[2:])
    assert len(tables.lines(table, None)) == 2
    assert tables.cells("\u4e2d\u0301a") == 3


def test_functions_are_listed_by_whole_names_in_a_narrow_terminal(served: Served) -> None:
    served.worker.names.add(LONG)
    try:
        with shown(served, "ls") as terminal:
            text = terminal.wait_for(b"too narrow for").decode()
    finally:
        served.worker.names.remove(LONG)
    assert [line for line in text.splitlines() if line.startswith(f"{LONG} ")]
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("arguments", [("trace",), ("events", "ls"), ("logs", "echo"), ("trace", "0a1b")])
def test_request_ids_are_never_folded(served: Served, arguments: tuple[str, ...]) -> None:
    with shown(served, *arguments) as terminal:
        terminal.process.wait(15)
        terminal.interrupt()
        text = terminal.shown.decode()
    ids = [word for word in text.split() if word.count("-") == 4]
    assert all(len(each) == 36 for each in ids), text
    assert ids or arguments != ("trace",)


def test_the_id_of_a_timing_line_comes_first(served: Served) -> None:
    with shown(served, "invoke", "echo") as terminal:
        text = terminal.wait_for(b"exec").decode()
    assert text.splitlines()[-1].split()[0].count("-") == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ("rm", "unknown"),
        ("ls",),
        ("tree",),
        ("logs", "echo"),
        ("logs", "unknown"),
        ("doctor",),
        ("trace",),
        ("trace", "0a1b"),
        ("packages", "add", "numpy"),
        ("invoke", "raises"),
    ],
    ids=" ".join,
)
def test_no_color_is_heeded_by_every_stream(served: Served, arguments: tuple[str, ...]) -> None:
    with shown(served, *arguments, NO_COLOR="1") as terminal:
        terminal.process.wait(30)
        terminal.interrupt()
        styles = [
            piece for piece in terminal.shown.split(ESCAPE)[1:] if piece.split(b"m")[0].replace(b";", b"").isdigit()
        ]
    assert terminal.shown and not styles


def test_colours_are_there_without_it(served: Served) -> None:
    with shown(served, "rm", "unknown", NO_COLOR="") as terminal:
        assert b"\x1b[31m" in terminal.wait_for(b"error")


def test_a_schedule_tells_its_own_time_zone() -> None:
    assert moment(1_800_000_000, "Europe/Berlin") == "2027-01-15 09:00:00 CET"
    assert moment(1_800_000_000, "UTC") == "2027-01-15 08:00:00 UTC"
    assert moment(1_800_000_000, "No/Such") == "2027-01-15 08:00:00 UTC"
    assert moment(0, "UTC") == "never"


def test_the_ids_of_a_list_of_traces_fit_next_to_a_long_name() -> None:
    row = [ID, LONG, "zygote", "1.0 ms", "exit", "ok"]
    headings = ["request id", "function", "origin", "took", "initscript", "outcome"]
    table, left_out = tables.narrowed([headings, row], 80, ("initscript", "origin", "took"))
    assert table[1][0] == ID and left_out == ["initscript", "origin", "took"]
