"""A child that is bounded in memory and time, and whose end is an event."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from sockd.linux.processes.bounded_child import run_bounded

MEMORY_BYTES = 1 << 30


def run(script: str, **bounds: Any) -> int | None:
    return run_bounded(
        [sys.executable, "-I", "-S", "-c", script], **{"memory_bytes": MEMORY_BYTES, "deadline_s": 60.0, **bounds}
    )


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("", 0),
        ("raise SystemExit(3)", 3),
        (f"import os; os.kill(os.getpid(), {signal.SIGUSR1:d})", -signal.SIGUSR1),
    ],
)
def test_a_child_tells_how_it_ended(script: str, status: int) -> None:
    assert run(script) == status


def test_a_child_is_killed_at_the_deadline_and_reaped(tmp_path: Path) -> None:
    script = "import os, signal; os.write(1, str(os.getpid()).encode()); signal.pause()"
    with (tmp_path / "pid").open("wb") as stdout:
        assert run(script, deadline_s=1.0, stdout=stdout.fileno()) is None
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_child_has_no_more_memory_than_it_was_given() -> None:
    script = "import resource; raise SystemExit(resource.getrlimit(resource.RLIMIT_AS) != (128 << 20, 128 << 20))"
    assert run(script, memory_bytes=128 << 20) == 0
    script = "try: bytearray(256 << 20)\nexcept MemoryError: raise SystemExit(7)"
    assert run(script, memory_bytes=128 << 20) == 7


def test_the_wait_for_a_child_never_sleeps_for_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"slept {seconds} s"))
    said = tmp_path / "said"
    with said.open("wb") as stdout:
        assert run("print(1)", stdout=stdout.fileno()) == 0
    assert said.read_text() == "1\n"


def test_what_cannot_be_started_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run_bounded([str(tmp_path / "none")], memory_bytes=MEMORY_BYTES, deadline_s=1.0)
