"""The initscript paper's Figs. 9 to 15 and Tables 1, 4 and 5: its numbers, ours beside them, whole requests beside starts.

Gains are those of medians of the same run, whose arms take turns. The paper's machine, functions and network are not ours: S3
is simulated at its distance. A row about a server is that of a service, from the request that starts it to its answer. A quick
run has fewer rows, and says which it leaves out.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks import sebs
from benchmarks.harness.cold import cold_config
from benchmarks.harness.functions import Function
from benchmarks.harness.results import Published, Result, median
from benchmarks.harness.run import Run
from benchmarks.harness.worker import REPOSITORY, running_worker
from benchmarks.initscript_parts import services, wakes
from benchmarks.initscript_parts.hand_over import HandOver, hand_over
from benchmarks.initscript_parts.scripted import EXAMPLES, READ, build, script_times, scripted

TIMES, MS, KB = "times as fast", "ms", "KB"
PROTOCOLS = ("s3:", "sqs:", "dynamodb:", "grpc://", "http://", "tcp://")
NOT_QUICK = "not in a quick run"
QUICK_SCRIPTS = ("nothing", "thumbnailer")
LEFT_OUT = (
    "quick: of functions imgrec alone, from a Zygote, on sockd's library, 3 starts of each arm; of servers memcached alone, with "
    "48 MB, in one request and not in ranges, 2 starts of each arm; of scripts in C two; medians of 5 starts, 3 views, 2 files"
)
CLIENT = "import boto3; boto3.client('s3', region_name='us-east-1')"
LIBRARY = "sys.path.insert(0, {library!r}); import storage, sockd_storage.reads, sockd_initscript.app_link"
LOADED = """
import sys
before = set(sys.modules)
{code}
import os
files = [getattr(sys.modules[name], "__file__", None) for name in sys.modules.keys() - before]
print(sum(os.path.getsize(file) for file in files if file))
"""
"""Prints the bytes of the modules that some code loads, their sources or shared objects."""


def measure(run: Run) -> Result:
    """Measure all rows. Raises: WorkerFailed, with a command's own words."""
    result = Result("initscripts, beside the paper")
    with tempfile.TemporaryDirectory() as scratch:
        add_functions(run, Path(scratch), result)
        with scripted() as parts, running_worker(cold_config(spares=0)) as worker:
            parts.deploy(worker, Function("reader", READ))
            script_times(worker)
            starts = [script_times(worker)[0] for _ in range(run.pick(40, 5))]
            result.published.append(Published("Section 1", "start of a script", MS, "1-2", median(starts)))
            add_hand_over(hand_over(run, worker, parts), result)
        add_services(run, Path(scratch), result)
        wakes.measure(run, Path(scratch), result)
        add_sizes(run, Path(scratch), result)
    if run.quick:
        result.notes.append(LEFT_OUT)
    result.published.sort(key=lambda each: order_of(each.where))
    return result


def order_of(where: str) -> tuple[int, int]:
    """Return what rows are sorted by: sections, figures, tables, each by number."""
    kind, _, number = where.rpartition(" ")
    return ("Section", "Fig.", "Table").index(kind), int(number)


