"""`sockd top` and the other living screens: whatever the terminal is like, and also where there is none."""

from __future__ import annotations

import itertools
import json
import signal
import sys
from types import FrameType
from typing import Any

import pytest

from sockd.base.printable import printable
from sockd.client.cli.observe.top import lines, sparkline
from sockd.client.console.terminal import is_interrupted_within
from sockd.client.console.times import short_ms, since
from tests.client.cli.pty_process import Terminal
from tests.client.cli.serving import Run, Served
from tests.http.worker_answers import LIVE


def test_a_wide_terminal_shows_everything() -> None:
    shown = "\n".join(lines(LIVE, 160))
    for expected in (
        "81.2/s",
        "3 busy, 2 idle, 7 paused, 4 spare",
        "thumbnails-of-a-rather-long-name",
        "80.0/s",
        "1.2ms",
        "5.0ms",
        "1.8s",
        "7.2s",
        "25 %",
        "2/10",
        "640 MB",
        "900 MB of 12.0 GB",
        "last minute",
    ):
        assert expected in shown, expected


@pytest.mark.parametrize("width", [1, 20, 40, 60, 80, 100, 200])
def test_no_line_is_longer_than_the_terminal_and_what_matters_least_goes_first(width: int) -> None:
    shown = lines(LIVE, width)
    assert all(len(line) <= width for line in shown)
    headings = shown[3].split()
    if width >= 40:
        assert headings[:3] == ["function", "rate", "p50"] and "report" in shown[5]
    assert ("memory" in headings) is (width >= 100)


def test_nothing_to_show_is_said() -> None:
    assert lines({**LIVE, "functions": []}, 80)[-1] == "no invocation in the last minute"


def test_a_sparkline_is_full_where_most_was() -> None:
    assert sparkline([0, 1, 2, 4]) == " ▂▄█"
    assert sparkline([0, 0]) == "  " and sparkline([]) == ""
    assert [short_ms(ms) for ms in (0.05, 1.25, 123.4, 9999, 123456)] == ["50us", "1.2ms", "123ms", "10.0s", "123s"]


def test_without_a_terminal_it_is_one_snapshot(run: Run) -> None:
    once = run("top")
    assert once.returncode == 0 and "report" in once.stdout and "\x1b" not in once.stdout
    assert json.loads(run("top", "--json", "-n", "1").stdout)["functions"][0]["rate"] == 80.0
    assert run("top", "-n", "0").returncode == 2
    assert run("tree", "--live").stdout == run("tree").stdout


@pytest.mark.parametrize(
    ("arguments", "text"), [(("top", "--interval", "0.2"), b"report"), (("tree", "--live"), b"40 modules")]
)
@pytest.mark.parametrize("columns", [30, 120])
def test_a_living_screen_is_drawn_again_and_ends_cleanly(
    served: Served, arguments: tuple[str, ...], text: bytes, columns: int
) -> None:
    terminal = Terminal([sys.executable, "-m", "sockd", *arguments], served.environment(), columns=columns)
    try:
        terminal.wait_for(text, times=2)
        assert terminal.interrupt() == 0, terminal.shown
        assert b"Traceback" not in terminal.shown
        assert b"\x1b[?1049l" in terminal.shown and b"\x1b[?25h" in terminal.shown, "screen and cursor are given back"
    finally:
        terminal.close()


def test_ctrl_c_ends_a_wait_wherever_it_comes() -> None:
    sent = -1
    for nth in itertools.count():
        executed = itertools.count()

        def interrupt(frame: FrameType, event: str, arg: object, nth: int = nth, executed: Any = executed) -> Any:
            if event == "line" and next(executed) == nth:
                signal.raise_signal(signal.SIGINT)
            return interrupt

        sys.settrace(interrupt)
        try:
            is_ended = is_interrupted_within(0)
        except KeyboardInterrupt:
            is_ended = True
        finally:
            sys.settrace(None)
        if not is_ended:
            break  # it has fewer lines
        sent = nth
    assert sent > 1


def test_a_worker_that_goes_away_ends_it_with_its_reason(run: Run) -> None:
    gone = run("top", "--state-dir", "/nonexistent")
    assert gone.returncode == 69 and "no worker answers" in gone.stderr


def test_text_of_strangers_does_nothing_to_a_terminal() -> None:
    hostile = "a\x1b]0;title\x07\x1b[2J\x00\x9b31m\r\nb\rc\t\u202edcba"
    assert printable(hostile) == "a\\x1b]0;title\\x07\\x1b[2J\\x00\\x9b31m\nb\\x0dc\t\\u202edcba"
    assert printable("grüße 日本 🎉\n") == "grüße 日本 🎉\n"


def test_since_is_a_while_ago_or_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_000_000.0)
    assert [since(text) for text in ("10s", "5m", "2h", "1.5d")] == [999_990, 999_700, 992_800, 870_400]
    assert since("1970-01-12T13:46:40+00:00") == 1_000_000
    for wrong in ("", "5", "m", "5 minutes", "yesterday", "٣s", "99999-01-01", "-5m"):
        with pytest.raises(Exception, match="is no time"):
            since(wrong)
