"""The limits of a function over all its versions: when another of its sandboxes would have memory at once."""

from __future__ import annotations

import asyncio

import pytest

from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.serving.allowance import Allowance
from sockd.functions.serving.start_gate import StartLimits, StartPlace
from sockd.isolation.sandbox.memory_budget import MemoryBudget

pytestmark = pytest.mark.anyio
MB = 1 << 20


def second(allowance: Allowance) -> StartPlace | None:
    """A place for a request that comes while another one runs in a sandbox that has initialized."""
    assert allowance.admission.try_enter() and allowance.admission.try_enter()
    return allowance.starts.try_start()


@pytest.mark.parametrize(
    ("free_mb", "idle_mb", "reserved_mb", "begins"),
    [(100, 0, 0, True), (99, 0, 0, False), (40, 60, 0, True), (40, 59, 0, False), (100, 0, 100, True)],
)
async def test_a_second_sandbox_begins_where_memory_is_free_evictable_or_the_functions_own(
    free_mb: int, idle_mb: int, reserved_mb: int, begins: bool
) -> None:
    limits = StartLimits(2, can_evict=lambda size: size <= idle_mb * MB)
    config = FunctionConfig(memory_mb=100, reserved_memory_mb=reserved_mb)
    allowance = Allowance("f", config, MemoryBudget(free_mb * MB), start_limits=limits)
    assert (second(allowance) is not None) == begins
    allowance.close()


async def test_memory_that_others_wait_for_is_not_free() -> None:
    budget = MemoryBudget(150 * MB)
    allowance = Allowance("f", FunctionConfig(memory_mb=100), budget, start_limits=StartLimits(2))
    waiting = asyncio.ensure_future(budget.reserve(120 * MB, deadline_s=10))
    held = budget.reserve_nowait(50 * MB)
    assert held is not None
    await asyncio.sleep(0)
    assert budget.contended and second(allowance) is None
    waiting.cancel()
    await asyncio.wait([waiting])
    held.close()
    allowance.close()
