"""A request of PM QoS is the whole machine's while it stands, and ends with the descriptor, or with who held it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sockd.kernel.cpu_latency import ANY_US, DEVICE, CpuLatency

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not Path(DEVICE).exists(), reason="a kernel without CONFIG_CPU_IDLE's PM QoS"),
]

HOLD = """
import sys
from sockd.kernel.cpu_latency import CpuLatency
latency = CpuLatency.open()
latency.forbid()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def latency() -> Iterator[CpuLatency]:
    latency = CpuLatency.open()
    yield latency
    latency.close()


def test_while_one_forbids_nobody_may_sleep(latency: CpuLatency) -> None:
    other = CpuLatency.open()
    latency.forbid()
    assert latency.allowed_us() == other.allowed_us() == 0
    other.allow()
    assert latency.allowed_us() == 0
    other.close()
    other.close()


@pytest.mark.alone
def test_what_was_forbidden_is_allowed_again(latency: CpuLatency) -> None:
    assert latency.allowed_us() == ANY_US
    latency.forbid()
    latency.allow()
    assert latency.allowed_us() == ANY_US
    other = CpuLatency.open()
    other.forbid()
    other.close()
    assert latency.allowed_us() == ANY_US


@pytest.mark.alone
def test_the_request_of_a_process_that_is_killed_ends_with_it(latency: CpuLatency) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert latency.allowed_us() == 0
        holder.kill()
        holder.wait()
    assert latency.allowed_us() == ANY_US


def test_what_we_start_does_not_get_it(latency: CpuLatency) -> None:
    assert not os.get_inheritable(latency._fd)
