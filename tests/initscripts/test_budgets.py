"""Every way for a guest to fail, with a real module each: a typed outcome, the thread free again, nothing left behind."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sockd_initscripts.engine.calls import Input
from sockd_initscripts.engine.guest_cpu import SLOW_NS, TICK_S
from sockd_initscripts.limits import Budget, EngineLimits
from tests.initscripts.guests import LOOP, module, wasm
from tests.initscripts.rooms import Room, room

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
GUESTS = 6
WAIT = "(drop (call $recv_msg (i64.const 1) (i32.const 1024)))"


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Room]:
    async with room(tmp_path) as made:
        yield made
        assert made.engine.busy == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("unreachable", "unreachable"),
        ("(drop (i32.div_s (i32.const 1) (local.get $a)))", "integer division by zero"),
        ("(drop (i32.trunc_f32_s (f32.const nan)))", "bad conversion to integer"),
        ("(drop (i32.load (i32.const 65535)))", "memory out of bounds"),
        ("(drop (i32.load (i32.const -1)))", "memory out of bounds"),
        ("(call_indirect (i32.const 0))", "indirect call to null"),
        ("(call_indirect (i32.const 9))", "table out of bounds"),
        ("(call $deeper)", "stack overflow"),
    ],
)
async def test_a_trap_says_which(here: Room, body: str, message: str) -> None:
    extra = "(table 1 funcref) (func $deeper (call $deeper))"
    report = (await here.run(module(body, extra=extra))).report
    assert (report.outcome, report.message) == ("trap", message)


async def test_data_out_of_memory(here: Room) -> None:
    report = (await here.run(module("", extra='(data (i32.const 65536) "x")'))).report
    assert (report.outcome, report.message) == ("trap", "memory out of bounds")


async def test_an_endless_loop_ends_at_its_deadline(here: Room) -> None:
    before = time.monotonic()
    ran = await here.run(module(LOOP), budget=Budget(deadline_s=0.05))
    assert (ran.report.outcome, ran.app.said[-1]["outcome"]) == ("deadline", "deadline")
    assert time.monotonic() - before >= 0.05


async def test_a_wait_ends_at_its_deadline(here: Room) -> None:
    assert (await here.run(module(WAIT), budget=Budget(deadline_s=0.05))).report.outcome == "deadline"


async def test_a_guest_that_calls_without_end_ends_at_its_deadline(here: Room) -> None:
    body = "(loop $again (drop (call $now_ns)) (br $again))"
    assert (await here.run(module(body), budget=Budget(deadline_s=0.05))).report.outcome == "deadline"


async def test_a_guest_that_ignores_the_end_of_its_waits_is_stopped_all_the_same(here: Room) -> None:
    body = f"(loop $again {WAIT} (br $again))"
    assert (await here.run(module(body), budget=Budget(deadline_s=0.05))).report.outcome == "deadline"


async def test_a_memory_bomb_gets_no_more_than_its_budget(here: Room) -> None:
    grow = "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))"
    budget = Budget(memory_bytes=4 * MIB)
    ran = await here.run(module(grow + "(call $note (memory.size))"), budget=budget)
    assert (ran.report.outcome, ran.app.notes) == ("exit", [49])
    report = (await here.run(module(grow + "unreachable"), budget=budget)).report
    assert (report.outcome, report.message) == ("memory", f"{49 * 65536} of {4 * MIB} bytes in use at the trap")


async def test_a_module_that_begins_with_more_memory_than_its_budget(here: Room) -> None:
    report = (await here.run(module("", memory="65"), budget=Budget(memory_bytes=4 * MIB))).report
    assert (report.outcome, report.started_ns) == ("memory", 0)


async def test_tables_are_bounded(here: Room) -> None:
    body = "(call $note (table.grow 0 (ref.null func) (i32.const 1000000)))"
    assert (await here.run(module(body, extra="(table 1 funcref)"))).app.notes == [-1]
    report = (await here.run(module("", extra="(table 1000000 funcref)"))).report
    assert report.outcome == "trap"


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"x" * 1000, wasm("(module)")])
async def test_what_is_no_compiled_file(here: Room, content: bytes, tmp_path: Path) -> None:
    function = here.define(module(""))
    (tmp_path / f"{function}.cwasm").write_bytes(content)
    ran = await here.finish(*here.start(function))
    assert ran.report.outcome == "bad_module"
    assert "not of this version's own compile" in ran.report.message


async def test_a_compiled_file_that_is_gone(here: Room, tmp_path: Path) -> None:
    function = here.define(module(""))
    (tmp_path / f"{function}.cwasm").unlink()
    assert (await here.finish(*here.start(function))).report.outcome == "bad_module"


async def test_a_bug_in_a_host_function_ends_the_guest_only(
    here: Room, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> bytes:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Input, "read", broken)
    body = "(drop (call $input_read (i32.const 0) (i32.const 0) (i32.const 1)))"
    report = (await here.run(module(body))).report
    assert (report.outcome, report.message) == ("trap", "engine: a bug")
    assert "RuntimeError" in capfd.readouterr().err


async def test_many_failures_leave_the_engine_as_it_was(here: Room) -> None:
    bodies = ("unreachable", LOOP, WAIT, "(call $exit (i32.const 1))", "(call $abort_launch (i32.const 1) @why)")
    soon = Budget(deadline_s=0.05)
    functions = [
        here.define(module(body, why="x"), budget=soon if body in (LOOP, WAIT) else Budget()) for body in bodies
    ]
    for _ in range(5):
        runs = [here.start(function) for function in functions * 3]
        rans = await asyncio.gather(*(here.finish(*run) for run in runs))
        assert [ran.report.outcome for ran in rans] == ["trap", "deadline", "deadline", "exit", "abort"] * 3


@pytest.mark.parametrize("body", [LOOP, "(loop $again (drop (call $now_ns)) (br $again))"])
async def test_a_guest_that_computes_is_stopped_when_it_has_had_its_time_of_a_processor(here: Room, body: str) -> None:
    report = (await here.run(module(body), budget=Budget(cpu_ms=50))).report
    assert (report.outcome, report.message) == ("cpu", "over its 50 ms of processor time")


async def test_waiting_is_not_computing(here: Room) -> None:
    report = (await here.run(module(WAIT), budget=Budget(cpu_ms=20, deadline_s=0.2))).report
    assert report.outcome == "deadline"


async def test_slow_guests_compute_one_at_a_time(here: Room) -> None:
    """Together they have as much of the processors as one, apart from what each has before it is slow."""
    loop = here.define(module(LOOP), budget=Budget())
    before_ns, started_s = time.process_time_ns(), time.monotonic()
    rans = await asyncio.gather(*(here.finish(*here.start(loop)) for _ in range(GUESTS)))
    assert [ran.report.outcome for ran in rans] == ["cpu"] * GUESTS
    spent_s, wall_s = (time.process_time_ns() - before_ns) / 1e9, time.monotonic() - started_s
    quick_s = GUESTS * (SLOW_NS / 1e9 + 2 * TICK_S)
    assert spent_s < wall_s + quick_s


async def test_a_slow_guest_has_the_least_priority_and_the_next_one_the_usual(
    here: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies: list[int] = []

    def read(*_: object) -> bytes:
        policies.append(os.sched_getscheduler(0))
        return b"x"

    monkeypatch.setattr(Input, "read", read)
    body = "(drop (call $input_read (i32.const 0) (i32.const 0) (i32.const 1)))"
    slow = await here.run(module(f"(loop $again {body} (br $again))"), budget=Budget(cpu_ms=50))
    assert slow.report.outcome == "cpu"
    assert policies[0] == os.SCHED_OTHER and os.SCHED_IDLE in policies
    policies.clear()
    for _ in range(2 * EngineLimits().ready_threads):
        await here.run(module(body))
    assert set(policies) == {os.SCHED_OTHER}
