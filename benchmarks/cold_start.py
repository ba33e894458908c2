"""`cold_start`: a no-op that no sandbox is waiting for, over HTTP, against the kernel's floor and installed peers in turns.

Two workers side by side, one without spares (every start is forked for its request) and one with the default number.
Starts are 10 ms apart where nothing else is said: ending one sandbox is then over before the next begins, as it is off the
clock for the floor too. "Back to back" pays for both, as do the rates. "HTTP alone" is what of a start is neither sandbox nor
platform: the same client asks the server that `warm` compares with, which answers at once, after the same silence.
Bodies and trace headers are drawn (`traffic`). The case that stands for users is a function that is called after a gap drawn from
10 ms to 2 minutes, each gap's logarithm as likely as any other (quick runs: to 2 s).
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness.client import Client
from benchmarks.harness.cold import ColdFunction, cold_config, cold_only, collector, learn
from benchmarks.harness.functions import IMPORTS, Function
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run, in_turns, main
from benchmarks.harness.traffic import gap_s
from benchmarks.harness.worker import Worker, running_worker
from benchmarks.peers.starters import Starter, floor, peers
from benchmarks.warm import Server, in_process_server

IDLE_GAP_S = 0.1
SHORTEST_GAP_S = 0.01
GAP_S = 0.01
"""Longer than ending a sandbox or refilling spares takes."""


def measure(run: Run) -> Result:
    result = Result("cold_start")
    run.say("starting two workers")
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_worker(cold_config(spares=0)) as plain,
        running_worker(cold_config()) as spared,
        floor() as kernel,
        in_process_server() as server,
        peers() as others,
    ):
        deploy(Path(scratch), plain, spared)
        run.say("teaching the Zygote tree numpy")
        learn(plain, "numpy", "numpy")
        measure_latency(run, plain, spared, kernel, server, others, result)
        measure_gaps(run, plain, spared, kernel, server, result)
        measure_rates(run, plain, spared, kernel, others, result)
        measure_distinct(run, plain, Path(scratch), result)
    judge(result)
    return result


def deploy(scratch: Path, plain: Worker, spared: Worker) -> None:
    noop = Function("noop").write(scratch)
    numpy = IMPORTS["numpy"].write(scratch)
    plain.deploy(noop, "noop")
    plain.deploy(numpy, "numpy")
    spared.deploy(noop, "noop")


def measure_latency(
    run: Run, plain: Worker, spared: Worker, kernel: Starter, server: Server, others: dict[str, Starter], result: Result
) -> None:
    """Concurrency 1: everything in turns."""
    run.say(f"cold starts one at a time, in turns with floor, {', '.join(others)}")
    noop, spare, numpy = ColdFunction(plain, "noop"), ColdFunction(spared, "noop"), ColdFunction(plain, "numpy")
    idle = ColdFunction(plain, "noop")
    http = Client(server.host, server.port)
    batches: dict[str, Callable[[], list[float]]] = {
        "floor": lambda: [kernel.start_ms() for _ in range(11)][1:],
        "HTTP alone": lambda: answers_ms(http, 10),
        "no-op": lambda: noop.batch(10, gap_s=GAP_S),
        "no-op, back to back": lambda: ColdFunction(plain, "noop").batch(10),
        "numpy": lambda: numpy.batch(5, gap_s=GAP_S),
        "no-op, spares": lambda: spare.batch(10, gap_s=GAP_S),
        "no-op, spares, back to back": lambda: ColdFunction(spared, "noop").batch(10),
        "floor, 100 ms idle before": lambda: idle_floor(kernel),
        "no-op, 100 ms idle before": lambda: idle.batch(2, gap_s=IDLE_GAP_S),
        "no-op, spares, 100 ms idle before": lambda: ColdFunction(spared, "noop").batch(2, gap_s=IDLE_GAP_S),
        **{name: lambda starter=starter: [starter.start_ms()] for name, starter in others.items()},  # type: ignore[misc]
    }
    samples: dict[str, list[float]] = {name: [] for name in batches}
    turns = in_turns({name: collector(samples[name], batch) for name, batch in batches.items()}, run.pick(60, 15))
    for name in batches:
        result.add(name, "answer" if name == "HTTP alone" else "cold start", "ms", samples[name])
    noop.add_phases(result, "no-op")
    numpy.add_phases(result, "numpy")
    spare.add_phases(result, "no-op, spares")
    result.add("no-op, spares", "answered by a spare", "%", [100 * spare.share_of("spare")], tail=False)
    ratios = [start / alone for start, alone in zip(turns["no-op, spares"], turns["HTTP alone"], strict=True)]
    result.add("no-op, spares", "times HTTP alone", "x", ratios, tail=False)


def measure_gaps(run: Run, plain: Worker, spared: Worker, kernel: Starter, server: Server, result: Result) -> None:
    """What a function costs that nobody has called for a while. All cases share each gap, in an order of their own."""
    longest_s = run.pick(120.0, 2.0)
    run.say(f"gaps from {SHORTEST_GAP_S} to {longest_s:g} s")
    rng = random.Random(1)
    spare, forked = ColdFunction(spared, "noop"), ColdFunction(plain, "noop")
    http = Client(server.host, server.port)
    cases: dict[str, Callable[[], float]] = {
        "floor": kernel.start_ms,
        "HTTP alone": lambda: http.invoke("echo").ms,
        "no-op, spares": lambda: spare.start().ms,
        "no-op": lambda: forked.start().ms,
    }
    for start in cases.values():
        start()
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(run.pick(40, 20)):
        time.sleep(gap_s(rng, SHORTEST_GAP_S, longest_s))
        for connected in (http, spare, forked):
            connected.reconnect()
        for name in rng.sample(list(cases), len(cases)):
            samples[name].append(cases[name]())
    for name, times in samples.items():
        result.add(f"{name}, called after a drawn gap", "answer" if name == "HTTP alone" else "cold start", "ms", times)
    result.add(
        "no-op, spares, called after a drawn gap",
        "answered by a spare",
        "%",
        [100 * spare.share_of("spare")],
        tail=False,
    )


def answers_ms(http: Client, count: int) -> list[float]:
    """ms of answers by a server that is there already, with the silence before each that starts have."""
    times = []
    for _ in range(count):
        time.sleep(GAP_S)
        times.append(http.invoke("echo").ms)
    return times


def idle_floor(kernel: Starter) -> list[float]:
    time.sleep(IDLE_GAP_S)
    return [kernel.start_ms()]


def measure_rates(
    run: Run, plain: Worker, spared: Worker, kernel: Starter, others: dict[str, Starter], result: Result
) -> None:
    """Concurrency 10: cold starts per second, client included."""
    run.say("cold starts ten at a time")
    noop, spare = ColdFunction(plain, "noop"), ColdFunction(spared, "noop")
    count = run.pick(1000, 300)
    cases: dict[str, Callable[[], float]] = {
        "floor": lambda: kernel.rate(10, count),
        "no-op": lambda: noop.rate(10, count),
        "no-op, spares": lambda: spare.rate(10, count),
        **{name: lambda starter=starter: starter.rate(10, count // 10) for name, starter in others.items()},  # type: ignore[misc]
    }
    for name, rates in in_turns(cases, run.pick(5, 2)).items():
        result.add(name, "rate, 10 at once", "1/s", rates, tail=False)


def measure_distinct(run: Run, plain: Worker, scratch: Path, result: Result) -> None:
    """The first invocation of functions that were never invoked before, as a check of the repeated one."""
    run.say("first invocations of distinct functions")
    names = [f"noop-{number}" for number in range(run.pick(50, 10))]
    directory = Function("distinct").write(scratch)
    for name in names:
        plain.deploy(directory, name)
    with Client(plain.host, plain.port) as client:
        result.add("no-op, first invocation", "cold start", "ms", [cold_only(client.invoke(name)).ms for name in names])


def judge(result: Result) -> None:
    """The aims of the specification: ratios, of turns within one run."""
    noop, kernel = result.row("no-op", "cold start"), result.row("floor", "cold start")
    result.aim("no-op p50, times the floor's", noop.p50 / kernel.p50, "<= 2")
    result.aim("numpy p50, times the no-op's", result.row("numpy", "cold start").p50 / noop.p50, "<= 1.5")
    spare = result.row("no-op, spares", "cold start").p50
    result.aim("no-op with spares p50, times the floor's", spare / kernel.p50, "<= 1.0")
    result.aim("no-op with spares p50, times HTTP alone", result.row("no-op, spares", "times HTTP alone").p50, "<= 2")
    rate = result.row("no-op", "rate, 10 at once").p50 / result.row("floor", "rate, 10 at once").p50
    result.aim("no-op starts per second, 10 at once, times the floor's", rate, ">= 1.0")
    result.aim("no-op p99, times its p50", (noop.p99 or 0.0) / noop.p50, "<= 5")
    busy = min(noop.p50, result.row("no-op, back to back", "cold start").p50)
    idle = result.row("no-op, 100 ms idle before", "cold start").p50
    result.aim("no-op p50 after 100 ms idle, times the p50 without", idle / busy, "<= 2")
    after, floor_after = (
        result.row(f"{name}, called after a drawn gap", "cold start") for name in ("no-op, spares", "floor")
    )
    result.aim("no-op called after a drawn gap, times the floor's", after.p50 / floor_after.p50, "<= 1.0")


if __name__ == "__main__":
    sys.exit(main("cold_start", measure, "Cold start of a no-op over HTTP, against the floor and peers."))
