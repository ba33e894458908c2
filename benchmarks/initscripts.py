"""`initscripts`: what the engine costs, and what receiving into shared memory saves.

From the worker's own traces: how long after the arrival of an invocation its initscript runs, and its first RPC is on the
wire. From the client: what an initscript adds to a cold no-op. From inside a function: how long 15 MB take to be in its
hands, as a view of what the engine received, and with one copy more (initscript paper, Fig. 14: 1 ms and 13 ms).

`--paper` measures something else: the initscript paper's figures and tables, its numbers beside ours.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from benchmarks.harness.cold import ColdFunction, cold_config, collector
from benchmarks.harness.functions import Function
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run, in_turns, main
from benchmarks.harness.worker import Worker, running_worker
from benchmarks.initscript_parts.hand_over import hand_over
from benchmarks.initscript_parts.paper import measure as measure_paper
from benchmarks.initscript_parts.scripted import EVENT, READ, Scripted, script_times, scripted


def measure(run: Run) -> Result:
    result = Result("initscripts")
    with scripted() as parts, running_worker(cold_config(spares=0)) as worker, running_worker(cold_config()) as spares:
        result.notes.append(f"the initscript has {parts.script.stat().st_size} bytes")
        for each in (worker, spares):
            parts.deploy(each, Function("plain"), script=False)
            parts.deploy(each, Function("scripted"))
        measure_starts(run, worker, "forked", result)
        measure_starts(run, spares, "spare", result)
        measure_engine(run, worker, parts, result)
        measure_hand_over(run, worker, parts, result)
    return result


def measure_starts(run: Run, worker: Worker, origin: str, result: Result) -> None:
    """A cold no-op with and without an initscript that sends one RPC, in turns."""
    samples: dict[str, list[float]] = {"plain": [], "scripted": []}
    functions = {name: ColdFunction(worker, name, json.dumps(EVENT).encode()) for name in samples}
    turns: dict[str, Callable[[], float]] = {
        name: collector(samples[name], lambda name=name: functions[name].batch(5, gap_s=0.01))  # type: ignore[misc]
        for name in samples
    }
    in_turns(turns, run.pick(40, 10))
    plain = result.add(f"no-op, {origin}", "latency", "ms", samples["plain"])
    with_script = result.add(f"no-op with an initscript, {origin}", "latency", "ms", samples["scripted"])
    result.notes.append(f"{origin}: an initscript beside a no-op costs {with_script.p50 / plain.p50:.2f}x of without")


def measure_engine(run: Run, worker: Worker, parts: Scripted, result: Result) -> None:
    """From the arrival of an invocation to the guest, and to its first RPC on the wire."""
    parts.deploy(worker, Function("reader", READ))
    script_times(worker)
    kept = [script_times(worker) for _ in range(run.pick(60, 15))]
    entered = result.add("module in memory", "arrival to guest", "ms", [guest for guest, _ in kept])
    sent = result.add("module in memory", "arrival to first byte sent", "ms", [wire for _, wire in kept])
    loaded = []
    for number in range(run.pick(20, 5)):
        parts.deploy(worker, Function("reader", READ), again=f"version-{number}")
        loaded.append(script_times(worker)[0])
    stored = result.add("module in the store", "arrival to guest", "ms", loaded)
    result.aim("arrival to guest, module in memory, ms", entered.p50, "<= 1")
    result.aim("arrival to guest, module in the store, ms", stored.p50, "<= 2")
    result.aim("arrival to first RPC on the wire, ms", sent.p50, "<= 1")


def measure_hand_over(run: Run, worker: Worker, parts: Scripted, result: Result) -> None:
    """15 MB in a function's hands: the view, and a copy of it; and 200 MB as a file."""
    found = hand_over(run, worker, parts)
    view = result.add("15 MB, a view of the region", "in the function's hands", "ms", found.python["view"])
    copied = result.add("15 MB, copied out of it", "in the function's hands", "ms", found.python["copy"])
    result.aim("15 MB: copying over the view", copied.p50 / view.p50, ">= 5")
    if not found.in_c:
        result.notes.append("no program in C was measured: cc is not installed")
        return
    view = result.add("15 MB, a view of the region", "in the hands of a program in C", "ms", found.in_c["view"])
    copied = result.add("15 MB, copied out of it", "in the hands of a program in C", "ms", found.in_c["copy"])
    file = result.add("200 MB, a file to write to", "in the hands of a program in C", "ms", found.in_c["file"])
    result.add("200 MB, a file to write to", "after its last byte came to the engine", "ms", found.in_c["exchange"])
    result.aim("15 MB in C: the view, ms", view.p50, "<= 1")
    result.aim("15 MB in C: copying over the view", copied.p50 / view.p50, ">= 10")
    result.aim("200 MB in C: the file, ms", file.p50, "<= 5")


def chosen(arguments: list[str]) -> tuple[Callable[[Run], Result], list[str]]:
    """What is measured, and the other arguments."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--paper", action="store_true")
    known, others = parser.parse_known_args(arguments)
    return measure_paper if known.paper else measure, others


if __name__ == "__main__":
    MEASURE, OTHERS = chosen(sys.argv[1:])
    WORDS = "What the initscript engine costs, and what shared memory saves; --paper: the paper's figures and tables."
    sys.exit(main("initscripts", MEASURE, WORDS, OTHERS))
