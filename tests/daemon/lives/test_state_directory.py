"""The state directory: one daemon at a time, which puts up with what was lost or damaged and shows its secrets to root only."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.daemon.running import RunningDaemon, Start
from tests.support.servers.package_index import PackageIndex, wheel


def test_a_second_daemon_on_the_directory_refuses_with_the_pid_of_the_first(start: Start, tmp_path: Path) -> None:
    first = start()
    first.deploy("mine", "def f(event): return 1")
    first.call("mine")
    (tmp_path / "link").symlink_to(first.state)
    for state in (first.state, tmp_path / "link"):
        second = RunningDaemon.launch(state)
        try:
            assert second.wait() not in (0, None)
            assert f"pid {first.pid}" in "\n".join(second.lines)
        finally:
            second.end_reading()
    assert first.call("mine") == 1
    assert first.terminate() == 0


def test_daemons_on_two_directories_do_not_know_of_each_other(start: Start, tmp_path: Path) -> None:
    first = start()
    other = RunningDaemon.start(tmp_path / "other")
    try:
        first.deploy("here", "def f(event): return 'first'")
        other.deploy("here", "def f(event): return 'other'")
        assert (first.call("here"), other.call("here")) == ("first", "other")
        first.kill()
        assert other.call("here") == "other"
        assert start().call("here") == "first"
        assert other.call("here") == "other"
    finally:
        other.close()


def test_a_damaged_record_of_what_was_learned_is_dropped(start: Start) -> None:
    daemon = start()
    daemon.deploy("plain", "def f(event): return 1")
    daemon.close()
    (daemon.state / "learned.json").write_text('{"format": 1, "imports": ')
    again = start()
    assert again.call("plain") == 1
    assert any("starting without what was learned" in line for line in again.lines)


def test_packages_that_were_lost_are_installed_again_when_they_are_asked_for(start: Start, index: PackageIndex) -> None:
    index.add(wheel("lost", "1.0", {"lost.py": "N = 5"}))
    daemon = start()
    daemon.deploy("needs", {"f.py": "import lost\ndef f(event): return lost.N", "requirements.txt": "lost"})
    assert daemon.call("needs") == 5
    key = daemon.packages()["lost==1.0"]["key"]
    daemon.close()
    shutil.rmtree(daemon.state / "store" / "packages" / key)
    (daemon.state / "store" / "packages" / ".meta" / f"{key}.json").unlink()
    again = start()
    assert again.call("needs") == 5
    assert "lost==1.0" in again.packages()


def test_the_state_directory_gives_its_secrets_to_root_only(start: Start) -> None:
    daemon = start()
    daemon.deploy("secret", "def f(event): return 1", env={"KEY": "hush"})
    for name in ("sockd.sock", "registry.sqlite", "tmp"):
        assert (daemon.state / name).stat().st_mode & 0o077 == 0, name
    for path in daemon.state.rglob("*"):
        if path.is_file() and path.stat().st_mode & 0o077:
            assert b"hush" not in path.read_bytes(), path
