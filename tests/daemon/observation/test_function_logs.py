"""What functions print: by request, bounded, never in the way of the function, never mixed up with another request's."""

from __future__ import annotations

import json
import re
import sys

import pytest

from tests.daemon.running import DeployFailed, RunningDaemon
from tests.support import sockd_template
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


def test_output_may_be_opened_again_as_a_file_and_not_be_read(daemon: RunningDaemon) -> None:
    daemon.deploy(
        "opens",
        "import os\n"
        "def f(event):\n"
        "    for path in ('/dev/stdout', '/dev/stderr', '/proc/self/fd/1'):\n"
        "        with open(path, 'w') as file:\n"
        "            file.write(path + '\\n')\n"
        "    try:\n"
        "        os.open('/dev/stdout', os.O_RDONLY)\n"
        "    except PermissionError:\n"
        "        return 'write-only'\n",
    )
    answer = daemon.run("opens")
    assert answer.json == "write-only", answer
    assert daemon.log_of("opens", answer).splitlines() == ["/dev/stdout", "/dev/stderr", "/proc/self/fd/1"]


TRACEBACK = (
    "[ERROR] KeyError: 'missing'\n"
    "Traceback (most recent call last):\n"
    '  File "/var/task/f.py", line {line}, in f\n'
    "    {source}\n"
)


@pytest.mark.parametrize(
    ("end", "status", "timeout_s", "written"),
    [
        ("raise KeyError('missing')", 500, 15, re.escape(TRACEBACK.format(line=5, source="raise KeyError('missing')"))),
        (
            "sys.stdout.close(); sys.stderr = None; os.close(1); os.close(2); raise KeyError('missing')",
            500,
            15,
            r"\[ERROR\] KeyError: 'missing'\nTraceback \(most recent call last\):\n(  .*\n)+",
        ),
        ("sys.stdout.flush(); os._exit(3)", 502, 15, r"\[ERROR\] Runtime.ExitError: .*exit status 3\n"),
        ("sys.exit(1)", 502, 15, r"\[ERROR\] Runtime.ExitError: .*exit status 1\n"),
        (
            "while True: pass",
            504,
            1.5,
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z {id} Task timed out after 1.50 seconds\n",
        ),
        ("b = bytearray(1 << 30)", 502, 15, r"\[ERROR\] Sandbox.OutOfMemory: out of memory.*\n"),
    ],
    ids=["raises", "raises without streams", "exits", "leaves", "is too slow", "is too large"],
)
def test_a_failure_is_in_the_log_behind_what_was_printed(
    daemon: RunningDaemon, end: str, status: int, timeout_s: float, written: str
) -> None:
    code = f"import os, sys\nprint('init')\ndef f(event):\n print('last words')\n {end}"
    daemon.deploy("failing", code, timeout_s=timeout_s)
    answer = daemon.run("failing")
    assert answer.status == status
    log = daemon.log_of("failing", answer)
    pattern = written.replace("{id}", answer.headers["x-amzn-requestid"])
    assert re.fullmatch(f"init\nlast words\n{pattern}", log), log


def test_a_failed_import_is_in_the_log_behind_what_was_printed(daemon: RunningDaemon) -> None:
    daemon.deploy("early", "print('so far')\nraise ImportError('no')")
    answer = daemon.run("early")
    assert answer.status == 500
    log = daemon.log_of("early", answer)
    assert log.startswith("so far\n[ERROR] ImportError: no\nTraceback (most recent call last):\n"), log
    assert 'File "/var/task/f.py", line 2' in log


def test_a_traceback_begins_a_line_of_its_own(daemon: RunningDaemon) -> None:
    daemon.deploy("unended", "def f(event):\n print('no end of line', end='')\n raise KeyError('missing')")
    assert daemon.log_of("unended", daemon.run("unended")) == "no end of line\n" + TRACEBACK.format(
        line=3, source="raise KeyError('missing')"
    )


