"""The simulated part of `zygote_tree` (SOCK, Fig. 20): hit rates, latency and memory over Zipf traces, under each
policy.

The policies are sockd's own, driven by `python -m benchmarks.instruments.zygote_simulation`; the traces and what the packages
cost are ours (`trace.py`, `package_table.py`). A model: it says which policy is better, not what a request takes on this
machine. Every policy gets the same traces, the same memory for Zygotes and the same for idle handlers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.harness.results import Result
from benchmarks.harness.run import Run, main
from benchmarks.harness.trace import dump, make_trace

HANDLER_MB = 1024
COMPARED = ("none", "released", "sock", "measured", "measured, sound")
TAKEN_APART = ("sock, measured eviction", "measured, sock eviction", "measured, no shared prefixes")
ORIGINS = ("warm", "exact", "partial", "root")


class Case(NamedTuple):
    """What is simulated together: one trace size under several policies and limits."""

    functions: int
    requests: int
    limits_mb: tuple[int, ...]
    policies: tuple[str, ...]


FULL = (
    Case(100, 20_000, (256, 1024, 2048), COMPARED),
    Case(1_000, 20_000, (256, 1024, 2048), COMPARED + TAKEN_APART),
    Case(10_000, 40_000, (256, 1024, 2048), COMPARED),
)
QUICK = (Case(100, 10_000, (512,), COMPARED), Case(1_000, 10_000, (512,), COMPARED))


def simulate(case: Case, seed: int) -> list[dict[str, Any]]:
    """The simulator's rows for one trace of a case. Raises CalledProcessError when the simulator fails."""
    trace = make_trace(functions=case.functions, requests=case.requests, seed=seed)
    command = [
        sys.executable,
        "-m",
        "benchmarks.instruments.zygote_simulation",
        "--json",
        "--handler-mb",
        str(HANDLER_MB),
    ]
    command += chain.from_iterable(("--limit-mb", str(limit)) for limit in case.limits_mb)
    command += chain.from_iterable(("--policy", policy) for policy in case.policies)
    answer = subprocess.run(command, input=dump(trace), stdout=subprocess.PIPE, check=True)
    rows = json.loads(answer.stdout)["rows"]
    return [row | {"functions": case.functions, "seed": seed} for row in rows]


def add_simulated(run: Run, result: Result) -> None:
    """Adds the rows and aims of the simulation to a result."""
    cases, seeds = run.pick(FULL, QUICK), run.pick((1, 2, 3), (1, 2))
    run.say(f"simulating {sum(len(case.limits_mb) * len(case.policies) for case in cases) * len(seeds)} runs")
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(simulate, case, seed) for case in reversed(cases) for seed in seeds]
        rows = [row for job in jobs for row in job.result()]
    for case in cases:
        for limit in case.limits_mb:
            for policy in case.policies:
                add_rows(result, select(rows, case.functions, limit, policy))
    add_aims(result, rows)
    result.notes.append("simulated: latency and memory come from a model; only the comparison of policies is meant")


def select(rows: list[dict[str, Any]], functions: int, limit_mb: int, policy: str) -> list[dict[str, Any]]:
    """The runs of one case, one for each seed."""
    wanted = (functions, limit_mb, policy)
    return [row for row in rows if (row["functions"], row["limit_mb"], row["policy"]) == wanted]


def add_rows(result: Result, runs: list[dict[str, Any]]) -> None:
    """The table's rows for one case: samples are seeds, but for the latency, where they are the points of the CDFs."""
    first = runs[0]
    case = f"{first['functions']} functions, {first['limit_mb']} MB, {first['policy']}"
    result.add(case, "mean latency", "ms", [row["mean_ms"] for row in runs], tail=False)
    result.add(case, "latency", "ms", [point for row in runs for point in row["cdf_ms"][:-1]])
    result.add(case, "mean latency, cold", "ms", [row["cold_mean_ms"] for row in runs], tail=False)
    for origin in ORIGINS:
        result.add(case, f"served {origin}", "%", [100 * row[origin] for row in runs], tail=False)
    result.add(case, "mean memory", "MB", [row["mean_mb"] for row in runs], tail=False)
    result.add(case, "Zygotes made", "", [row["zygotes_made"] for row in runs], tail=False)


def add_aims(result: Result, rows: list[dict[str, Any]]) -> None:
    """The measured policy against SOCK's, at equal memory: on average, and in the worst of all runs."""
    mean = {(row["functions"], row["limit_mb"], row["seed"], row["policy"]): row["mean_ms"] for row in rows}
    ratios = [value / mean[*key[:3], "sock"] for key, value in mean.items() if key[3] == "measured"]
    result.aim("simulated mean latency, measured / SOCK, over all runs", fmean(ratios), "<= 0.9")
    result.aim("the same, the worst run", max(ratios), "<= 1.0")
    ahead = {
        (row["functions"], row["limit_mb"], row["seed"], row["policy"]): row["exact"] / (1 - row["warm"])
        for row in rows
        if row["warm"] < 1 and row["policy"].startswith("measured")
    }
    kept = [share / ahead[*key[:3], "measured"] for key, share in ahead.items() if key[3] == "measured, sound"]
    result.aim("simulated cold starts with all packages ahead, sound rule / SOCK's rule", fmean(kept), ">= 0.85")
    result.notes.append(f"sound rule / SOCK's rule, the run with the least: {min(kept):.2f}")


def measure(run: Run) -> Result:
    """The simulated part alone."""
    result = Result("zygote_tree_model")
    add_simulated(run, result)
    return result


if __name__ == "__main__":
    sys.exit(main("zygote_tree_model", measure, __doc__.splitlines()[0]))
