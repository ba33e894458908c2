"""`sockd dev` on a real worker: what is saved is served, at once, and no request notices."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.gate import Gate
from tests.daemon.running import REPO, RunningDaemon
from tests.support import sockd_template
from tests.support.servers.package_index import PackageIndex, wheel
from tests.support.threads import in_background

pytestmark = pytest.mark.root

DEADLINE_S = 60.0


class Dev:
    """A `sockd dev --json` that runs; `lines` is what it says."""

    def __init__(self, daemon: RunningDaemon, directory: Path) -> None:
        self.process = sockd_template.start(
            [sys.executable, "-m", "sockd", "dev", str(directory), "--json"],
            cwd=REPO,
            env={**os.environ, "SOCKD_STATE_DIR": str(daemon.state)},
            stdout=subprocess.PIPE,
            text=True,
        )

    def next(self) -> dict[str, Any]:
        """The next line; it ends with the process, which the test's own deadline bounds."""
        assert self.process.stdout is not None
        line: dict[str, Any] = json.loads(self.process.stdout.readline())
        return line

    def close(self) -> int:
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(DEADLINE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


def save(file: Path, text: str) -> None:
    """As editors do: a file of another name, then renamed."""
    new = file.with_name(f".{file.name}.swp")
    new.write_text(text)
    new.replace(file)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "watched"
    directory.mkdir()
    (directory / "handler.py").write_text("def handler(event): return 0\n")
    return directory


@pytest.fixture
def dev(daemon: RunningDaemon, directory: Path) -> Iterator[Dev]:
    dev = Dev(daemon, directory)
    try:
        assert dev.next()["changed"] == []
        assert dev.next()["watching"] == str(directory)
        yield dev
    finally:
        status = dev.close()
    assert status == 0


def test_what_is_saved_is_served_and_no_request_fails(daemon: RunningDaemon, directory: Path, dev: Dev) -> None:
    served: list[int] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            served.append(daemon.call("watched"))

    with in_background(ask) as asked:
        try:
            for number in range(1, 21):
                save(directory / "handler.py", f"def handler(event): return {number}\n")
                said = dev.next()
                assert said["changed"] == ["handler.py"] and said["version"] == number + 1
                assert daemon.call("watched") == number
        finally:
            done.set()
        asked()
    assert served == sorted(served) and len(served) > 20


def test_what_does_not_compile_is_reported_and_not_deployed(daemon: RunningDaemon, directory: Path, dev: Dev) -> None:
    save(directory / "handler.py", "def handler(event) return 1\n")
    said = dev.next()
    assert "version" not in said and "SyntaxError: expected ':'" in said["error"] and "handler.py" in said["error"]
    save(directory / "handler.py", "def handler(event): return 0\n")
    save(directory / "sockd.toml", "memory = 64\n")
    assert "did you mean 'memory_mb'" in dev.next()["error"]
    assert daemon.call("watched") in (0, 20)
    (directory / "sockd.toml").unlink()
    save(directory / "handler.py", "def handler(event): return 'mended'\n")
    while dev.next().get("version") is None:
        pass
    daemon.when(lambda: daemon.call("watched") == "mended" or None)


def test_packages_are_resolved_when_the_requirements_change(
    daemon: RunningDaemon, directory: Path, index: PackageIndex, dev: Dev
) -> None:
    code = "import thing\ndef handler(event): return [thing.VERSION, {}]\n"
    index.add(wheel("thing", "1.0", {"thing.py": "VERSION = 1\n"}))
    (directory / "requirements.txt").write_text("thing\n")
    dev.next()
    save(directory / "handler.py", code.format(1))
    dev.next()
    assert daemon.call("watched") == [1, 1]
    index.add(wheel("thing", "2.0", {"thing.py": "VERSION = 2\n"}))
    save(directory / "handler.py", code.format(2))
    dev.next()
    assert daemon.call("watched") == [1, 2], "the versions stay"
    save(directory / "requirements.txt", "thing>=1.0\n")
    dev.next()
    assert daemon.call("watched") == [2, 2]


@pytest.mark.parametrize("template", ["hello", "sebs", "wsgi", "cron"])
def test_a_new_project_deploys_as_it_is(daemon: RunningDaemon, tmp_path: Path, template: str) -> None:
    project = tmp_path / f"made-{template}"
    env = {**os.environ, "SOCKD_STATE_DIR": str(daemon.state), "PYTHONPATH": str(REPO)}
    sockd = (sys.executable, "-m", "sockd")
    for command in (("init", str(project), "--template", template), ("deploy", str(project))):
        subprocess.run([*sockd, *command], env=env, check=True, capture_output=True, timeout=15)
    assert daemon.run(project.name, {}).status == 200
    again = subprocess.run([*sockd, "init", str(project)], env=env, capture_output=True, text=True, timeout=15)
    assert again.returncode == 2 and "is not empty" in again.stderr


def test_what_the_function_prints_is_shown_line_by_line(daemon: RunningDaemon, directory: Path, gate: Gate) -> None:
    code = "from gate import wait\ndef handler(event):\n    print('before')\n    wait(event)\n    raise KeyError('missing')\n"
    (directory / "gate.py").write_text(Gate.CODE)
    (directory / "handler.py").write_text(code)
    with subprocess.Popen(
        [sys.executable, "-m", "sockd", "dev", str(directory)],
        cwd=REPO,
        env={**os.environ, "SOCKD_STATE_DIR": str(daemon.state)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as dev:
        assert dev.stdout is not None and dev.stderr is not None
        try:
            assert "version" in dev.stdout.readline()
            assert "watching" in dev.stderr.readline()
            with in_background(lambda: daemon.run("watched", gate.port)) as answer:
                gate.arrived()
                assert dev.stdout.readline().endswith(" before\n"), "while it runs"
                gate.open()
                request_id = answer().headers["x-amzn-requestid"]
            line = dev.stdout.readline()
            assert line.endswith("[ERROR] KeyError: 'missing'\n") and f" {request_id[:8]} " in line
        finally:
            dev.send_signal(signal.SIGINT)
            dev.communicate(timeout=DEADLINE_S)
    assert dev.returncode == 0


def test_output_is_shown_across_a_restart_of_the_worker(daemon: RunningDaemon, directory: Path) -> None:
    (directory / "handler.py").write_text("def handler(event): print('said', event)\n")
    dev = sockd_template.start(
        [sys.executable, "-m", "sockd", "dev", str(directory)],
        cwd=REPO,
        env={**os.environ, "SOCKD_STATE_DIR": str(daemon.state)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert dev.stdout is not None
    try:
        for restarts in (False, True):
            while not restarts and "watching" not in dev.stdout.readline():
                pass
            if restarts:
                mark = daemon.mark
                dev.send_signal(signal.SIGSTOP)  # it is late: the function prints before it has asked the new worker
                daemon.signal(signal.SIGUSR2)
                daemon.wait_line("listening on", since=mark)
            assert daemon.run("watched", restarts).status == 200
            dev.send_signal(signal.SIGCONT)
            while f"said {restarts}" not in dev.stdout.readline():
                pass
    finally:
        dev.send_signal(signal.SIGINT)
        dev.wait(DEADLINE_S)
        dev.stdout.close()