@pytest.mark.parametrize(
    "code",
    [
        "def app(environ, start_response):\n raise KeyError('missing')\n",
        "async def app(scope, receive, send):\n raise KeyError('missing')\n",
    ],
    ids=["wsgi", "asgi"],
)
def test_an_exception_of_a_web_app_is_in_the_log(daemon: RunningDaemon, code: str) -> None:
    daemon.deploy("app", {"f.py": code, "sockd.toml": 'handler = "f:app"\n'})
    answer = daemon.run("app")
    assert answer.status == 500
    log = daemon.log_of("app", answer)
    assert "[ERROR] KeyError: 'missing'\nTraceback (most recent call last):\n" in log and "in app" in log, log


def test_a_refused_event_is_no_failure_of_the_function(daemon: RunningDaemon) -> None:
    daemon.deploy("calm", "def f(event): return event")
    daemon.call("calm")
    assert daemon.request("POST", "/run/calm", b"{no json").status == 400
    assert daemon.logs("calm") == []


def test_the_times_of_a_failed_request_are_its_own(daemon: RunningDaemon) -> None:
    daemon.deploy("slow", "import time\ndef f(event):\n time.sleep(0.3)\n raise KeyError('missing')")
    assert daemon.run("slow").timing["exec"] >= 300
    daemon.deploy("slow", "import os, time\ndef f(event):\n time.sleep(0.3)\n os._exit(1)")
    assert daemon.run("slow").timing["exec"] >= 300
    daemon.deploy("slow", "import time\ndef f(event): time.sleep(60)", timeout_s=0.5)
    assert daemon.run("slow").timing["exec"] == 500


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


def test_a_thread_that_prints_on_after_its_request_disturbs_no_one(daemon: RunningDaemon) -> None:
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


