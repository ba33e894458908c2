"""Child processes of imports, in an interpreter of its own that has prepared to fork as a Zygote has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sockd_zygote.forks.children import EVENTS, in_words

REPOSITORY = Path(__file__).resolve().parents[3]
HARNESS = """
import json, os, signal, subprocess, sys
sys.path.insert(0, {repository!r})
from sockd_zygote import _native
from sockd_zygote.forks.children import Ends
_native.prepare(False)
def exit_codes():
    return [os.system("exit 3") >> 8, subprocess.run(["sh", "-c", "exit 4"]).returncode]
before = exit_codes()
with Ends() as ends:
    during = exit_codes()
    {code}
print(json.dumps([before, during, exit_codes(), ends.complaints]))
"""


def reported(code: str) -> Any:
    """What it prints: exit codes before, during and after imports, and complaints."""
    program = HARNESS.format(repository=str(REPOSITORY), code=code)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_imports_learn_how_their_children_end() -> None:
    unknown = [-1, 0]
    assert reported("pass") == [unknown, [3, 4], unknown, []]


def test_no_child_that_has_ended_is_left() -> None:
    code = (
        "pids = [os.posix_spawn('/bin/true', ['true'], {}), os.posix_spawn('/bin/true', ['true'], {})]\n"
        "    [os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT) for pid in pids]"
    )
    *_, after, complaints = reported(code)
    assert after == [-1, 0], "os.system would find another child's end"
    assert complaints == ["an import starts a process and does not wait for its end"]


def test_a_child_that_still_runs_is_a_reason_although_nothing_is_left_of_it_later() -> None:
    code = "reader, writer = os.pipe(); os.posix_spawn('/bin/cat', ['cat'], {}, file_actions=[(os.POSIX_SPAWN_DUP2, reader, 0), "
    code += "(os.POSIX_SPAWN_CLOSE, writer)])"
    assert reported(code)[3] == ["an import leaves a process running"]


def test_a_handler_of_their_ends_is_a_reason_against_the_zygote() -> None:
    assert reported("signal.signal(signal.SIGCHLD, print)")[3] == ["an import handles SIGCHLD"]
    assert reported("signal.signal(signal.SIGCHLD, print); signal.signal(signal.SIGCHLD, signal.SIG_DFL)")[3] == []


@pytest.mark.parametrize(
    ("event", "args", "words"),
    [
        ("subprocess.Popen", ("/usr/bin/git", ["git", "version"], None, None), "git"),
        ("os.posix_spawn", (b"/bin/true", [b"true"], {}), "true"),
        ("os.system", (b"printenv X",), "printenv"),
        ("os.system", ("",), ""),
        ("os.exec", (Path("/bin/sh"), ["sh"], None), "sh"),
        ("os.fork", (), "a fork"),
        ("os.forkpty", (), "a fork"),
    ],
)
def test_a_child_is_named_by_its_program(event: str, args: Any, words: str) -> None:
    assert event in EVENTS and in_words(event, args) == words
