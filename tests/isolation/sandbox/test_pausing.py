"""Pausing and unpausing: no CPU, less memory reserved, all of it back; and spares that end while they wait."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from sockd.base.errors import NoCapacity, SandboxDied
from sockd.isolation.sandbox.lifecycle import BadTransition, State
from sockd.isolation.sandbox.process import PAUSED_SLACK_BYTES
from tests.support.harness import MB, Harness, Running

pytestmark = pytest.mark.root

SPINNER = """
import threading
def spin():
    while True: pass
def handler(event):
    if event == "spin": threading.Thread(target=spin, daemon=True).start()
    return event
"""
ECHO = "def handler(event): return event\n"


def cpu_ticks(pid: int) -> int:
    """User and system time of a process, in ticks (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def pause(running: Running) -> None:
    running.harness.call(running.sandbox.pause)


def unpause(running: Running) -> None:
    running.harness.run(running.sandbox.unpause())


def test_a_paused_sandbox_uses_no_cpu_and_goes_on_where_it_was(harness: Harness) -> None:
    running = harness.start(SPINNER)
    assert running.answer("spin") == "spin"
    pause(running)
    before = cpu_ticks(running.pid)
    other = harness.start(
        "import time\ndef handler(event):\n    end = time.monotonic() + 0.1\n    while time.monotonic() < end: pass\n"
    )
    other.answer()
    assert cpu_ticks(running.pid) - before <= 1  # the freeze takes some microseconds
    unpause(running)
    assert running.answer("on") == "on"


def test_a_paused_sandbox_reserves_what_it_uses_and_gets_the_rest_back(harness: Harness) -> None:
    running = harness.start(ECHO, memory_bytes=256 * MB)
    running.answer()
    assert harness.budget.used == 256 * MB
    pause(running)
    sandbox = running.sandbox
    most_bytes = sandbox.process.cgroup.memory_bytes() + 2 * PAUSED_SLACK_BYTES
    assert harness.budget.used == sandbox.reserved_bytes <= most_bytes
    unpause(running)
    assert harness.budget.used == 256 * MB
    take = "def handler(event): return len(bytearray(180 << 20))\n"
    assert running.answer(1) == 1
    assert harness.answer(take, memory_bytes=256 * MB) == 180 << 20


def test_unpausing_waits_for_memory_and_keeps_what_it_waited_for(harness: Harness) -> None:
    running = harness.start(ECHO, memory_bytes=128 * MB)
    running.answer()
    pause(running)

    async def compete() -> None:
        rest = await harness.budget.reserve(harness.budget.free, deadline_s=1)
        unpausing = asyncio.create_task(running.sandbox.unpause())
        await asyncio.sleep(0)
        thief = asyncio.create_task(harness.budget.reserve(harness.budget.total - 128 * MB, deadline_s=5))
        await asyncio.sleep(0)
        assert running.sandbox.lifecycle.state is State.PAUSED
        rest.close()
        await unpausing
        assert running.sandbox.reserved_bytes == 128 * MB
        (await thief).close()

    harness.run(compete())
    assert running.answer(1) == 1


def test_without_memory_it_stays_paused(harness: Harness) -> None:
    program = harness.program(ECHO, memory_bytes=128 * MB)
    running = harness.start(program)
    running.answer()
    pause(running)

    async def fail() -> None:
        rest = await harness.budget.reserve(harness.budget.free, deadline_s=1)
        with pytest.raises(NoCapacity):
            await running.sandbox.unpause()
        rest.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "timeout_s", 0.05)  # for the wait alone: no answer need come so soon
        harness.run(fail())
    assert running.sandbox.lifecycle.state is State.PAUSED
    unpause(running)
    assert running.answer(1) == 1


def test_destroyed_before_it_is_unpaused_it_says_so(harness: Harness) -> None:
    running = harness.start(ECHO)
    running.answer()
    pause(running)
    running.destroy()
    with pytest.raises(SandboxDied):
        unpause(running)
    harness.settle()
    assert harness.budget.used == 0


def test_destroyed_while_it_waits_for_memory_it_says_so_and_keeps_none(harness: Harness) -> None:
    running = harness.start(ECHO, memory_bytes=128 * MB)
    running.answer()
    pause(running)

    async def destroy_meanwhile() -> None:
        rest = await harness.budget.reserve(harness.budget.free, deadline_s=1)
        unpausing = asyncio.create_task(running.sandbox.unpause())
        await asyncio.sleep(0)
        running.sandbox.destroy()
        rest.close()
        with pytest.raises(SandboxDied):
            await unpausing

    harness.run(destroy_meanwhile())
    harness.settle()
    assert harness.budget.used == 0


def test_a_paused_sandbox_dies_when_it_is_destroyed(harness: Harness) -> None:
    running = harness.start(ECHO)
    running.answer()
    pause(running)
    pid = running.pid
    running.destroy()
    harness.settle()
    assert not Path(f"/proc/{pid}").exists()


def test_only_what_is_idle_is_paused(harness: Harness) -> None:
    running = harness.start(ECHO)
    with pytest.raises(BadTransition):
        pause(running)
    running.answer()
    pause(running)
    with pytest.raises(BadTransition):
        pause(running)
    with pytest.raises(BadTransition):
        running.request()
    unpause(running)
    assert running.answer(1) == 1


def test_a_spare_that_dies_while_it_waits_is_dead_at_once(harness: Harness) -> None:
    running = harness.start(ECHO, spare=True)
    assert running.sandbox.lifecycle.state is State.PRIMED
    died = harness.loop.create_future()
    running.sandbox.on_death = died.set_result
    os.kill(running.pid, signal.SIGKILL)
    harness.run(asyncio.wait_for(died, 5))
    assert running.dead
