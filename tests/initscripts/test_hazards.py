"""What is dangerous about running WebAssembly in threads of a Python process: each hazard that was met, and its guard."""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest
import wasmtime

from sockd_initscripts.engine import modules
from sockd_initscripts.engine.compiled_file import open_seal
from sockd_initscripts.engine.signals import LoopCalls
from sockd_initscripts.engine.threads import STACK_BYTES, GuestThreads
from sockd_initscripts.errors import BadModule
from sockd_initscripts.limits import Budget, EngineLimits
from tests.initscripts.guests import LOOP, TIRELESS, module
from tests.initscripts.rooms import room

ROOT = Path(__file__).parents[2]
GUESTS = 24
ROUNDS = 40


@pytest.mark.anyio
async def test_hazard_1_no_guest_ends_as_another_does(tmp_path: Path) -> None:
    """Exceptions of host functions pass through a global of wasmtime-py and get lost, or reach another thread's guest."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        async with room(tmp_path, limits=EngineLimits(runs=GUESTS)) as here:
            ends = [("exit", "(call $exit (i32.const {0}))"), ("trap", "unreachable"), ("abort", "(call $abort_launch (i32.const {0}) @why)")]  # fmt: skip  # noqa: E501
            functions = [
                (ends[n % 3][0], here.define(module(ends[n % 3][1].format(n), why="x"))) for n in range(GUESTS)
            ]
            for _ in range(ROUNDS):
                runs = [(outcome, *here.start(function)) for outcome, function in functions]
                for number, (outcome, run, app) in enumerate(runs):
                    report = (await here.finish(run, app)).report
                    status = number if outcome != "trap" else 0
                    assert (report.outcome, report.status) == (outcome, status), report
    finally:
        sys.setswitchinterval(before)


FAULTHANDLER = """
import asyncio, faulthandler, pathlib, sys
{first}
from tests.initscripts.guests import module
from tests.initscripts.rooms import room

async def main():
    async with room(pathlib.Path(sys.argv[1])) as here:
        {then}
        ran = await here.run(module("(drop (i32.load (i32.const -1)))"))
        print(ran.report.outcome)

asyncio.run(main())
"""


@pytest.mark.parametrize("first", ["", "faulthandler.enable()"])
def test_hazard_2_a_trap_is_no_crash_whatever_python_does_about_faults(tmp_path: Path, first: str) -> None:
    """faulthandler takes the SIGSEGV that a guest's stray pointer is: it may be enabled before the first engine only.

    Nobody does so afterwards: neither we (this test reads our sources), nor `python -X faulthandler`, which is before."""
    code = FAULTHANDLER.format(first=first, then="")
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "trap\n"), ran.stderr
    ours = [file for file in (ROOT / "initscripts").rglob("*.py") if "faulthandler" in file.read_text()]
    assert ours == []


@pytest.mark.anyio
async def test_hazard_3_recursion_is_a_trap_in_every_guest_thread(tmp_path: Path) -> None:
    """On a small stack a guest's recursion meets the thread's end before wasmtime's limit: SIGSEGV of the process."""
    assert STACK_BYTES >= 4 * modules.WASM_STACK_BYTES
    deep = "(func $deep (param i64 i64 i64 i64) (call $log (i32.const 0) (i32.const 0) (i32.const 0)) (call $deep (local.get 3) (local.get 2) (local.get 1) (local.get 0)))"  # fmt: skip  # noqa: E501
    body = "(call $deep (i64.const 1) (i64.const 2) (i64.const 3) (i64.const 4))"
    async with room(tmp_path, limits=EngineLimits(runs=8, ready_threads=1)) as here:
        function = here.define(module(body, extra=deep), budget=Budget(deadline_s=900, cpu_ms=3_600_000))
        rans = await asyncio.gather(*(here.finish(*here.start(function)) for _ in range(8)))
    assert {(ran.report.outcome, ran.report.message) for ran in rans} == {("trap", "stack overflow")}


@pytest.mark.anyio
async def test_hazard_3_threads_have_their_stack_and_others_keep_theirs() -> None:
    before = threading.stack_size()
    calls = LoopCalls(asyncio.get_running_loop())
    threads = GuestThreads(2, 2, lambda _: False, calls)
    assert threading.stack_size() == before
    await threads.aclose()
    calls.watched.close()


def test_hazard_4_machine_code_that_is_not_ours_or_not_whole_is_not_loaded() -> None:
    """wasmtime loads a file with flipped bits without a word (the first assertion: the day it does not, we may relax)."""
    compiled = modules.compile_module(module("(call $exit (i32.const 7))"))
    code = bytes(wasmtime.Module(modules.machine(), module("(call $exit (i32.const 7))")).serialize())
    place = code.index(b"\xb8", 4096) if b"\xb8" in code[4096:] else 5000
    wasmtime.Module.deserialize(modules.machine(), code[:place] + bytes([code[place] ^ 1]) + code[place + 1 :])
    open_seal(compiled)
    for position in (0, 100, len(compiled) // 2, len(compiled) - 40, len(compiled) - 1):
        flipped = compiled[:position] + bytes([compiled[position] ^ 1]) + compiled[position + 1 :]
        with pytest.raises(BadModule):
            open_seal(flipped)
    with pytest.raises(BadModule):
        open_seal(code)


def test_hazard_5_nothing_that_we_install_replaces_urllib3() -> None:
    """niquests brings urllib3-future, which takes urllib3's place in the environment and makes boto3 slower."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    names = {re.split(r"[\s<>=!\[;~]", dependency)[0].lower() for dependency in asked}
    assert not names & {"niquests", "urllib3-future", "urllib3_future"}
    import urllib3

    assert "future" not in (urllib3.__doc__ or "").lower() and not hasattr(urllib3, "AsyncPoolManager")


@pytest.mark.anyio
async def test_an_epoch_that_is_raised_all_the_time_harms_no_one(tmp_path: Path) -> None:
    """Every kill asks all guests that compute whether they are meant."""
    count = "(loop $more (br_if $more (i32.lt_u (local.tee $b (i32.add (local.get $b) (i32.const 1))) (i32.const 50000000))))"
    async with room(tmp_path) as here:
        worker, app = here.start(here.define(module(count + "(call $exit (i32.const 5))"), budget=TIRELESS))
        loop = here.define(module(LOOP), budget=Budget(deadline_s=0.001))
        killed = 0
        while not worker.done.done() and "end" not in app.ops and killed < 20:
            assert (await here.finish(*here.start(loop))).report.outcome == "deadline"
            killed += 1
        assert (await here.finish(worker, app)).report.status == 5
    assert killed
