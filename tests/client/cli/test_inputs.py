"""What a command is to send: however large it is, no more of it is read than could be sent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.cli.serving import Served

GB = 1 << 30


def with_a_gigabyte(served: Served, *arguments: str, stdin: Path) -> subprocess.CompletedProcess[str]:
    """A command that has an address space of 1 GB, a quarter of what it is given."""
    command = ["prlimit", f"--as={GB}", sys.executable, "-m", "sockd", *arguments]
    with stdin.open("rb") as file:
        return subprocess.run(
            command, stdin=file, env=served.environment(), capture_output=True, text=True, timeout=60, check=False
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("invoke", "echo", "-d", "@large"), "large is too large"),
        (("invoke", "echo", "-d", "-"), "the standard input is too large"),
        (("deploy", "large.zip"), "large.zip is too large"),
        (("deploy", "large.wasm", "--name", "echo"), "large.wasm is too large"),
        (("deploy", "directory"), "directory holds 4.0 GB; the limit is"),
        (("secret", "set", "echo", "KEY"), "the standard input is too large"),
        (("packages", "add", "-r", "large"), "large is too large"),
        (("initscript", "check", "large.wasm"), "large.wasm is too large"),
        (("initscript", "run", "large.wasm"), "large.wasm is too large"),
    ],
)
def test_four_gigabytes_are_not_read(
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "directory").mkdir()
    for name in ("large", "large.zip", "large.wasm", "directory/large"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(4 * GB)
    done = with_a_gigabyte(served, *arguments, stdin=tmp_path / "large")
    assert done.returncode in (1, 2) and "MemoryError" not in done.stderr
    assert words in done.stderr, done.stderr


def test_a_pipe_without_an_end_is_read_as_far_as_could_be_sent(served: Served) -> None:
    done = with_a_gigabyte(served, "invoke", "echo", "-d", "-", stdin=Path("/dev/zero"))
    assert done.returncode == 2 and "the standard input is too large" in done.stderr


def test_a_worker_that_takes_more_than_usual_is_asked(served: Served, tmp_path: Path) -> None:
    archive = tmp_path / "f.zip"
    for size, words in ((55 << 20, "sending 57671680 bytes"), (61 << 20, "the limit is 62914560")):
        with archive.open("wb") as file:
            file.truncate(size)
        done = with_a_gigabyte(served, "deploy", str(archive), stdin=Path("/dev/null"))
        assert words in done.stderr, done.stderr
