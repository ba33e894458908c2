"""`sockd cluster haproxy` against a fake worker, and HAProxy's own judgement of its file."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sockd.client.cli.cluster.haproxy import PLACES, haproxy_file, homes
from tests.client.cli.serving import Run, Served


def test_the_proxys_file_has_the_workers_of_the_group_but_those_that_are_gone(run: Run, served: Served) -> None:
    file = run("cluster", "haproxy", "--listen", ":8080").stdout
    assert "    bind :8080\n" in file and "    server w1 127.0.0.1:5000" in file and "w2" not in file


def test_the_proxys_file_has_the_workers_that_are_named(run: Run) -> None:
    file = run("cluster", "haproxy", "b=10.0.0.2:5000", "a=10.0.0.1:5000").stdout
    assert file.endswith("    server a 10.0.0.1:5000 tcp-ut 5s\n    server b 10.0.0.2:5000 tcp-ut 5s\n")
    assert "set-header Host" not in file
    assert run("cluster", "haproxy", "10.0.0.1").returncode == 2


def test_a_worker_that_comes_moves_its_share_of_the_functions_and_no_other() -> None:
    three, four = (
        {place: name for name, places in homes(names).items() for place in places} for names in ("abc", "abcd")
    )
    moved = [place for place, name in four.items() if three[place] != name]
    assert {four[place] for place in moved} == {"d"} and PLACES / 8 < len(moved) < PLACES / 2
    assert sorted(three) == list(range(PLACES))


def test_haproxy_takes_the_file_of_many_workers(tmp_path: Path) -> None:
    check(tmp_path, {f"w{number}": f"10.0.{number}.1:5000" for number in range(200)})


@pytest.mark.parametrize("address", ["127.0.0.1:5000", "10.0.0.1:5000"])
def test_haproxy_takes_the_file(tmp_path: Path, address: str) -> None:
    check(tmp_path, {"w1": address, "w2": "10.0.0.2:5000"})


def check(tmp_path: Path, workers: dict[str, str]) -> None:
    """Have HAProxy judge the file of workers."""
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("needs HAProxy: scripts/install-servers")
    file = tmp_path / "haproxy.cfg"
    file.write_text(haproxy_file(workers, "127.0.0.1:8080"))
    done = subprocess.run([program, "-c", "-f", file], capture_output=True, text=True, check=False)
    assert (done.returncode, "warning" in done.stderr.lower()) == (0, False), done.stderr


def test_a_command_runs_for_each_worker_but_those_that_are_gone(run: Run, served: Served) -> None:
    done = run("cluster", "roll", "--", "sh", "-c", 'echo "$0 at $1"', "{name}", "{host}")
    assert done.stdout.splitlines() == ["w1 at 127.0.0.1", "w1 serves again"], done.stderr


def test_a_command_that_fails_ends_the_upgrade(run: Run, served: Served) -> None:
    done = run("cluster", "roll", "--", "sh", "-c", "exit 3")
    assert done.returncode == 1 and "the command for w1 ended with status 3" in done.stderr
    assert "cannot be run" in run("cluster", "roll", "--", "no-such-program").stderr
