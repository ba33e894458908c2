"""sockd's processes in tests are forked from a template: they are what new interpreters would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import sockd_template
from tests.support.sockd_template import INTERPRETER


@pytest.mark.parametrize("arguments", [["--version"], ["status"], ["nonsense"], ["ls", "--json"], ["invoke", "--help"]])
def test_a_forked_command_prints_and_returns_what_a_new_interpreter_does(arguments: list[str], tmp_path: Path) -> None:
    env = {**os.environ, "SOCKD_STATE_DIR": str(tmp_path), "COLUMNS": "70", "TZ": "Asia/Tokyo"}
    command = [*INTERPRETER, *arguments]
    exec_ed = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    forked = sockd_template.run(command, env=env, cwd=tmp_path)
    assert (forked.returncode, forked.stdout, forked.stderr) == (exec_ed.returncode, exec_ed.stdout, exec_ed.stderr)


def test_a_forked_process_is_a_child_with_the_descriptors_and_session_it_was_given(
    tmp_path: Path,
) -> None:
    command = [*INTERPRETER, "cache-node", "--listen", "127.0.0.1:0"]
    with sockd_template.start(
        command,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it serves, so it is what it was to become
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        files = {int(fd): os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")}
        session = os.getsid(process.pid)
        directory = os.readlink(f"/proc/{process.pid}/cwd")
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    assert int(status["PPid"]) == os.getpid()
    assert files[0] == "/dev/null" and files[1] == files[2] and files[1].startswith("pipe:")
    assert session == process.pid and directory == str(tmp_path)
    assert "tests.support.sockd_template" not in "".join(files.values())


def test_a_process_with_variables_read_before_its_first_line_gets_an_interpreter() -> None:
    for env in ({"PYTHONVERBOSE": ""}, {"LD_PRELOAD": ""}):
        with sockd_template.start(
            [*INTERPRETER, "--version"], env={**os.environ, **env}, stdout=subprocess.PIPE
        ) as process:
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        assert words[:1] in ([sys.executable.encode()], [b""]) and b"tests.support.sockd_template" not in words
