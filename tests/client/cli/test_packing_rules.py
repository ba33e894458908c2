"""What `sockd deploy` packs of a directory, what it leaves out, and what it prints about that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.client.cli.serving import Run, Served


@pytest.fixture
def code(tmp_path: Path) -> Path:
    directory = tmp_path / "shop"
    (directory / "data").mkdir(parents=True)
    (directory / "f.py").write_text("def f(event):\n    return event\n")
    (directory / "data" / "d.csv").write_text("1\n")
    (directory / ".gitignore").write_text("data/\n")
    (directory / ".env").write_text("KEY=1\n")
    return directory


def test_a_secret_is_left_out_loudly_and_the_printed_command_includes_it(run: Run, served: Served, code: Path) -> None:
    done = run("deploy", str(code))
    assert done.returncode == 0, done.stderr
    assert served.worker.deployed["shop"][0] == ["f.py"]
    assert "left out by .gitignore: data/\n" in done.stderr
    command = f"echo '!/.env' >> {code}/.sockdignore"
    assert (
        f"left out, as possible secrets: .env; to pack one: {command}; for variables: sockd secret set" in done.stderr
    )
    (code / ".sockdignore").write_text("!/.env\n")
    done = run("deploy", str(code))
    assert "possible secrets" not in done.stderr
    assert served.worker.deployed["shop"][0] == [".env", "f.py"]


def test_json_names_what_is_left_out(run: Run, code: Path) -> None:
    left_out = json.loads(run("deploy", str(code), "--json").stdout)["left_out"]
    assert {each["path"]: each["reason"] for each in left_out} == {
        ".env": "may be a secret",
        ".gitignore": "version control",
        "data/": ".gitignore line 1: data/",
    }


def test_a_dry_run_lists_both_and_needs_no_worker(run: Run, served: Served, code: Path) -> None:
    served.worker.deployed.pop("shop", None)
    done = run("deploy", str(code), "--dry-run", SOCKD_STATE_DIR="/nowhere")
    assert done.returncode == 0, done.stderr
    assert "f.py    31 B" in done.stdout and ".gitignore line 1: data/" in done.stdout
    assert "1 file, 31 B; nothing was deployed" in done.stdout
    found = json.loads(run("deploy", str(code), "--dry-run", "--json", SOCKD_STATE_DIR="/nowhere").stdout)
    assert found["packed"] == [{"path": "f.py", "size_bytes": 31}] and found["size_bytes"] == 31
    assert "shop" not in served.worker.deployed


def test_a_dry_run_lists_a_directory_that_is_too_large(run: Run, code: Path) -> None:
    with open(code / "model.bin", "wb") as file:
        file.truncate(1 << 30)
    done = run("deploy", str(code), "--dry-run")
    assert done.returncode == 0 and "model.bin  1.0 GB" in done.stdout
    done = run("deploy", str(code))
    assert done.returncode == 1 and "(code.max_code_bytes in the worker's configuration)" in done.stderr


def test_the_limits_are_those_of_the_worker(run: Run, served: Served, code: Path) -> None:
    with open("/dev/urandom", "rb") as random:
        (code / "model.bin").write_bytes(random.read(55 << 20))
    done = run("deploy", str(code))
    # The fake worker's status has 60 MB, and its API 50 MB: that the archive was sent is all that is to be seen.
    assert "sending 57" in done.stderr and "the limit is 52428800 (code.max_zip_bytes)" in done.stderr
    (code / "more.bin").write_bytes((code / "model.bin").read_bytes()[: 10 << 20])
    done = run("deploy", str(code))
    assert "packs to 65 MB; the limit is 60 MB (code.max_zip_bytes in the worker's configuration)" in done.stderr


def test_notes_of_the_worker_stay_and_are_in_the_json(run: Run, code: Path, tmp_path: Path) -> None:
    done = run("deploy", str(code), "--name", "noted")
    assert "note: kept from sockd config and sockd env: memory_mb = 256\n" in done.stderr
    assert json.loads(run("deploy", str(code), "--name", "noted", "--json").stdout)["notes"] == [
        "kept from sockd config and sockd env: memory_mb = 256"
    ]


def test_a_refused_deploy_shows_its_notes_and_the_traceback(run: Run, code: Path) -> None:
    done = run("deploy", str(code), "--name", "noted_and_refused")
    assert done.returncode == 1 and "note: pyproject.toml is not used\n" in done.stderr
    assert "does not start, and requests do not go to it: ImportError: no" in done.stderr
    assert 'why:   File "/var/task/f.py", line 1' in done.stderr
