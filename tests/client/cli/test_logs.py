"""`sockd logs`: which records, and what a terminal, a pipe and a program are given of them."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sockd.base.telemetry import LogRecord
from sockd.client.cli.observe import logs as command
from tests.client.cli.pty_process import Terminal
from tests.client.cli.serving import Run, Served

RAW = b"\x1b[2Jcleared\x00\xff\n"


class FakeManagement:
    """Remembers what it is asked."""

    member = "w1"

    asked: dict[str, str]

    def __init__(self, state_dir: object) -> None:
        pass

    def get(self, *path: str, query: dict[str, str]) -> list[dict[str, Any]]:
        FakeManagement.asked = query
        text = RAW.decode("utf-8", "backslashreplace")
        raw = {"raw": base64.b64encode(RAW).decode()} if "raw" in query else {}
        return [{"request_id": "r1", "time_s": 0.0, "version": "3", "text": text, "dropped_bytes": 7, **raw}]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(command, "Management", FakeManagement)
    return lambda *arguments: CliRunner().invoke(command.logs, ["f", *arguments])


def test_what_is_asked_for_is_passed_on(ask: Any) -> None:
    result: Result = ask("--since", "5m", "--request", "r1", "-n", "7")
    assert result.exit_code == 0 and "version 3" in result.output and "7 bytes more were dropped" in result.output
    asked = FakeManagement.asked
    assert (asked["limit"], asked["request_id"]) == ("7", "r1")
    assert abs(float(asked["since"]) - (time.time() - 300)) < 60
    assert ask("--since", "soon").exit_code == 2


def test_raw_is_what_was_printed_and_a_pipe_is_given_what_a_terminal_is(ask: Any) -> None:
    assert ask("--raw").stdout_bytes == RAW
    assert "\\x1b[2Jcleared\\x00\\xff\n" in ask().output
    assert json.loads(ask("--json").output)[0]["text"] == "\x1b[2Jcleared\x00\\xff\n"


def test_a_carriage_return_inside_a_record_ends_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    command._show({"request_id": "r", "time_s": 0, "text": "[ERROR] E\rTraceback\r\n  File\r", "dropped_bytes": 0})
    assert capsys.readouterr().out.splitlines()[1:] == ["[ERROR] E", "Traceback", "  File"]


def test_a_terminal_learns_nothing_that_it_would_obey(served: Served) -> None:
    code = (
        "import sys\nfrom sockd.client.cli.observe import logs\n"
        f"logs._show({{'request_id': 'r', 'time_s': 0, 'text': {RAW.decode('latin-1')!r}, 'dropped_bytes': 0}})\n"
    )
    terminal = Terminal([sys.executable, "-c", code], served.environment(), columns=80)
    try:
        assert b"\\x1b[2Jcleared\\x00" in terminal.wait_for(b"cleared")
        assert b"\x1b[2J" not in terminal.shown
    finally:
        terminal.close()


def test_since_and_request_choose_at_the_worker(run: Run) -> None:
    assert json.loads(run("logs", "echo", "--json", "--since", "2999-01-01").stdout) == []
    assert len(json.loads(run("logs", "echo", "--json", "--since", "1970-01-02").stdout)) == 3
    assert [record["request_id"] for record in json.loads(run("logs", "echo", "--request", "r1", "--json").stdout)] == [
        "r1"
    ]


def test_a_follower_ends_with_ctrl_c(served: Served) -> None:
    command = [sys.executable, "-m", "sockd", "logs", "echo", "-f", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=served.environment()) as following:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["request_id"] == "r0"
        following.send_signal(2)
        assert following.wait(10) == 0


def test_logs_are_shown_by_request(run: Run) -> None:
    assert run("logs", "echo").stdout.count("line \\xff") == 3
    assert "r1" in run("logs", "echo", "--request", "r1").stdout
    assert [record["request_id"] for record in json.loads(run("logs", "echo", "-n", "2", "--json").stdout)] == [
        "r0",
        "r1",
    ]
    assert run("logs", "unknown").returncode == 3
    assert run("logs", "unknown", "-f").returncode == 3


def test_no_output_of_a_function_is_shown_as_another_record(capsys: pytest.CaptureFixture[str]) -> None:
    forged = "--- 2026-01-01 00:00:00 11111111-0000-0000-0000-000000000000 version 9\nforged\r--- 5 bytes more were dropped\n"
    record = {
        "request_id": "22222222",
        "time_s": 1.7e9,
        "version": "1",
        "text": f"a\n{forged}- --- b",
        "dropped_bytes": 7,
    }
    command._show(record)
    lines = capsys.readouterr().out.splitlines()
    ours = [line for line in lines if line.startswith("---")]
    assert len(ours) == 2 and ours[0].endswith("22222222 version 1") and ours[1].startswith("--- 7 bytes more")
    assert lines[2].startswith("\\x2d-- 2026-01-01 00:00:00 1111") and lines[4].startswith("\\x2d-- 5 bytes")
    assert lines[1] == "a" and lines[5] == "- --- b"


def test_logs_are_followed_until_interrupted(served: Served) -> None:
    command = [sys.executable, "-m", "sockd", "logs", "echo", "-f", "-n", "1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=served.environment()) as process:
        assert process.stdout
        assert json.loads(process.stdout.readline())["request_id"] == "r0"
        served.loop.call_soon_threadsafe(served.worker.records.put_nowait, LogRecord("r9", 1.0, b"new\n", 0))
        assert json.loads(process.stdout.readline())["request_id"] == "r9"
        process.send_signal(2)
        assert process.wait(10) == 0
