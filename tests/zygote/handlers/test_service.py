"""How soon a service that is starting is found to be ready, and by how many attempts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sockd_zygote.handlers.programs.service import LAST_POLL_S, next_poll_s


def attempts(start_s: float) -> tuple[int, float]:
    """Attempts until one that comes after the start of a program, and how much later that one comes, in seconds."""
    count, now_s = 1, 0.0
    while now_s < start_s:
        now_s += next_poll_s(now_s)
        count += 1
    return count, now_s - start_s


@pytest.mark.parametrize(("start_s", "most"), [(0.002, 4), (0.02, 25), (0.05, 45), (0.2, 70), (1.0, 115)])
def test_a_start_is_noticed_within_a_twentieth_of_it_by_few_attempts(start_s: float, most: int) -> None:
    count, late_s = attempts(start_s)
    assert count <= most and late_s <= max(0.001, start_s / 20)


def test_a_long_start_is_looked_at_fifty_times_a_second() -> None:
    assert next_poll_s(60.0) == LAST_POLL_S


def test_a_start_imports_no_module_that_takes_milliseconds() -> None:
    code = "import sys; old = set(sys.modules); import sockd_zygote.handlers.programs.service; print(*(set(sys.modules) - old))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert {"threading", "contextlib", "subprocess"}.isdisjoint(done.stdout.split())
