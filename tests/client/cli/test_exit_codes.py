"""How commands fail: one exit status for a wrong name, errors as JSON, and what is refused before a command does its work."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sockd import __version__
from sockd.base.own_command import as_root, own_command, runnable
from sockd.client.cli.doctor.report import run_checks
from tests.client.cli.serving import REPOSITORY, Run, Served
from tests.support.nobody import NOBODY, needs_nobody

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
NAMES = ["nope", "a b", "a.b"]
NAMING = [
    "invoke NAME",
    "invoke --async NAME",
    "invoke echo:NAME",
    "rm NAME",
    "url NAME",
    "curl NAME",
    "versions NAME",
    "publish NAME",
    "alias NAME live 1",
    "provision NAME 1 1",
    "rollback NAME",
    "config NAME",
    "config NAME --timeout 3",
    "env NAME",
    "env NAME A=B",
    "secret ls NAME",
    "secret rm NAME KEY",
    "logs NAME",
    "logs NAME -f",
    "imports NAME",
    "trace NAME",
    "events ls --function NAME",
    "events show NAME",
    "events retry NAME",
    "events retry --function NAME",
    "events rm --function NAME",
    "events config NAME",
    "schedule rm NAME",
    "schedule enable NAME",
    "initscript record NAME",
    "packages forgive NAME",
    "bench NAME",
    "sebs invoke NAME test",
]


@pytest.mark.parametrize("command", ["config echo", "deploy . --name echo"])
def test_a_wrong_rule_is_a_wrong_option(run: Run, command: str) -> None:
    done = run(*command.split(), "--egress", "internet", "--egress", "none")
    assert done.returncode == 2 and "egress, entry 2, 'none'" in done.stderr


@pytest.mark.parametrize("command", NAMING)
def test_a_wrong_name_has_one_exit_status(run: Run, command: str) -> None:
    for name in NAMES:
        done = run(*(name if each == "NAME" else each.replace("NAME", name) for each in command.split(" ")))
        assert (done.returncode, done.stdout) == (3, ""), (name, done.stderr)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "fix"),
    [
        ("invoke echo:nope", "sockd versions echo"),
        ("logs echo --request 00000000", "sockd trace 00000000"),
        ("invoke nope", "sockd ls"),
    ],
)
def test_the_fix_of_a_wrong_name_lists_what_there_is(run: Run, command: str, fix: str) -> None:
    done = run(*command.split(" "))
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].endswith(fix), done.stderr


@needs_root
@pytest.mark.parametrize("arguments", [("backup", "copy"), ("restore", "/"), ("doctor",)])
def test_a_command_for_this_machine_is_refused_for_another_worker(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments, "--worker", "https://example.invalid")
    assert done.returncode == 2
    assert done.stderr.endswith(f"fix: env -u SOCKD_WORKER {own_command()} {arguments[0]}\n")
    assert run(*arguments, SOCKD_WORKER="https://example.invalid").stderr == done.stderr


def test_errors_are_json_where_json_was_asked_for(run: Run, tmp_path: Path) -> None:
    for arguments, status in (
        (("rm", "nope"), 3),
        (("ls", "--state-dir", str(tmp_path / "none")), 69),
        (("logs", "echo", "-n", "many"), 2),
        (("ls", "--no-such-option"), 2),
        (("invoke", "raises"), 1),
        (("keys", "rm"), 2),
        (("schedule", "rm", "nope"), 3),
        (("deploy", str(tmp_path), "--name", "a b"), 2),
    ):
        done = run(*arguments, "--json")
        reported = json.loads(done.stderr.splitlines()[-1])
        assert done.returncode == status and set(reported) == {"error", "why", "fix", "exit_code"}, done.stderr
        assert reported["exit_code"] == status and reported["error"]
    done = run("invoke", "raises", "--json")
    assert json.loads(done.stdout)["body"]["errorType"] == "ValueError"
    assert len(done.stderr.splitlines()) == 1


def test_every_command_that_prints_json_fails_as_json() -> None:
    from sockd.client.cli.main import COMMANDS, cli

    context = cli.make_context("sockd", ["ls"], resilient_parsing=True)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        inner = [command, *getattr(command, "commands", {}).values()]
        for each in inner:
            flags = [
                parameter for parameter in each.params if "--json" in parameter.opts and parameter.name == "as_json"
            ]
            assert all(flag.callback is not None for flag in flags), each.name


@pytest.mark.parametrize("group", [(), ("events",), ("schedule",), ("secret",), ("packages",)])
def test_a_group_without_a_command_shows_its_help(run: Run, group: tuple[str, ...]) -> None:
    done = run(*group)
    heading = "Commands" if group else "Develop"
    assert done.returncode == 2 and f"\n{heading}:\n" in done.stderr and "Error:" not in done.stderr


@pytest.mark.parametrize("arguments", [("status",), ("ls", "--json"), ("invoke", "echo"), ("logs", "echo", "--raw")])
def test_an_output_that_cannot_be_written_is_reported(served: Served, arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "sockd", *arguments]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=served.environment(), check=False
        )
    assert done.returncode == 1 and "the output cannot be written" in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_ctrl_c_ends_a_command_quietly(served: Served) -> None:
    served.worker.started.clear()
    command = [sys.executable, "-m", "sockd", "invoke", "slow"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=served.environment()
    ) as asking:
        asyncio.run_coroutine_threadsafe(served.worker.started.wait(), served.loop).result(10)
        asking.send_signal(2)
        said = asking.communicate(timeout=10)
    served.loop.call_soon_threadsafe(served.worker.release.set)
    assert asking.returncode == 130 and said == ("", "\n")


def test_the_version_is_reported(run: Run) -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"sockd {__version__}\n")


@pytest.mark.parametrize(
    "command",
    [
        "trace last --chrome {}/missing/t.json",
        "init {}/missing/project",
        "bench primitives --quick --json {}/missing/b.json",
        "selftest --case A1 --json {}/missing/s.json",
        "initscript build {}/init.c -o {}/missing/i.wasm",
        "top --state-dir {}/missing",
    ],
)
def test_a_missing_directory_is_reported_before_anything_is_done(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "init.c").write_text("")
    done = run(*command.format(tmp_path, tmp_path).split())
    assert done.returncode in (2, 69) and done.stdout == ""
    assert "missing" in done.stderr and ("is not there" in done.stderr)
    assert not (tmp_path / "missing").exists()


def test_hints_name_a_command_that_runs() -> None:
    """As a shell would run them: also where no sockd, or another, is on PATH."""
    for words in (own_command(), runnable("sockd ls").removesuffix(" ls"), as_root().removeprefix("sudo ")):
        done = subprocess.run(
            ["/bin/sh", "-c", f"{words} --version"],
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"]},
            check=False,
        )
        assert done.stdout == f"sockd {__version__}\n", words
    assert runnable("sockdx y") == "sockdx y" and runnable("less x") == "less x"
    assert runnable("pip install x") == f"{sys.executable} -m pip install x"


@needs_root
def test_a_hint_is_given_to_a_user_who_may_not_look_where_the_command_is(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    code = (
        "import os, sys; from sockd.base.own_command import own_command\n"
        "sys.executable = sys.argv[1]; os.setresuid(65534, 65534, 65534); print(own_command())"
    )
    python = str(tmp_path / "closed/python")
    done = subprocess.run([sys.executable, "-c", code, python], capture_output=True, text=True, check=True)
    assert done.stdout == f"{python} -m sockd\n"


@needs_nobody
def test_an_ordinary_user_learns_the_same_command_for_root(served: Served, tmp_path: Path) -> None:
    code = "from sockd.base.own_command import same_as_root; print(same_as_root())"
    command = [*NOBODY, sys.executable, "-c", code, "logs", "my function"]
    done = subprocess.run(command, capture_output=True, text=True, env=served.environment(), check=True)
    words = done.stdout.strip()
    assert words.startswith(("sudo /", "sudo sockd"))
    assert words.endswith(f"logs 'my function' --state-dir {served.state_dir}")


@needs_nobody
def test_doctor_tells_an_ordinary_user_once_that_root_is_needed() -> None:
    code = "import json; from sockd.client.cli.doctor.report import *; print(json.dumps(as_dicts(run_checks())))"
    done = subprocess.run(
        [*NOBODY, sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True
    )
    found = json.loads(done.stdout)
    assert [check["name"] for check in found if check["ok"] is False] == ["privileges"]
    reported = found[0]
    assert (
        reported["found"].startswith("not root")
        and "namespaces" in reported["found"]
        and reported["fix"].startswith("sudo ")
    )
    by_root = {check.name for check in run_checks()}
    assert by_root > {check["name"] for check in found}


@needs_root
def test_a_wrong_case_of_the_selftest_has_that_exit_status_too(run: Run) -> None:
    done = run("selftest", "--case", "NOPE")
    assert done.returncode == 3 and "no case has this name" in done.stdout


def test_no_command_has_two_options_of_one_name() -> None:
    from sockd.client.cli.main import COMMANDS, cli

    context = cli.make_context("sockd", ["ls"], resilient_parsing=True)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        for each in [command, *getattr(command, "commands", {}).values()]:
            names = [option for parameter in each.params for option in (*parameter.opts, *parameter.secondary_opts)]
            assert len(set(names)) == len(names), f"{name} {each.name}: {names}"
