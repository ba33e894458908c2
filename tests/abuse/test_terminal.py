"""Group K: a function, a package or a registry chooses text that reaches root's terminal or the daemon's log."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.abuse.clients import environment
from tests.client.cli.pty_process import Terminal
from tests.daemon.running import DeployFailed
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker
from tests.support.servers.package_index import wheel

EVIL = "\x1b]0;owned\x07\x9b2J\u202egpj\x1b[1A\x08\r\nWARNING sockd.forged: all is well"
CODE = f"""
import sys
EVIL = {EVIL!r}
class Bad(Exception): pass
Bad.__name__ = "Bad" + EVIL
def f(event):
    print(EVIL)
    if event == "answer":
        from wsgiref.util import setup_testing_defaults
        return EVIL
    raise Bad(EVIL)
"""
APP = f"def app(environ, start):\n    start('500 no', []); return [{EVIL!r}.encode()]\n"
STRANGE = (b"\x1b]0;", b"\xc2\x9b", "\u202e".encode())
OBEYED = (*STRANGE, b"\x1b[1A", b"\x07")
"""The last two are rich's own where progress is shown."""


def on_terminal(worker: PrivateWorker, home: Path, *arguments: str) -> bytes:
    """What `sockd` shows at a terminal."""
    command = [sys.executable, "-m", "sockd", *arguments]
    terminal = Terminal(command, environment(worker.daemon, home), columns=100)
    try:
        terminal.process.wait(30)
        terminal.interrupt()  # reads what it has shown to the end
        return terminal.shown
    finally:
        terminal.close()


@case(
    "K8",
    "errors, logs, answers and a web app's body with escape sequences, C1, bidi overrides and forged lines",
    expect="trace, invoke, logs, curl, top and tree escape them, at a terminal and in a pipe",
)
def test_no_command_passes_on_what_a_terminal_obeys(worker: PrivateWorker, happened: Happened, tmp_path: Path) -> None:
    worker.deploy("evil", {"f.py": CODE})
    worker.deploy("evil-app", {"f.py": APP.replace("def app", "def f", 1)}, handler="f:f", app="wsgi")
    failed = worker.invoke("evil", {})
    assert failed.status == 500 and "\x1b" in failed.json["errorMessage"], "the worker itself keeps it as it was"
    request_id = failed.headers["x-amzn-requestid"]
    worker.cli("url", "evil-app", "--auth", "none")
    commands = [
        ("invoke", "evil"),
        ("invoke", "evil", "-d", '"answer"'),
        ("invoke", "evil-app"),
        ("curl", "evil-app", "-i"),
        ("trace", request_id),
        ("trace",),
        ("logs", "evil"),
        ("logs", "evil", "--raw"),
        ("ls",),
        ("tree",),
        ("imports", "evil"),
    ]
    passed_on = {}
    for command in commands:
        shown = on_terminal(worker, tmp_path, *command)
        assert shown, command
        passed_on[f"terminal: {' '.join(command)}"] = [each for each in OBEYED if each in shown]
        if command[0] in ("trace", "ls", "tree", "imports") or command in (("logs", "evil"), ("invoke", "evil")):
            piped = worker.cli(*command, check=False)
            data = (piped.stdout + piped.stderr).encode()
            passed_on[f"pipe: {' '.join(command)}"] = [each for each in OBEYED if each in data]
    happened(f"{len(passed_on)} outputs, passed on: {[command for command, found in passed_on.items() if found]}")
    assert not any(passed_on.values()), passed_on
    assert b"\\x1b]0;owned" in on_terminal(worker, tmp_path, "trace", request_id), "it is shown, and not obeyed"


@case(
    "K8",
    "wheels, requirements and settings whose names have escape sequences and line feeds",
    expect="neither the command line nor the daemon's log passes them on; no line of the log is forged",
)
def test_no_name_reaches_the_log(worker: PrivateWorker, happened: Happened, tmp_path: Path) -> None:
    mark = worker.daemon.mark
    file = "evil\x1b]0;owned\x07\x9b2J\nWARNING sockd.forged: all is well.py"
    worker.index.add(wheel("escaping", "1.0", {file: ""}))
    refused = 0
    for files in (
        {"f.py": "def f(event): pass", "requirements.txt": "escaping"},
        {"f.py": "def f(event): pass", "requirements.txt": "absent\x1b]0;owned\x07\x9b2J"},
        {
            "f.py": "def f(event): pass",
            "sockd.toml": '"evil\\u001b]0;owned\\u0007\\nWARNING sockd.forged: all is well" = 1',
        },
        {"f.py": "def f(event): pass", "ol.yaml": '"evil\\e]0;owned\\nWARNING sockd.forged: all is well": 1'},
    ):
        directory = tmp_path / "evil"
        directory.mkdir(exist_ok=True)
        for each, text in files.items():
            (directory / each).write_text(text)
        shown = on_terminal(worker, tmp_path, "deploy", str(directory), "--name", "evil")
        assert not any(each in shown for each in STRANGE), shown
        try:
            worker.deploy("evil", files)
        except DeployFailed:
            refused += 1
        for name in files:
            (directory / name).unlink()
    log = worker.daemon.lines[mark:]
    forged = [line for line in log if line.startswith("WARNING sockd.forged") or any(ord(c) < 32 for c in line)]
    happened(f"{refused} refused, {len(log)} lines in the log, {len(forged)} of them forged")
    assert refused >= 2 and log and not forged
    assert not any(mark.decode() in line for line in log for mark in STRANGE)
