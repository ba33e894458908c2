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

from benchmarks.results import Result
from benchmarks.table import print_result

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
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write NAME.png to DIR (needs matplotlib)")
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


def plot(result: Result, directory: Path) -> None:
    """Draw the result to DIR/NAME.png and its distributions to DIR/NAME-cdf.png; say so if matplotlib is missing."""
    try:
        import matplotlib  # type: ignore[import-not-found, unused-ignore]
    except ModuleNotFoundError:
        print("note: no plot, matplotlib is not installed")
        return
    matplotlib.use("Agg")
    directory.mkdir(parents=True, exist_ok=True)
    plot_rows(result, directory / f"{result.name}.png")
    if result.series:
        plot_series(result, directory / f"{result.name}-cdf.png")


def plot_rows(result: Result, path: Path) -> None:
    """p50 as a bar and p99 as a mark for every row, one panel per unit."""
    from matplotlib import pyplot  # type: ignore[import-not-found, unused-ignore]

    units = sorted({row.unit for row in result.rows})
    figure, panels = pyplot.subplots(
        len(units), 1, squeeze=False, figsize=(10, 0.3 * len(result.rows) + 2 * len(units))
    )
    for panel, unit in zip(panels[:, 0], units, strict=True):
        rows = [row for row in result.rows if row.unit == unit]
        labels = [f"{row.case}: {row.metric}" for row in rows]
        panel.barh(labels, [row.p50 for row in rows])
        panel.plot([row.p50 if row.p99 is None else row.p99 for row in rows], labels, "k|")
        panel.invert_yaxis()
        panel.set_xlabel(f"{unit} (bar p50, mark p99)")
    figure.suptitle(result.name)
    figure.tight_layout()
    figure.savefig(path)


def plot_series(result: Result, path: Path) -> None:
    """The distributions as CDFs, latency on a logarithmic axis (SOCK, Fig. 20)."""
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(10, 6))
    for case, latencies in result.series.items():
        panel.plot(latencies, [index / (len(latencies) - 1) for index in range(len(latencies))], label=case)
    panel.set_xscale("log")
    panel.set_xlabel("latency, ms")
    panel.set_ylabel("share of requests")
    panel.legend(fontsize="small")
    figure.savefig(path)