def add_functions(run: Run, scratch: Path, result: Result) -> None:
    """Figs. 9, 10 and 15: functions of SeBS, and imgrec, from a Zygote and from a snapshot, S3 at the paper's distance."""
    benches = run.pick((*sebs.READERS, sebs.IMGREC), (sebs.IMGREC,))
    plans = [sebs.Plan("zygote", "paper", benches, run.pick(15, 3), run.pick(sebs.ARMS, ("shim", "initscript")))]
    if not run.quick:
        plans.append(sebs.Plan("zygote", "paper", (sebs.IMGREC_WASM,), 15, ("shim", "initscript")))
        plans.append(sebs.Plan("template", "paper", (sebs.IMGREC,), 40, ("shim", "initscript")))
    times: defaultdict[sebs.Cell, sebs.Times] = defaultdict(sebs.Times)
    for number, plan in enumerate(plans):
        run.say(f"{', '.join(plan.benches)}: {plan.start}")
        sebs.execute(plan, scratch / str(number), times)
    for cell, found in times.items():
        result.add(str(cell), "start latency", MS, found.starts)
        result.add(str(cell), "whole request", MS, found.requests)
    p50 = sebs.medians(times)

    def gain(where: str, subject: str, paper: str, arm: str, start: str, *names: str) -> None:
        cells = [sebs.Cell(name, arm, start, "paper") for name in names]
        over = "own" if arm == "own-initscript" else "shim"
        found = [each for cell in cells if (each := sebs.gain(p50, cell, over)) is not None]
        if not found:
            result.published.append(Published(where, subject, TIMES, paper, None, why=NOT_QUICK))
            return
        starts, requests = sebs.mean([each.start for each in found]), sebs.mean([each.request for each in found])
        result.published.append(Published(where, subject, TIMES, paper, starts, requests))

    mean = run.pick(f"{len(benches)} functions of SeBS that fetch, mean", "imgrec alone")
    gain("Fig. 9", f"{mean}, sockd's storage library", "1.67", "initscript", "zygote", *benches)
    gain("Fig. 9", f"{mean}, SeBS's own storage.py", "1.67", "own-initscript", "zygote", *benches)
    gain("Fig. 10", "imgrec-py, sockd's storage library", "1.81", "initscript", "zygote", sebs.IMGREC)
    gain("Fig. 10", "imgrec-py, SeBS's own storage.py", "1.81", "own-initscript", "zygote", sebs.IMGREC)
    gain("Fig. 15", "imgrec from a snapshot", "1.48", "initscript", "template", sebs.IMGREC)
    gain("Fig. 10", "imgrec-wasm, sockd's storage library", "1.81", "initscript", "zygote", sebs.IMGREC_WASM)
    for arm, words, paper in (("shim", "without a script", "312"), ("initscript", "with one", "")):
        reads = times[sebs.Cell(sebs.IMGREC, arm, "zygote", "paper")].reads
        result.published.append(
            Published("Fig. 10", f"imgrec waits for its objects, {words}", MS, paper, median(reads))
        )


def add_hand_over(found: HandOver, result: Result) -> None:
    """Figs. 12 and 14: views, copies and files in a program's hands."""
    why = "" if found.in_c else "cc is not installed"
    cases = [
        ("Fig. 14", f"15 MB in the hands of Python, as a {how}", found.python[how], how) for how in ("view", "copy")
    ]
    in_c = found.in_c or defaultdict(list)
    cases += [("Fig. 14", f"15 MB in the hands of C, as a {how}", in_c[how], how) for how in ("view", "copy")]
    cases += [("Fig. 12", "200 MB handed over as a file, for memcached", in_c["file"], "file")]
    cases += [("Fig. 12", "the same, from its last byte in the engine on", in_c["exchange"], "exchange")]
    paper = {"view": "1", "copy": "13", "file": "85"}
    for where, subject, samples, how in cases:
        ours = median(samples) if samples else None
        result.published.append(Published(where, subject, MS, paper.get(how, ""), ours, why=why))


def add_services(run: Run, scratch: Path, result: Result) -> None:
    """Figs. 11 and 13 are about servers."""
    for found in services.measure(run, scratch):
        arms = {"without a script": found.plain, "without one, in ranges": found.ranges, "with one": found.scripted}
        for arm, samples in arms.items():
            if samples:
                result.add(f"{found.subject}, {arm}", "request that starts it", MS, samples)
        if (gain := found.gain_over_ranges) is not None:
            result.notes.append(f"{found.subject}: {gain:.2f} {TIMES} as without a script and in ranges")
        result.published.append(Published(found.where, found.subject, TIMES, found.paper, found.gain, why=found.why))


def add_sizes(run: Run, scratch: Path, result: Result) -> None:
    """Tables 1, 4 and 5: what scripts ask, what code a function is spared, how big scripts are."""
    sources = sorted(EXAMPLES.glob("*/*.c"))
    for source in run.pick(sources, [each for each in sources if each.stem in QUICK_SCRIPTS]):
        example = source.stem
        module = build(source, scratch)
        asked = ", ".join(each for each in PROTOCOLS if each in source.read_text()) or "nothing"
        size = module.stat().st_size / 1000
        result.published.append(Published("Table 1", f"a script for {example}", "", "", None, why=f"asks {asked}"))
        result.published.append(Published("Table 5", f"a script in C: {example}", KB, "155-200", size))
    subjects = {
        "client code that a start loads, without a script": (CLIENT, "2485, of which 1875 are spared"),
        "client code that a start loads, with one": (LIBRARY.format(library=str(REPOSITORY / "storage_lib")), ""),
    }
    for subject, (code, paper) in subjects.items():
        result.published.append(Published("Table 4", subject, KB, paper, loads(code)))


def loads(code: str) -> float:
    """Return how many KB of modules some code loads in a new interpreter."""
    command = [sys.executable, "-c", LOADED.format(code=code)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout) / 1000
