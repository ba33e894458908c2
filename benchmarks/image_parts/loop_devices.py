"""First answers of images mounted through loop devices, as before Linux 6.12, beside those of images mounted from files.

Workers of both ways take turns with the same image from the same origin. On the older one, roots and /proc are made as before
Linux 6.15, too (`sandbox.kernel`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness.results import Result
from benchmarks.harness.run import Run
from benchmarks.image_parts.first_answer import (
    ANSWER,
    L1,
    PLAIN,
    PROFILED,
    UNPACKED,
    Image,
    Measuring,
    add_turns,
    measure_each,
)
from benchmarks.image_parts.origin import Origin

OLDER = "6.1"
WAYS = {"a file": "", "a loop device": OLDER}
"""The kernel whose ways the workers take."""
FROM_NOTHING = {PLAIN: "plain", PROFILED: "profiled"}
"""The tenant of each case."""
RESTARTED = (L1, UNPACKED)
MOST = "<= 1.3"


def measure(run: Run, result: Result) -> None:
    """Needs what the first answers need."""

    def measure_one(image: Image, there: Origin, scratch: Path, case: str) -> None:
        _measure(run, result, {way: Measuring(image, there, scratch, kernel) for way, kernel in WAYS.items()}, case)

    for image in measure_each(run, result, measure_one, distances_ms=(0.0,)):
        for case, metric in (*((each, ANSWER) for each in FROM_NOTHING), *((each, "request") for each in RESTARTED)):
            file, loop = (result.row(f"{image.name}, 0 ms: {case}, from {way}", metric).p50 for way in WAYS)
            result.aim(f"{image.name}, {case}: {metric} from a loop device, times from a file", loop / file, MOST)


def _measure(run: Run, result: Result, workers: dict[str, Measuring], case: str) -> None:
    size = next(iter(workers.values())).publish()
    kept = {(name, way): each.kept_worker(name) for name in RESTARTED for way, each in workers.items()}
    cases: dict[str, Callable[[], dict[str, float]]] = {}
    for way, each in workers.items():
        for name, tenant in FROM_NOTHING.items():
            cases[f"{name}, from {way}"] = partial(each.from_nothing, tenant, size)
        for name in RESTARTED:
            cases[f"{name}, from {way}"] = partial(each.restarted, name, kept[name, way])
    add_turns(result, case, cases, run.pick(15, 5))
    for path in kept.values():
        shutil.rmtree(path)
