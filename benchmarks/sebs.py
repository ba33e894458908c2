"""`sebs`: what initscripts save the functions of SeBS, from the start of the sandbox to the first line that works on data.

Four arms in turns: SeBS's own storage wrapper on boto3 and our storage library, each without and with an initscript. Each
from a Zygote and as a fresh interpreter, with S3 at the distance of the initscript paper (25 ms to the first byte, 60 MB/s
on a connection) and on loopback. The functions are the suite's own, unmodified; `sockd sebs run` runs them and checks
every answer.

imgrec is also started from a snapshot, as in the paper's Fig. 15: its init imports the function and loads the model, where
SeBS's wrapper imports, and imgrec loads, at the first request. Each start then fetches the picture alone, and so does the
initscript. `--from template` measures only this, `--from zygote,fresh` all else.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.results import Result, median
from benchmarks.harness.run import Run, main
from benchmarks.harness.worker import REPOSITORY, WorkerFailed, sockd

READERS = ("210.thumbnailer", "220.video-processing", "311.compression", "504.dna-visualisation")
"""Benches that fetch inputs and need nothing that a package index lacks."""
TORCH = "411.image-recognition"
IMGREC, IMGREC_WASM = "imgrec", "imgrec-wasm"
PURE = ("110.dynamic-html", "501.graph-pagerank", "502.graph-mst", "503.graph-bfs")
ARMS = ("own", "own-initscript", "shim", "initscript")
STARTS = {"zygote": [], "fresh": ["--no-zygotes"], "template": ["--snapshot"]}
"""Options of `sockd sebs run`, by the source of its sandboxes."""


class Cell(NamedTuple):
    """One case of the table."""

    bench: str
    arm: str
    start: str
    """From where the sandbox was started: zygote, fresh or template."""
    network: str
    """How far S3 is: paper or loopback."""

    def __str__(self) -> str:
        return f"{self.bench}, {self.arm}, {self.start}, {self.network}"


@dataclass(slots=True)
class Times:
    """The samples of one case, in ms."""

    starts: list[float] = field(default_factory=list)
    """From the start of the sandbox to the first line that works on data."""
    requests: list[float] = field(default_factory=list)
    """The whole request, as its client sees it."""
    reads: list[float] = field(default_factory=list)


class Medians(NamedTuple):
    """The medians of one case, in ms."""

    start: float
    request: float


@dataclass(frozen=True, slots=True)
class Plan:
    """One run of `sockd sebs run`."""

    start: str
    network: str
    benches: tuple[str, ...]
    repetitions: int
    arms: tuple[str, ...] = ARMS

    def command(self, out: Path) -> list[str]:
        options = ["--benches", ",".join(self.benches), "--repetitions", str(self.repetitions), "--out", str(out)]
        options += [word for arm in self.arms for word in ("--arm", arm)]
        options += STARTS[self.start]
        options += ["--paper"] if self.network == "paper" else []
        return [*sockd(), "sebs", "run", *options]


def measure(run: Run, starts_from: Collection[str] = tuple(STARTS)) -> Result:
    result = Result("sebs")
    times: defaultdict[Cell, Times] = defaultdict(Times)
    with tempfile.TemporaryDirectory() as scratch:
        for number, plan in enumerate(plan for plan in plans(run, result) if plan.start in starts_from):
            run.say(f"{', '.join(plan.benches)}: {plan.start}, {plan.network}")
            execute(plan, Path(scratch) / str(number), times)
    for cell, found in times.items():
        result.add(str(cell), "start latency", "ms", found.starts)
        result.add(str(cell), "of it reading", "ms", found.reads)
        result.add(str(cell), "whole request", "ms", found.requests)
    judge(medians(times), result)
    return result


def plans(run: Run, result: Result) -> Iterable[Plan]:
    """What is run, and a note for what is not."""
    if run.quick:
        yield Plan("zygote", "paper", ("210.thumbnailer", IMGREC), 8)
        yield Plan("template", "paper", (IMGREC,), 8)
        result.notes.append("quick: two functions from a Zygote, one from a snapshot, S3 at the paper's distance")
        return
    benches: tuple[str, ...] = (*READERS, IMGREC, IMGREC_WASM)
    if Path("/usr/lib/python3/dist-packages/torch").is_dir():
        benches = (*READERS, TORCH, IMGREC, IMGREC_WASM)
    else:
        result.notes.append(f"{TORCH}: not measured, Debian's python3-torch is not installed")
    for network in ("paper", "loopback"):
        for start in ("zygote", "fresh"):
            yield Plan(start, network, benches, 15)
        yield Plan("template", network, (IMGREC,), 40)
    yield Plan("zygote", "loopback", PURE, 40)


def execute(plan: Plan, out: Path, times: defaultdict[Cell, Times]) -> None:
    """Run a plan and add its samples. Raises WorkerFailed with the command's own words."""
    done = subprocess.run(plan.command(out), capture_output=True, text=True, cwd=REPOSITORY, check=False)
    if done.returncode:
        raise WorkerFailed(f"sockd sebs run: {done.stderr.strip()}")
    with (out / "result.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            found = times[Cell(row["benchmark"], arm_of(row), row["start"], plan.network)]
            found.starts.append(int(row["start_latency"]) / 1000)
            found.requests.append(int(row["client_time"]) / 1000)
            found.reads.append(int(row["read_time"]) / 1000)


def arm_of(row: Mapping[str, str]) -> str:
    """Return the name of an arm by its columns."""
    if row["initscript"] == "off":
        return row["arm"]
    return "initscript" if row["arm"] == "shim" else "own-initscript"


def medians(times: Mapping[Cell, Times]) -> dict[Cell, Medians]:
    """Return the medians of all cases."""
    return {cell: Medians(median(found.starts), median(found.requests)) for cell, found in times.items()}


def gain(p50: Mapping[Cell, Medians], cell: Cell, arm: str) -> Medians | None:
    """Return how many times as fast a case is as with another arm, start and request; None: one of them was not measured."""
    slow, fast = p50.get(cell._replace(arm=arm)), p50.get(cell)
    return Medians(slow.start / fast.start, slow.request / fast.request) if slow and fast else None


def judge(p50: Mapping[Cell, Medians], result: Result) -> None:
    """The aims, and the speed-ups of each function."""

    def ratio(bench: str, start: str, network: str, arm: str = "shim") -> float | None:
        found = gain(p50, Cell(bench, "initscript", start, network), arm)
        return found.start if found else None

    benches = sorted({cell.bench for cell in p50})
    for start, network in sorted({(cell.start, cell.network) for cell in p50}):
        found = {bench: ratio(bench, start, network) for bench in benches}
        over_own = {bench: ratio(bench, start, network, "own") for bench in benches}
        for bench, value in found.items():
            if value:
                own = over_own[bench]
                against = f", over SeBS's own storage {own:.2f}x" if own else ""
                result.notes.append(f"{bench}, {start}, {network}: over our storage {value:.2f}x{against}")
        readers = [value for bench, value in found.items() if value and bench in (*READERS, TORCH)]
        if readers and network == "paper" and start != "template":
            if start == "zygote":
                result.aim("functions that fetch, from a Zygote: initscript over none, mean", mean(readers), ">= 1.48")
            else:
                result.aim("functions that fetch, from nothing: initscript over none, mean", mean(readers), ">= 1.67")
        for bench in (IMGREC, IMGREC_WASM):
            if (value := found.get(bench)) and network == "paper":
                least = ">= 1.3" if start == "template" else ">= 1.81"
                result.aim(f"{bench}, {start}: initscript over none", value, least)
    judge_own_storage(p50, result)
    slowdowns = [1 / value for bench in PURE if (value := ratio(bench, "zygote", "loopback"))]
    if slowdowns:
        result.aim(
            "functions that fetch nothing: time with an initscript over without, worst", max(slowdowns), "<= 1.12"
        )


def judge_own_storage(p50: Mapping[Cell, Medians], result: Result) -> None:
    """The aims for SeBS's own storage.py, not one line of it changed."""
    cells = [Cell(bench, "own-initscript", "zygote", "paper") for bench in (*READERS, IMGREC)]
    gains = [found for cell in cells if (found := gain(p50, cell, "own"))]
    if gains:
        own = "SeBS's own storage.py, from a Zygote: initscript over none"
        result.aim(f"{own}, start, mean", mean([found.start for found in gains]), ">= 1.67")
        result.aim(f"{own}, whole request, mean", mean([found.request for found in gains]), ">= 1.3")


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def chosen(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What `--from START,...` names, or every start; and the other arguments."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--from", dest="starts", type=lambda text: text.split(","), default=[*STARTS])
    known, others = parser.parse_known_args(arguments)
    if unknown := set(known.starts) - set(STARTS):
        sys.exit(f"no start {', '.join(sorted(unknown))}; there are {', '.join(STARTS)}")
    return known.starts, others


if __name__ == "__main__":
    WANTED, OTHERS = chosen(sys.argv[1:])
    sys.exit(main("sebs", lambda run: measure(run, WANTED), "What initscripts save the functions of SeBS.", OTHERS))
