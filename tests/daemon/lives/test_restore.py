"""`sockd restore` of what `sockd backup` has made: with and without packages and images, and what it refuses."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.abuse.managing import cli
from tests.daemon.images.test_images import CONFIG, app, deploy, upload
from tests.daemon.running import RunningDaemon
from tests.support.images.image_layouts import python_files, write_layout
from tests.support.servers.package_index import PackageIndex, wheel

KILLED_AT_EVENTS = """
import os, sys
def kill(event, given):
    if event == "sqlite3.connect" and "events.sqlite" in str(given):
        os.kill(os.getpid(), 9)
sys.addaudithook(kill)
from sockd.client.cli.main import main
main()
"""
"""A `sockd` that SIGKILL ends when it has copied the registry and opens the events."""

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]


class Host:
    """One host: workers on a state directory, and the commands of its administrator."""

    def __init__(self, path: Path, index: PackageIndex) -> None:
        self.path = path
        self.state = path / "state"
        self.daemons: list[RunningDaemon] = []
        self.settings = ""
        self._index = f'[packages]\nindex_url = "{index.url}"\n'

    def up(self) -> RunningDaemon:
        self.daemons.append(RunningDaemon.start(self.state, self._index + self.settings))
        return self.daemons[-1]

    def run(self, *arguments: str) -> str:
        """What a command says, on stdout and stderr. Raises: AssertionError, if it fails."""
        done = cli(*arguments, "--state-dir", str(self.state), home=self.path)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def refusal(self, *arguments: str) -> str:
        done = cli(*arguments, "--state-dir", str(self.state), home=self.path)
        assert done.returncode in (1, 2), done.stdout
        return done.stderr


@pytest.fixture
def host(tmp_path: Path, index: PackageIndex) -> Iterator[Host]:
    host = Host(tmp_path, index)
    yield host
    for daemon in reversed(host.daemons):
        daemon.close()


def filled(host: Host, index: PackageIndex) -> RunningDaemon:
    """A worker with a function with packages and one in an uploaded image."""
    index.add(wheel("lost", "1.0", {"lost.py": "N = 5"}))
    write_layout(host.path / "layout", [python_files().tar(), app("1")], CONFIG)
    daemon = host.up()
    daemon.deploy("packages", {"f.py": "import lost\ndef f(event): return lost.N", "requirements.txt": "lost"})
    deploy(daemon, "imaged", upload(daemon, host.path / "layout"), timeout_s=30)
    assert daemon.call("imaged")["version"] == "1"
    return daemon


def test_a_backup_without_images_names_them_and_so_does_its_restore(host: Host, index: PackageIndex) -> None:
    daemon, copy = filled(host, index), host.path / "copy"
    said = host.run("backup", str(copy))
    assert "warning: 1 image of functions not in the copy (--images includes them)" in said
    assert "sockd images add" in said and "(imaged)" in said
    assert daemon.terminate() == 0
    shutil.rmtree(host.state)
    said = host.run("restore", str(copy))
    assert "2 functions restored" in said and "the worker installs them when it starts" in said
    assert "images that are not in the backup, uploaded" in said and "(imaged)" in said
    again = host.up()
    assert {each["name"] for each in again.manage("GET", "/functions").json} == {"packages", "imaged"}
    assert again.call("packages") == 5
    answer = again.run("imaged")
    assert (answer.status, answer.json["errorType"]) == (503, "Images.Lost") and "sockd images add" in str(answer.json)
    upload(again, host.path / "layout")
    assert again.call("imaged")["version"] == "1"
    assert again.terminate() == 0


def test_a_backup_with_images_and_packages_needs_nothing_else(host: Host, index: PackageIndex) -> None:
    daemon, copy = filled(host, index), host.path / "copy"
    assert "warning" not in host.run("backup", str(copy), "--images", "--packages")
    assert daemon.terminate() == 0
    shutil.rmtree(host.state)
    host.state = host.path / "elsewhere"
    index.files = {}
    said = host.run("restore", str(copy))
    assert "not in the backup" not in said
    again = host.up()
    assert {each["name"]: each["state"] for each in again.manage("GET", "/functions").json} == {
        "packages": "ready",
        "imaged": "ready",
    }
    assert again.call("packages") == 5 and again.call("imaged")["version"] == "1"
    assert again.terminate() == 0


def test_a_backup_of_a_worker_with_a_store_elsewhere_needs_no_images(host: Host, index: PackageIndex) -> None:
    (host.path / "store").mkdir()
    host.settings = f'[images]\nstore = "{host.path / "store"}"\n'
    daemon, copy = filled(host, index), host.path / "copy"
    assert "warning" not in host.run("backup", str(copy))
    assert not (copy / "chunks").exists() and (copy / "images.key").exists()
    assert daemon.terminate() == 0
    shutil.rmtree(host.state)
    assert "images" not in host.run("restore", str(copy))
    again = host.up()
    assert again.call("imaged")["version"] == "1"
    assert again.terminate() == 0


def test_a_restore_replaces_no_state_unasked_and_none_of_a_running_worker(host: Host) -> None:
    daemon, copy = host.up(), host.path / "copy"
    daemon.deploy("old", "def f(event): return 1")
    host.run("backup", str(copy))
    daemon.deploy("new", "def f(event): return 2")
    said = host.refusal("restore", str(copy), "--replace")
    assert f"its pid is {daemon.pid}" in said and daemon.call("new") == 2
    assert daemon.terminate() == 0
    assert "add --replace" in host.refusal("restore", str(copy))
    assert "the state that was there is in" in host.run("restore", str(copy), "--replace")
    for _ in range(3):  # some in one second
        host.run("restore", str(copy), "--replace")
    kept, *others = sorted(host.path.glob("state.old-*"))
    assert len(others) == 3
    assert (kept / "registry.sqlite").exists() and host.state.stat().st_mode & 0o777 == 0o711
    again = host.up()
    assert [each["name"] for each in again.manage("GET", "/functions").json] == ["old"] and again.call("old") == 1
    assert again.terminate() == 0


def test_what_is_no_backup_or_is_damaged_is_not_restored(host: Host) -> None:
    (host.path / "empty").mkdir()
    assert "is not a backup" in host.refusal("restore", str(host.path / "empty"))
    (host.path / "empty" / "registry.sqlite").write_bytes(b"SQLite format 3\0" + bytes(4096))
    assert "is damaged" in host.refusal("restore", str(host.path / "empty"))
    assert not host.state.exists() and not list(host.path.glob(".state*"))


def test_an_interrupted_backup_is_not_restored_and_the_next_one_replaces_it(host: Host) -> None:
    daemon, copy, part = host.up(), host.path / "copy", host.path / "copy.part"
    daemon.deploy("f", "def f(event): return 1")
    command = [sys.executable, "-c", KILLED_AT_EVENTS, "backup", str(copy), "--state-dir", str(host.state)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert (part / "registry.sqlite").exists() and not copy.exists()
    elsewhere = ("--state-dir", str(host.path / "elsewhere"))
    assert f"{part} is not complete" in cli("restore", str(part), *elsewhere, home=host.path).stderr
    host.run("backup", str(copy))
    assert copy.exists() and not part.exists()
    part.mkdir()
    (part / "mine").touch()
    shutil.rmtree(copy)
    assert "is no interrupted backup" in host.refusal("backup", str(copy)) and (part / "mine").exists()
    assert daemon.terminate() == 0


def test_a_restore_names_the_parts_that_a_backup_has_lost(host: Host) -> None:
    daemon, copy = host.up(), host.path / "copy"
    daemon.deploy("f", "def f(event): return 1", env={"A": "1"})
    host.run("backup", str(copy))
    assert daemon.terminate() == 0
    assert "lost" not in host.run("restore", str(copy), "--replace") and not (host.state / "backup.json").exists()
    shutil.rmtree(copy / "code")
    (copy / "secret.key").unlink()
    host.state = host.path / "second"
    said = host.run("restore", str(copy))
    assert "has lost code, secret.key since it was made" in said and "[secrets] key_file" not in said
    assert "is not in the backup: code/" in said and "(f); deploy" in said
    (copy / "backup.json").unlink()
    host.state = host.path / "third"
    said = host.run("restore", str(copy))
    assert "no list of its parts" in said and "1 function restored" in said and "is not in the backup: code/" in said


def test_no_backup_is_written_into_the_state_and_no_state_into_a_backup(host: Host) -> None:
    daemon, copy = host.up(), host.path / "copy"
    host.run("backup", str(copy))
    assert "is in the state directory" in host.refusal("backup", str(host.state / "copy"))
    assert not (host.state / "copy").exists() and daemon.terminate() == 0
    for state in (copy, copy / "sub"):
        done = cli("restore", str(copy), "--replace", "--state-dir", str(state), home=host.path)
        assert done.returncode == 2 and "is in the backup itself" in done.stderr
    assert not (copy / "sub").exists()


SERVICE = {
    "server.py": "import http.server as web, lost, os\nweb.test(web.SimpleHTTPRequestHandler, port=int(os.environ['PORT']))",
    "requirements.txt": "lost",
    "sockd.toml": """
        kind = "service"
        command = ["/usr/bin/python3", "server.py"]
        network = "none"
        service = { port = 8080, min = 1 }
    """,
}
"""A server that imports a package."""


@pytest.mark.parametrize("packages", [True, False])
def test_a_service_that_always_runs_runs_after_a_restore_without_a_request(
    host: Host, index: PackageIndex, packages: bool
) -> None:
    """With its packages from the backup, and when they have been installed anew."""
    index.add(wheel("lost", "1.0", {"lost.py": "N = 5"}))
    daemon, copy = host.up(), host.path / "copy"
    daemon.deploy("kept", SERVICE, check=True)
    host.run("backup", str(copy), *(["--packages"] if packages else []))
    assert daemon.terminate() == 0
    shutil.rmtree(host.state)
    host.run("restore", str(copy))
    again = host.up()
    again.when(lambda: [each["state"] for each in again.manage("GET", "/services").json] == ["running"])
    assert again.request("GET", "/run/kept/").status == 200
    assert again.terminate() == 0