@pytest.mark.parametrize(
    ("configure", "layout"),
    [
        ("", r"\[WARNING\]\t{time}\t{id}\thello\n\[ERROR\]\t{time}\t{id}\tworse\n"),
        (
            "logging.basicConfig(level=logging.INFO)",
            r"\[INFO\]\t{time}\t{id}\tfine\n\[WARNING\]\t{time}\t{id}\thello\n\[ERROR\]\t{time}\t{id}\tworse\n",
        ),
        ("logging.basicConfig(format='mine %(message)s')", "mine hello\nmine worse\n"),
    ],
    ids=["default", "level", "own format"],
)
def test_the_logging_module_writes_aws_s_layout_unless_the_function_chose_one(
    daemon: RunningDaemon, configure: str, layout: str
) -> None:
    code = (
        f"import logging\n{configure}\n"
        "def f(event):\n logging.info('fine')\n logging.warning('hello')\n logging.getLogger('x').error('worse')\n"
    )
    daemon.deploy("logs", code)
    for _ in range(2):
        answer = daemon.run("logs")
        pattern = layout.replace("{time}", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
        log = daemon.log_of("logs", answer)
        assert re.fullmatch(pattern.replace("{id}", answer.headers["x-amzn-requestid"]), log), log


def test_logging_that_is_imported_late_has_the_layout_too(daemon: RunningDaemon) -> None:
    code = "import sys\ndef f(event):\n there = 'logging' in sys.modules\n import logging\n logging.error(7)\n return there"
    daemon.deploy("late", code, zygote="none")
    answer = daemon.run("late")
    assert answer.json is False
    assert re.fullmatch(rf"\[ERROR\]\t\S+\t{answer.headers['x-amzn-requestid']}\t7\n", daemon.log_of("late", answer))


JSON_CODE = (
    "import logging\nlogging.basicConfig(level='DEBUG')\nlog = logging.getLogger('mine')\nlog.info('imported')\n"
    "def f(event):\n"
    "    log.debug('quiet')\n    log.warning('loud', extra={'n': event})\n    print('plain')\n    raise KeyError('missing')\n"
)


def test_a_log_is_json_where_the_settings_say_so(daemon: RunningDaemon) -> None:
    files = {"f.py": JSON_CODE, "sockd.toml": 'log_format = "json"\n'}
    daemon.deploy("structured", files)
    answer = daemon.run("structured", 7)
    assert answer.status == 500
    request_id = answer.headers["x-amzn-requestid"]
    *lines, failed = daemon.log_of("structured", answer).splitlines()
    assert "plain" in lines, "what is printed stays as it is"
    logged = [json.loads(line) for line in lines if line != "plain"]
    assert [line["message"] for line in logged] == ["imported", "loud"]
    assert logged[1]["n"] == 7 and logged[1]["requestId"] == request_id and logged[1]["level"] == "WARNING"
    failure = json.loads(failed)
    assert list(failure) == ["timestamp", "level", "errorMessage", "errorType", "requestId", "stackTrace"]
    assert (failure["errorType"], failure["errorMessage"], failure["requestId"]) == (
        "KeyError",
        "'missing'",
        request_id,
    )
    assert 'File "/var/task/f.py", line 9' in failure["stackTrace"][0]


def test_a_time_out_is_json_there_too_and_levels_need_the_format(daemon: RunningDaemon) -> None:
    settings = 'log_format = "json"\nlog_level = "error"\ntimeout_s = 1\n'
    code = "import logging\ndef f(event):\n    logging.warning('not seen')\n    while True: pass\n"
    daemon.deploy("slowly", {"f.py": code, "sockd.toml": settings})
    answer = daemon.run("slowly")
    assert answer.status == 504
    (line,) = daemon.log_of("slowly", answer).splitlines()
    assert json.loads(line)["errorMessage"] == "Task timed out after 1.00 seconds"
    with pytest.raises(DeployFailed, match='log_format = "json"'):
        daemon.deploy("slowly", {"f.py": code, "sockd.toml": 'log_level = "error"\n'})


def test_a_provisioned_sandbox_that_fails_before_any_request_is_in_the_functions_log(
    daemon: RunningDaemon,
) -> None:
    code = "import os\nprint('so far')\nif os.environ['AWS_LAMBDA_INITIALIZATION_TYPE'] != 'on-demand': raise ImportError('no')\n"
    daemon.deploy("kept", code + "def f(event): return 1\n")
    assert daemon.manage("POST", "/functions/kept/versions", b"{}").status == 200
    assert daemon.manage("PUT", "/functions/kept/provisioned/1", b'{"wanted": 1}').status == 200
    (record,) = daemon.when(lambda: daemon.logs("kept") or None)
    assert record["version"] == "1"
    assert record["text"].startswith("so far\n[ERROR] ImportError: no\nTraceback (most recent call last):\n")
    daemon.when(lambda: any("cannot be provisioned" in line for line in daemon.lines) or None)
    assert len(daemon.logs("kept")) == 1, "the same failure is told once"


def test_what_was_just_printed_is_found_in_memory_alone(daemon: RunningDaemon) -> None:
    daemon.deploy("fresh", "def f(event): print('said', event)")
    answers = [daemon.run("fresh", number) for number in range(3)]
    request_id = answers[1].headers["x-amzn-requestid"]
    (record,) = daemon.manage("GET", f"/functions/fresh/logs?recent=1&request_id={request_id}").json
    assert record["text"] == "said 1\n"


def test_a_failure_is_found_behind_a_thousand_calls(daemon: RunningDaemon) -> None:
    daemon.deploy("mostly", "def f(event): return 1 / event")
    failed = daemon.run("mostly", 0).headers["x-amzn-requestid"]
    for _ in range(1000):
        daemon.call("mostly", 1)
    command = [sys.executable, "-m", "sockd", "trace", "--state-dir", str(daemon.state)]

    def printed(*arguments: str) -> str:
        return sockd_template.run([*command, *arguments], check=True).stdout

    assert failed not in printed("--limit", "1000")
    assert failed in printed("--failed") and "ZeroDivisionError" in printed("--failed")
    assert "ZeroDivisionError" in printed(failed) and "/var/task/f.py" in printed(failed)
