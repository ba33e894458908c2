"""Every command, as a process of its own, against both APIs of a fake worker."""

from __future__ import annotations

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

from sockd.base.own_command import as_root, own_command
from sockd.client.cli.main import COMMANDS, GROUPS
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


def test_status_and_tree_are_shown(run: Run, served: Served) -> None:
    assert json.loads(run("status", "--json").stdout)["url"] == served.worker.url
    reported = [line.rsplit("  ", 1) for line in run("status").stdout.splitlines()]
    rows = {label.strip(): value for label, value in reported}
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


def test_no_colour_is_printed_where_no_one_looks_or_no_one_wants_it(run: Run) -> None:
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


def test_a_variable_that_is_none_is_named_by_its_place(run: Run) -> None:
    done = run("env", "echo", "MODE=test", "GREETING=hello", "world")
    assert done.returncode == 2
    assert "variable 3 of 3, which follows GREETING=... is not KEY=VALUE" in done.stderr
    assert "world" not in done.stderr and "quotes" in done.stderr
