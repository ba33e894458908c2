"""`network`: what a network of its own costs a function, after Mohan et al., "Agile Cold Starts" (PCPM).

Their Table 1 and Fig. 6: making and configuring the namespaces of requests that arrive at once, by commands as published, by
netlink in one process, and from a pool made before. Their Table 2: the memory of one. Then cold starts of functions
with `network = "host"`, "none" and "private", with a pool of 128 endpoints and without one. Last, starts with default settings on
workers that are idle: each function was called once before. The namespaces are made by processes of network_driver.py, the starts
by workers; what is compared is measured in turns.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.client import closed_loop, request
from benchmarks.harness.cold import ColdFunction, cold_config, cold_only, collector
from benchmarks.harness.forwarding import forwarding
from benchmarks.harness.functions import Function
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run, in_turns, main
from benchmarks.harness.traffic import gap_s
from benchmarks.harness.worker import Worker, running_worker
from benchmarks.peers.starters import HERE, PYTHON, Starter

IP, NETLINK, POOL = WAYS = ("ip commands", "raw netlink", "pool")
AT_ONCE = (1, 10, 50, 100)
POOL_SIZE = 128
GAP_S = 0.01
REFILL_S = 1.0
"""Between bursts: the pool is full again, and what was taken is gone."""
PAPER = (
    "PCPM Table 1 (Linux 4.4, commands): 0.28 s for 1 at once, 1.27 s for 10, 6.28 s for 50, 14.41 s for 100",
    "PCPM Table 2: a few KB for each paused container's namespace; here the kernel's unreclaimable memory",
)
KINDS = ("host", "none", "private")
STARTS = 100
BURST, ROW, GAPS = SHAPES = (f"{STARTS} at once", f"{STARTS} in a row", f"{STARTS} with random gaps")
GAPS_S = (0.01, 1.0)
"""Shortest and longest of the last, log-uniform."""


def measure(run: Run) -> Result:
    result = Result("network", notes=list(PAPER))
    measure_memory(run, result)
    measure_making(run, result)
    measure_starts(run, result)
    measure_from_idle(run, result)
    return result


def driver() -> Starter:
    return Starter.launch("network", PYTHON, "-I", "-S", str(HERE / "network_driver.py"))


def measure_memory(run: Run, result: Result) -> None:
    """Table 2: before all else, as the kernel uses memory again that other namespaces have left."""
    run.say("memory of one")
    for way in (NETLINK, "bare namespace"):
        with driver() as kernel:
            kb = kernel.ask(json.dumps(["memory", way, run.pick(800, 400)]))["kb"]
        result.add(way, "memory of one", "KB", [kb], tail=False)


def measure_making(run: Run, result: Result) -> None:
    """Table 1 and Fig. 6."""
    with driver() as kernel:

        def ask(*command: object) -> dict[str, Any]:
            return kernel.ask(json.dumps(command))

        for count in run.pick(AT_ONCE, (1, 10, 100)):
            run.say(f"{count} endpoints at once: {', '.join(WAYS)}")
            answers: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}

            def make(way: str, count: int = count, answers: dict[str, list[dict[str, Any]]] = answers) -> float:
                answers[way].append(ask("make", way, count))
                return 0.0

            rounds = run.pick(20 if count < 50 else 5, 5 if count < 50 else 2)
            in_turns({way: (lambda way=way: make(way)) for way in WAYS}, rounds)  # type: ignore[misc]
            for way, seen in answers.items():
                result.add(way, at_once("endpoint", count), "ms", [ms for each in seen for ms in each["ms"]])
                result.add(way, at_once("last endpoint", count), "ms", [max(each["ms"]) for each in seen], tail=False)
                result.add(way, at_once("removal", count), "ms", [each["call_ms"] for each in seen], tail=False)
                result.add(
                    way, at_once("removed by the kernel", count), "ms", [each["gone_ms"] for each in seen], tail=False
                )
    for count in (10, 100):
        last = {way: result.row(way, at_once("last endpoint", count)).p50 for way in WAYS}
        result.aim(f"ip commands, times the pool, {count} at once", last[IP] / last[POOL], ">= 200")
        result.aim(f"raw netlink, times the pool, {count} at once", last[NETLINK] / last[POOL], ">= 50")


def at_once(what: str, count: int) -> str:
    return f"{what}, {count} at once"


def measure_starts(run: Run, result: Result) -> None:
    """Cold starts by kind of network. The workers are asked in turns."""
    run.say("starting three workers")
    pooled = {"pool": POOL_SIZE, "least_pool": POOL_SIZE}
    with (
        forwarding(),
        tempfile.TemporaryDirectory() as scratch,
        running_worker(cold_config(spares=0, network=pooled)) as plain,
        running_worker(cold_config(network=pooled)) as spared,
        running_worker(cold_config(spares=0, network={"pool": 0, "least_pool": 0})) as unpooled,
    ):
        for kind in KINDS:
            settings = {"network": kind, "memory_mb": 64, "concurrency": 200}
            directory = Function(kind, settings=settings).write(Path(scratch))
            for each in (plain, spared, unpooled):
                each.deploy(directory, kind)
        cases = {kind: (plain, kind) for kind in KINDS}
        cases |= {f"{kind}, without a pool": (unpooled, kind) for kind in ("none", "private")}
        spares = {f"{kind}, spare": (spared, kind) for kind in KINDS}
        time.sleep(REFILL_S)
        measure_single(run, cases | spares, result)
        before = missed(plain)
        for count in run.pick(AT_ONCE[1:], (10, 100)):
            measure_burst(run, cases, count, result)
        misses = missed(plain) - before
    result.add("private and none", "starts without a ready endpoint", "x", [misses], tail=False)
    judge(result)


def measure_from_idle(run: Run, result: Result) -> None:
    """Starts with the defaults of the pool. Each shape has a new worker, as the pool remembers a burst for a minute."""
    run.say(f"default settings, from idle: {', '.join(SHAPES)}")
    kinds = ("host", "private")
    samples: dict[str, dict[str, list[float]]] = {shape: {kind: [] for kind in kinds} for shape in SHAPES}
    misses: dict[str, list[float]] = {shape: [] for shape in SHAPES}
    draw = random.Random(0)
    for _ in range(run.pick(5, 1)):
        for shape in draw.sample(SHAPES, len(SHAPES)):
            with forwarding(), tempfile.TemporaryDirectory() as scratch, running_worker(cold_config(spares=0)) as idle:
                functions = {kind: deployed(idle, kind, Path(scratch)) for kind in kinds}
                for kind in draw.sample(kinds, len(kinds)):
                    time.sleep(REFILL_S)
                    before = missed(idle)
                    samples[shape][kind] += starts(functions[kind], idle, kind, shape, draw, run)
                    if kind == "private":
                        misses[shape].append(missed(idle) - before)
    for shape in SHAPES:
        host, private = (result.add(f"{k}, default pool", shape, "ms", samples[shape][k]) for k in kinds)
        most = result.add("private, default pool", f"misses of {shape}", "x", misses[shape], tail=False).most
        result.aim(f"misses of the default pool, {shape}, from idle", most, "<= 5")
        result.aim(f"p99 of private, {shape}, from idle, times host", (private.p99 or 0) / (host.p99 or 1), "<= 1.2")


def deployed(idle: Worker, kind: str, scratch: Path) -> ColdFunction:
    """A function with a kind of network, called once, which makes its Zygote and the pool."""
    settings = {"network": kind, "memory_mb": 64, "concurrency": 200}
    idle.deploy(Function(kind, settings=settings).write(scratch), kind)
    function = ColdFunction(idle, kind)
    function.start()
    return function


def starts(function: ColdFunction, idle: Worker, kind: str, shape: str, draw: random.Random, run: Run) -> list[float]:
    """ms of each of the starts."""
    if shape == BURST:
        asked = itertools.repeat(request(kind), STARTS)
        return [cold_only(answer).ms for answer in closed_loop(idle.host, idle.port, STARTS, asked)]
    times = []
    for _ in range(STARTS):
        if shape == GAPS:
            time.sleep(gap_s(draw, *run.pick(GAPS_S, (0.01, 0.1))))
        times.append(function.start().ms)
    return times


def missed(plain: Worker) -> int:
    """Starts that found no endpoint ready; the first of each kind makes the pool."""
    return int(plain.json("status")["networks"]["pool_misses"])


def measure_single(run: Run, cases: dict[str, tuple[Worker, str]], result: Result) -> None:
    run.say("cold starts one at a time")
    functions = {case: ColdFunction(each, kind) for case, (each, kind) in cases.items()}
    samples: dict[str, list[float]] = {case: [] for case in cases}
    turns: dict[str, Callable[[], float]] = {
        case: collector(samples[case], lambda function=function: function.batch(10, gap_s=GAP_S))  # type: ignore[misc]
        for case, function in functions.items()
    }
    in_turns(turns, run.pick(40, 8))
    for case, times in samples.items():
        result.add(case, at_once("cold start", 1), "ms", times)


def measure_burst(run: Run, cases: dict[str, tuple[Worker, str]], count: int, result: Result) -> None:
    run.say(f"cold starts {count} at once")
    samples: dict[str, list[float]] = {case: [] for case in cases}

    def burst(case: str) -> float:
        each, kind = cases[case]
        time.sleep(REFILL_S)
        asked = itertools.repeat(request(kind), count)
        samples[case] += [cold_only(answer).ms for answer in closed_loop(each.host, each.port, count, asked)]
        return 0.0

    turns: dict[str, Callable[[], float]] = {case: (lambda case=case: burst(case)) for case in cases}  # type: ignore[misc]
    in_turns(turns, run.pick(10, 2))
    for case, times in samples.items():
        result.add(case, at_once("cold start", count), "ms", times)


def judge(result: Result) -> None:
    """Ratios, of turns within one run."""
    one = at_once("cold start", 1)
    for kind in ("private", "none"):
        forked = result.row(kind, one).p50 / result.row("host", one).p50
        result.aim(f"cold start of {kind}, times host", forked, "<= 1.05")
        spare = result.row(f"{kind}, spare", one).p50 / result.row("host, spare", one).p50
        result.aim(f"cold start of {kind} from a spare, times host", spare, "<= 1.05")
    many = at_once("cold start", 100)
    for kind in ("private", "none"):
        ratio = (result.row(kind, many).p99 or 0.0) / (result.row("host", many).p99 or 1.0)
        result.aim(f"p99 of {kind}, 100 at once, times host", ratio, "<= 1.2")
    misses = result.row("private and none", "starts without a ready endpoint").p50
    result.aim("starts without a ready endpoint, with a pool of 128", misses, "<= 0")


if __name__ == "__main__":
    sys.exit(main("network", measure, "Networks of functions: making them, and cold starts with them (PCPM)."))
