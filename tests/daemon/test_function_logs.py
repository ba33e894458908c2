"""What functions print: by request, bounded, never in the way of the function, never mixed up with another request's."""

from __future__ import annotations

import json

import pytest

from tests.daemon.running import RunningDaemon
from tests.support.threads import at_once


def test_stdout_and_stderr_are_kept_by_request(daemon: RunningDaemon) -> None:
    daemon.deploy(
        "prints",
        "import os, subprocess, sys\n"
        "def f(event):\n"
        "    print('out', event)\n"
        "    print('err', event, file=sys.stderr)\n"
        "    os.write(1, b'raw\\n')\n"
        "    subprocess.run(['/bin/echo', 'child'])\n",
    )
    first, second = daemon.run("prints", 1), daemon.run("prints", 2)
    assert sorted(daemon.log_of("prints", first).splitlines()) == ["child", "err 1", "out 1", "raw"]
    assert sorted(daemon.log_of("prints", second).splitlines()) == ["child", "err 2", "out 2", "raw"]
    times = [record["time_s"] for record in daemon.logs("prints")]
    assert len(times) == 2 and times == sorted(times)


def test_what_is_printed_before_an_error_is_kept_too(daemon: RunningDaemon) -> None:
    for name, end, status, timeout_s in (
        ("raising", "raise ValueError(1)", 500, 15),
        ("exiting", "import os; sys.stdout.flush(); os._exit(1)", 502, 15),
        ("leaving", "sys.exit(1)", 502, 15),
        ("endless", "while True: pass", 504, 1.5),
    ):
        code = f"import sys\nprint('init')\ndef f(event):\n print('last words')\n {end}"
        daemon.deploy(name, code, timeout_s=timeout_s)
        answer = daemon.run(name)
        assert answer.status == status
        assert daemon.log_of(name, answer) == "init\nlast words\n", name


def test_a_failed_import_s_output_is_kept(daemon: RunningDaemon) -> None:
    daemon.deploy("early", "print('so far')\nraise ImportError('no')")
    answer = daemon.run("early")
    assert answer.status == 500 and daemon.log_of("early", answer) == "so far\n"


@pytest.mark.parametrize("kilobytes", [100, 250])
def test_all_that_one_request_prints_is_its_own(daemon: RunningDaemon, kilobytes: int) -> None:
    """The pipe holds more than one read of the daemon takes out of it."""
    daemon.deploy("wordy", "def f(event): print(event[0] * (event[1] << 10))", log_bytes=1 << 20, concurrency=1)
    for letter in "abcd":
        answer = daemon.run("wordy", [letter, kilobytes])
        assert daemon.log_of("wordy", answer) == letter * (kilobytes << 10) + "\n"


def test_ten_megabytes_on_one_line_are_cut_at_the_limit_and_do_not_block(daemon: RunningDaemon) -> None:
    daemon.deploy("flood", "def f(event):\n print('x' * (10 << 20))\n return 'done'", log_bytes=1000)
    answer = daemon.run("flood")
    assert answer.json == "done"
    (record,) = daemon.logs("flood", answer.headers["x-amzn-requestid"])
    assert record["text"] == "x" * 1000
    assert record["dropped_bytes"] == (10 << 20) + 1 - 1000


def test_log_bytes_of_zero_keeps_nothing_and_counts_everything(daemon: RunningDaemon) -> None:
    daemon.deploy("mute", "def f(event): print('1234')", log_bytes=0)
    answer = daemon.run("mute")
    (record,) = daemon.logs("mute", answer.headers["x-amzn-requestid"])
    assert (record["text"], record["dropped_bytes"]) == ("", 5)


def test_bytes_that_are_no_text_are_shown_and_not_lost(daemon: RunningDaemon) -> None:
    daemon.deploy("odd", "import os\ndef f(event):\n print('\\ud800')\n os.write(1, b'a\\0b\\xff\\xfe\\r\\n')")
    answer = daemon.run("odd")
    assert daemon.log_of("odd", answer) == "\\ud800\na\0b\\xff\\xfe\r\n"


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.close(1); os.close(2)\ndef f(event): print('lost')\n",
        "import sys\nsys.stdout = None\ndef f(event): return None\n",
        "import sys\nsys.stdout.close()\ndef f(event): return None\n",
        "import sys, io\nsys.stdout = io.StringIO()\ndef f(event): print('mine')\n",
    ],
)
def test_a_function_may_do_to_its_streams_what_it_likes(daemon: RunningDaemon, code: str) -> None:
    daemon.deploy("streams", code)
    for _ in range(3):
        assert daemon.run("streams").status in (200, 500)
    assert daemon.status()["sandboxes"]["busy"] == 0


def test_a_thread_that_prints_on_after_its_request_disturbs_nobody(daemon: RunningDaemon) -> None:
    daemon.deploy(
        "chatty",
        "import threading\n"
        "def talk():\n while True: print('y' * 100)\n"
        "def f(event):\n threading.Thread(target=talk, daemon=True).start()\n return event\n",
        log_bytes=1000,
    )
    assert [daemon.call("chatty", n) for n in range(5)] == [0, 1, 2, 3, 4]
    assert all(len(record["text"]) <= 1000 for record in daemon.logs("chatty"))


def test_concurrent_requests_do_not_mix_their_lines(daemon: RunningDaemon) -> None:
    daemon.deploy("many", "def f(event):\n for _ in range(50): print(event)\n return event", concurrency=8)
    answers = at_once(24, lambda n: daemon.run("many", n))
    for number, answer in enumerate(answers):
        assert answer.json == number
        assert daemon.log_of("many", answer) == f"{number}\n" * 50


def test_logs_are_bounded_by_number_and_gone_with_the_function(daemon: RunningDaemon) -> None:
    daemon.deploy("short", "def f(event): print(event)")
    for number in range(5):
        daemon.call("short", number)
    newest = json.loads(daemon.manage("GET", "/functions/short/logs?limit=2").body)
    assert [record["text"] for record in newest] == ["3\n", "4\n"]
    daemon.remove("short")
    assert daemon.manage("GET", "/functions/short/logs").status == 404
    daemon.deploy("short", "def f(event): print(event)")
    assert daemon.logs("short") == []
