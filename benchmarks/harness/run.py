"""What every benchmark's `main` does alike: parse the arguments, run, print, write JSON, plot, and fail on a missed aim if asked.

A benchmark is a function `measure(run: Run) -> Result`. Interleaving is the rule: things that are compared are measured
in turns (`in_turns`), so that a noisy neighbour hits all of them.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.harness.plots import plot
from benchmarks.harness.results import Result
from benchmarks.harness.table import print_result
from benchmarks.harness.worker import KERNEL

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    """What the caller asked for."""

    quick: bool
    """True: finish within 45 s; fewer samples, the same cases where possible."""

    def pick(self, full: T, quick: T) -> T:
        """`quick` in a quick run, else `full`."""
        return quick if self.quick else full

    def say(self, text: str) -> None:
        """Progress for the person who waits, on stderr."""
        print(f"  {text}", file=sys.stderr, flush=True)


def main(name: str, measure: Callable[[Run], Result], description: str, argv: list[str] | None = None) -> int:
    """The entry of `python -m benchmarks.NAME`. Returns the exit status: 0, or 1 with --strict and a missed aim."""
    arguments = parse(name, description, argv)
    # SIGTERM unwinds like Ctrl-C, so that a stopped benchmark still stops its worker.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    result = measure(Run(quick=arguments.quick))
    result.notes.append(f"took {time.monotonic() - started:.0f} s" + (", quick run" if arguments.quick else ""))
    if kernel := os.environ.get(KERNEL):
        result.notes.append(f"workers take the ways of Linux {kernel}")
    print_result(result)
    if arguments.json:
        arguments.json.write_text(result.to_json() + "\n")
    if arguments.plot:
        plot(result, arguments.plot)
    return 1 if arguments.strict and not all(aim.holds for aim in result.aims) else 0


def parse(name: str, description: str, argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--quick", action="store_true", help="fewer samples; finishes within 45 s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    parser.add_argument(
        "--plot", type=Path, metavar="DIR", help="write pictures to DIR, one for each question (needs matplotlib)"
    )
    parser.add_argument("--strict", action="store_true", help="exit 1 when an aim is missed")
    arguments = parser.parse_args(argv)
    directory = arguments.json.absolute().parent if arguments.json else Path()
    if not os.access(directory, os.W_OK | os.X_OK):  # now, as measuring takes minutes
        parser.error(f"--json: {arguments.json} cannot be written: {directory} is not there, or not writable")
    return arguments


def in_turns(cases: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Call every case once per round, in an order shuffled anew each round, and collect what they return."""
    order = list(cases)
    rng = random.Random(0)
    samples: dict[str, list[float]] = {name: [] for name in order}
    for _ in range(rounds):
        rng.shuffle(order)
        for name in order:
            samples[name].append(cases[name]())
    return samples
