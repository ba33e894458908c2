"""The model of a large group: checked against real groups of up to eight workers, then played for 10 000.

A million functions are hashed to cells of 200 workers, each with a store and an HAProxy of its own. The cell with the most
popular function is played, and one without any of the most popular, which stands for all others. A function that a worker has
opened takes 8 KB of it, as was measured.
"""

from __future__ import annotations

import random
import threading
from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import accumulate

from benchmarks.cluster_parts.cold_share import deploy_sleepers
from benchmarks.cluster_parts.cold_share import play as play_for_real
from benchmarks.cluster_parts.group import Group, group
from benchmarks.cluster_parts.model import NO_BOUND, ROUND_ROBIN, play
from benchmarks.cluster_parts.store_traffic import CELL, SETTLE_S, Traffic, judge_traffic, measure_cell, measure_traffic
from benchmarks.cluster_parts.zipf_trace import LONGEST_S, MEDIAN_S, SIGMA, Call, zipf_trace
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run

WORKERS, FUNCTIONS, CALLS_PER_S = 10_000, 1_000_000, 500_000.0
DEPLOYS_PER_HOUR = 1000
"""Deploys to the whole group."""
COLD_S = 0.02
"""By which a cold call takes longer."""
ENOUGH = 10**6
"""Places, where memory has no end."""
PLACES = 400
"""Sandboxes of a worker of the large group."""
OPENED_KB = 8
WAYS = {
    "round robin": (ROUND_ROBIN, 0),
    "hash": (NO_BOUND, 0),
    "hash with bound": (150, 0),
    "homes, then hash with bound": (150, 32),
}
"""The bound and the calls of a home."""


def measure_simulated(run: Run) -> Result:
    result = Result("cluster, simulated")
    with group(1, counts=True) as made:
        check(run, made, result)
    run.say("the store of a cell")
    measure_cell(run, result)
    play_large(run, result)
    return result


def check(run: Run, made: Group, result: Result) -> None:
    """Compare the model with real groups."""
    functions, calls, rate = run.pick((300, 3000, 100.0), (60, 300, 75.0))
    counts, traffic = run.pick((1, 2, 3, 8), (1, 2, 3)), list[Traffic]()
    for count in counts:
        for number in range(len(made.workers) + 1, count + 1):
            made.start(f"w{number}")
        run.say(f"the store of {count} workers")
        traffic.append(measure_traffic(run, made))
    follows = judge_traffic(traffic, result)
    deploy_sleepers(made, functions)
    pause = threading.Event()
    trace, warm_s, cold_s = zipf_trace(functions, calls, rate), 0.0, COLD_S
    for count in counts:
        run.say(f"a trace to {count} workers")
        made.restart_all()
        pause.wait(run.pick(SETTLE_S, 2.0))
        with made.front(workers=count) as port:
            seen = play_for_real(port, trace)
        if count == 1:
            warm_s, cold_s = seen.over_s
        real, model = seen.share, play(trace, count, places=ENOUGH, cold_s=cold_s, warm_s=warm_s).share
        result.add(f"Zipf trace, {count} workers", "cold share", "%", [100 * real], tail=False)
        result.add(f"Zipf trace, {count} workers", "cold share, model", "%", [100 * model], tail=False)
        result.aim(f"{count} workers: cold share, model over measured, off by", abs(model / real - 1), "<= 0.1")
    result.notes.append(
        f"measured with one worker and given to the model: beyond its function a warm call takes {1000 * warm_s:.1f} ms, "
        f"a cold one {1000 * cold_s:.1f} ms (medians)"
    )
    per_hour = DEPLOYS_PER_HOUR / (WORKERS / CELL)
    result.notes.append(
        f"following {per_hour:.0f} deploys an hour costs the store of a cell {per_hour * CELL * follows / 3600:.1f} statements "
        f"a second; heartbeats of {WORKERS} workers on one store would be "
        f"{WORKERS / 3:.0f} writes a second"
    )


def play_large(run: Run, result: Result) -> None:
    """Play one cell with the most popular function, and one without."""
    seconds = run.pick(10.0, 0.5)
    shares = list(accumulate(1 / rank for rank in range(1, FUNCTIONS + 1)))
    cells = WORKERS // CELL
    place = random.Random(1)
    of_cell = [place.randrange(cells) for _ in range(FUNCTIONS)]
    load = [0.0] * cells
    for function, cell in enumerate(of_cell):
        load[cell] += 1 / (function + 1) / shares[-1]
    hottest, usual = of_cell[0], sorted(range(cells), key=load.__getitem__)[cells // 2]
    result.add(
        f"{cells} cells, {FUNCTIONS} functions",
        "load of the fullest, times the mean",
        "x",
        [max(load) * cells],
        tail=False,
    )
    for name, cell in (("the cell of the most popular function", hottest), ("a usual cell", usual)):
        mine = [function for function, where in enumerate(of_cell) if where == cell]
        for way, (bound, home) in WAYS.items():
            run.say(f"{name}: {way}")
            trace = cell_trace(mine, load[cell] * CALLS_PER_S, seconds)
            played = play(trace, CELL, places=PLACES, cold_s=COLD_S, bound_percent=bound, home_calls=home)
            case = f"{name}, {way}"
            result.add(case, "cold share", "%", [100 * played.share], tail=False)
            result.add(
                case,
                "calls of the busiest worker, times the mean",
                "x",
                [played.most_calls * CELL / played.calls],
                tail=False,
            )
            result.add(case, "opened functions of a worker, at most", "", [played.opened], tail=False)
            result.add(
                case, "memory of opened functions, at most", "MB", [played.opened * OPENED_KB / 1024], tail=False
            )
    result.notes.append(
        f"{CALLS_PER_S:.0f} calls a second for {seconds:g} s, log-normal lengths with a median of {1000 * MEDIAN_S:.0f} ms, "
        f"{PLACES} sandboxes of a worker, all cold at the beginning; no worker waits for its processors"
    )


def cell_trace(functions: Sequence[int], rate_per_s: float, seconds: float) -> Iterator[Call]:
    """Iterate over the calls of a cell's functions, which have their weight among all."""
    rng = random.Random(1)
    cumulative = list(accumulate(1 / (function + 1) for function in functions))
    now = 0.0
    while (now := now + rng.expovariate(rate_per_s)) < seconds:
        function = min(bisect(cumulative, rng.random() * cumulative[-1]), len(functions) - 1)
        yield Call(now, function, min(MEDIAN_S * rng.lognormvariate(0, SIGMA), LONGEST_S))
