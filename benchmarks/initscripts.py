"""`initscripts`: what the engine costs, and what receiving into shared memory saves.

From the worker's own traces: how long after the arrival of an invocation its initscript runs, and its first RPC is on the
wire. From the client: what an initscript adds to a cold no-op. From inside a function: how long 15 MB take to be in its
hands, as a view of what the engine received, and with one copy more (initscript paper, Fig. 14: 1 ms and 13 ms).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.client import Client
from benchmarks.harness.cold import ColdFunction, cold_config, cold_only, collector
from benchmarks.harness.functions import Function
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run, in_turns, main
from benchmarks.harness.worker import REPOSITORY, Worker, sockd, worker
from benchmarks.s3.process import S3Process

BUCKET, SMALL, LARGE = "bench", "small", "large"
LARGE_BYTES = 15_000_000
EVENT = {"bucket": {"bucket": BUCKET, "input": "in"}, "object": {"key": SMALL}}
EXAMPLES = REPOSITORY / "initscripts" / "examples"
READ = """\
import storage


def handler(event):
    return len(storage.download_stream("bench", "in/small"))
"""
HAND_OVER = """\
import time

import storage


def handler(event):
    time.sleep(0.2)  # until all of it has come: what is measured is the handing over
    begun = time.perf_counter_ns()
    data = storage.download_stream("bench", "in/large")
    if event["copy"]:
        data = bytes(data)
    ended = time.perf_counter_ns()
    return {"ns": ended - begun, "bytes": len(data), "last": data[-1]}
"""


def measure(run: Run) -> Result:
    result = Result("initscripts")
    with (
        tempfile.TemporaryDirectory() as scratch,
        S3Process() as s3,
        worker(cold_config(spares=0)) as house,
        worker(cold_config()) as spares,
    ):
        with s3.client() as client:
            client.make_bucket(BUCKET)
            client.put(BUCKET, f"in/{SMALL}", b"x" * 1000)
            client.put(BUCKET, f"in/{LARGE}", bytes(LARGE_BYTES))
        script = Path(scratch) / "thumbnailer.wasm"
        command = [*sockd(), "initscript", "build", str(EXAMPLES / "thumbnailer" / "thumbnailer.c"), "-o", str(script)]
        subprocess.run(command, check=True, capture_output=True, cwd=REPOSITORY)
        result.notes.append(f"the initscript has {script.stat().st_size} bytes")
        env = s3.env()
        for each in (house, spares):
            deploy(each, Function("plain"), Path(scratch) / str(each.port), env)
            deploy(each, Function("scripted"), Path(scratch) / str(each.port), env, script)
        measure_starts(run, house, "forked", result)
        measure_starts(run, spares, "spare", result)
        measure_engine(run, house, script, Path(scratch), env, result)
        measure_hand_over(run, house, script, Path(scratch), env, result)
    return result


def deploy(
    house: Worker, function: Function, parent: Path, env: dict[str, str], script: Path | None = None, again: str = ""
) -> None:
    """Deploy a function that finds S3, with or without an initscript.

    Args:
        again: what makes this version differ from the one before."""
    directory = parent / again / function.name
    if not directory.exists():
        Function(function.name, function.code, settings={"storage": "sockd", "memory_mb": 256}).write(parent / again)
        variables = {**env, "VERSION": again}
        with (directory / "sockd.toml").open("a") as settings:
            settings.write("[env]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in variables.items()))
    options = ("--initscript", str(script)) if script else ()
    house.cli("deploy", str(directory), "--name", function.name, *options)


def measure_starts(run: Run, house: Worker, origin: str, result: Result) -> None:
    """A cold no-op with and without an initscript that sends one RPC, in turns."""
    samples: dict[str, list[float]] = {"plain": [], "scripted": []}
    functions = {name: ColdFunction(house, name, json.dumps(EVENT).encode()) for name in samples}
    turns: dict[str, Callable[[], float]] = {
        name: collector(samples[name], lambda name=name: functions[name].batch(5, gap_s=0.01))  # type: ignore[misc]
        for name in samples
    }
    in_turns(turns, run.pick(40, 10))
    plain = result.add(f"no-op, {origin}", "latency", "ms", samples["plain"])
    scripted = result.add(f"no-op with an initscript, {origin}", "latency", "ms", samples["scripted"])
    result.notes.append(f"{origin}: an initscript beside a no-op costs {scripted.p50 / plain.p50:.2f}x of without")


def measure_engine(run: Run, house: Worker, script: Path, scratch: Path, env: dict[str, str], result: Result) -> None:
    """From the arrival of an invocation to the guest, and to its first RPC on the wire."""
    deploy(house, Function("reader", READ), scratch, env, script)
    script_times(house)
    kept = [script_times(house) for _ in range(run.pick(60, 15))]
    entered = result.add("module in memory", "arrival to guest", "ms", [guest for guest, _ in kept])
    sent = result.add("module in memory", "arrival to first byte sent", "ms", [wire for _, wire in kept])
    loaded = []
    for number in range(run.pick(20, 5)):
        deploy(house, Function("reader", READ), scratch, env, script, again=f"version-{number}")
        loaded.append(script_times(house)[0])
    stored = result.add("module in the store", "arrival to guest", "ms", loaded)
    result.aim("arrival to guest, module in memory, ms", entered.p50, "<= 1")
    result.aim("arrival to guest, module in the store, ms", stored.p50, "<= 2")
    result.aim("arrival to first RPC on the wire, ms", sent.p50, "<= 1")


def script_times(house: Worker) -> tuple[float, float]:
    """(ms to the guest, ms to the first byte sent) of one cold start, after its arrival."""
    with Client(house.host, house.port) as client:
        answer = cold_only(client.invoke("reader", json.dumps(EVENT).encode()))
    trace = house.json("trace", answer.headers["x-amzn-requestid"])
    arrived = trace["arrived_ns"]
    boot = next(span["start_ns"] for span in trace["spans"] if span["name"] == "boot")
    return (boot - arrived) / 1e6, (trace["rpcs"][0]["sent_ns"] - arrived) / 1e6


def measure_hand_over(
    run: Run, house: Worker, script: Path, scratch: Path, env: dict[str, str], result: Result
) -> None:
    """15 MB in a function's hands: the view, and a copy of it."""
    deploy(house, Function("receiver", HAND_OVER), scratch, env, script)
    with Client(house.host, house.port) as client:
        turns = {copy: lambda copy=copy: hand_over_ms(client, copy) for copy in (False, True)}
        samples = in_turns({"copy" if copy else "view": turn for copy, turn in turns.items()}, run.pick(30, 8))
    view = result.add("15 MB, a view of the region", "in the function's hands", "ms", samples["view"])
    copied = result.add("15 MB, copied out of it", "in the function's hands", "ms", samples["copy"])
    result.aim("15 MB: copying over the view", copied.p50 / view.p50, ">= 5")


def hand_over_ms(client: Client, copy: bool) -> float:
    event: dict[str, Any] = {**EVENT, "object": {"key": LARGE}, "copy": copy}
    answer = json.loads(cold_only(client.invoke("receiver", json.dumps(event).encode())).body)
    assert answer["bytes"] == LARGE_BYTES and answer["last"] == 0
    return float(answer["ns"]) / 1e6


if __name__ == "__main__":
    sys.exit(main("initscripts", measure, "What the initscript engine costs, and what shared memory saves."))
