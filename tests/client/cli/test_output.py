"""The one way to the terminal: what it escapes, and that no command goes around it."""

from __future__ import annotations

import ast
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sockd.client.cli
from sockd.base.log_format import TIMED_LAYOUT, PrintableFormatter
from sockd.base.own_command import own_command
from sockd.base.printable import one_line, printable
from sockd.client.console import output, tables

LAYER = {"output.py", "terminal.py"}
CALLS = {"print", "click.echo", "click.secho", "click.echo_via_pager", "sys.stdout.write", "sys.stderr.write"}
EVIL = "\x1b[2J\x9b2J\x07\u202eab\u2066\u2028\udcff\n  fix: rm -rf ~"


@pytest.mark.parametrize(
    "path", sorted(Path(str(sockd.client.cli.__file__)).parent.glob("*.py")), ids=lambda path: path.name
)
def test_only_the_output_layer_prints(path: Path) -> None:
    if path.name in LAYER:
        return
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in CALLS:
            found.append(f"{node.lineno}: {ast.unparse(node.func)}")
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.stdout.buffer", "sys.stderr.buffer"):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
        if isinstance(node, ast.ImportFrom) and node.module in ("rich.console", "rich.live"):
            found.append(f"{node.lineno}: {node.module}")
    assert not found, f"{path.name} prints by itself; use sockd.client.console.output: {found}"


def test_what_terminals_obey_is_escaped_and_the_rest_stays() -> None:
    assert printable("é ü\t中\n") == "é ü\t中\n"
    every = "".join(
        map(chr, [*range(0x20), *range(0x7F, 0xA0), 0x061C, *range(0x200E, 0x2010), *range(0x2028, 0x202F)])
    )
    assert not set(printable(every)) & set(every) - {"\t", "\n"}
    assert printable("a\udcff") == "a\\udcff"
    assert one_line("a\r\nb\r") == "a\\nb\\x0d"


def test_each_way_of_printing_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    output.echo(EVIL)
    output.echo(EVIL, fg="red")
    output.say(EVIL)
    output.echo_lines([EVIL])
    output.echo_styled([(EVIL, "bold")])
    output.print_json({EVIL: EVIL})
    tables.print_table(["a"], [[EVIL]])
    with output.progress(EVIL) as show:
        show(EVIL)
    output.Failure(EVIL, why=EVIL, fix=EVIL).show()
    output.show_uncaught(ValueError, ValueError(EVIL), None)
    reported = capsys.readouterr()
    for text in (reported.out, reported.err):
        assert "\\x1b[2J" in text or "\\u001b[2J" in text
        assert not set(text) & set("\x1b\x9b\x07\u202e\u2066\u2028\udcff")


def test_a_failure_has_one_fix_whatever_it_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    output.Failure(EVIL, why=EVIL, fix="sockd ls").show()
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("  fix:")] == [f"  fix: {own_command()} ls"]


def test_no_text_makes_a_record_of_the_log_of_its_own() -> None:
    record = logging.LogRecord(
        "sockd.x", logging.INFO, "", 0, "deploy of %s", ("a\x1b[2J\nWARNING sockd.x: forged",), None
    )
    text = PrintableFormatter("%(levelname)s %(name)s: %(message)s").format(record)
    assert text == "INFO sockd.x: deploy of a\\x1b[2J\n  WARNING sockd.x: forged"


@pytest.mark.parametrize("place", ["file", "terminal", "pipe"])
def test_records_have_a_time_where_no_one_else_notes_it(tmp_path: Path, place: str) -> None:
    there, back = (os.openpty() if place == "terminal" else os.pipe())[::-1]
    if place == "file":
        os.close(there)
        there = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    code = "import logging; from sockd.base.log_format import log_to_stderr; log_to_stderr(); logging.info('said')"
    try:
        subprocess.run([sys.executable, "-c", code], stderr=there, check=True, timeout=30)
        text = (tmp_path / "log").read_text() if place == "file" else os.read(back, 1000).decode()
    finally:
        os.close(there)
        os.close(back)
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z " if place != "pipe" else ""
    assert re.fullmatch(rf"{time}INFO root: said\r?\n", text), text


def test_the_time_of_a_record_is_utc() -> None:
    record = logging.makeLogRecord({"created": 1795000000.25, "msecs": 250.0, "name": "x", "msg": "then"})
    assert PrintableFormatter(TIMED_LAYOUT).format(record).startswith("2026-11-18T11:06:40.250Z ")
