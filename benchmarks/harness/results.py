"""The result of a benchmark: rows of measurements, aims, the machine they were taken on.

Owns the JSON format that every benchmark writes and `report.py` reads, and how it is printed. Knows nothing of workers.
"""

from __future__ import annotations

import json
import math
import operator
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LEAST_SAMPLES = 5
"""The fewest samples for quartiles: of fewer, they mean nothing."""
COMPARISONS = {"<=": operator.le, ">=": operator.ge}


@dataclass(frozen=True, slots=True)
class Row:
    """One measured quantity of one case; the numbers are in `unit`."""

    case: str
    metric: str
    unit: str
    p50: float
    p99: float | None
    """None where the quantity was taken once per round (a rate), so that a tail has no meaning."""
    n: int
    least: float
    most: float

    @classmethod
    def of(cls, case: str, metric: str, unit: str, samples: Sequence[float], *, tail: bool = True) -> Row:
        """The row that sums up `samples` (at least one, already in `unit`)."""
        ordered = sorted(samples)
        p99 = quantile(ordered, 0.99) if tail else None
        return cls(case, metric, unit, quantile(ordered, 0.5), p99, len(ordered), ordered[0], ordered[-1])


@dataclass(frozen=True, slots=True)
class Distribution:
    """How the samples of a row are spread."""

    case: str
    metric: str
    percentiles: list[float]
    """At 0, 1, ... 100 %, in the row's unit."""

    @classmethod
    def of(cls, case: str, metric: str, samples: Sequence[float]) -> Distribution:
        ordered = sorted(samples)
        return cls(case, metric, [round(quantile(ordered, percent / 100), 6) for percent in range(101)])

    def at(self, fraction: float) -> float:
        return self.percentiles[round(100 * fraction)]


@dataclass(frozen=True, slots=True)
class Aim:
    """A promise of the specification, and whether this run kept it."""

    name: str
    value: float
    aim: str
    """A comparison and a number, as in "<= 2.5"."""
    holds: bool

    @classmethod
    def of(cls, name: str, value: float, aim: str) -> Aim:
        comparison, bound = aim.split()
        return cls(name, round(value, 4), aim, COMPARISONS[comparison](value, float(bound)))


@dataclass(frozen=True, slots=True)
class Published:
    """A number of a paper, and ours beside it."""

    where: str
    """The figure or table."""
    subject: str
    unit: str
    paper: str
    """The paper's number, as it is printed there."""
    ours: float | None
    """None: not measured."""
    request: float | None = None
    """The same for the whole request, where `ours` is about its start."""
    why: str = ""
    """Why there is no number."""


@dataclass(slots=True)
class Result:
    """Everything that one run of one benchmark found out."""

    name: str
    machine: dict[str, Any] = field(default_factory=lambda: describe_machine())
    rows: list[Row] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was not measured and why, and what a reader must know to judge the rest."""
    distributions: list[Distribution] = field(default_factory=list)
    """The distributions of the rows that have enough samples."""
    series: dict[str, list[float]] = field(default_factory=dict)
    """Distributions to plot: latency in ms at 0, 1, … 100 % of the requests, by case."""
    stacks: dict[str, dict[str, float]] = field(default_factory=dict)
    """Bars to plot, by case: the parts of a whole in ms, from the first to the last."""
    published: list[Published] = field(default_factory=list)
    """A paper's numbers beside ours."""

    def add(self, case: str, metric: str, unit: str, samples: Sequence[float], *, tail: bool = True) -> Row:
        """Append and return the row for `samples`."""
        row = Row.of(case, metric, unit, samples, tail=tail)
        self.rows.append(row)
        if tail and len(samples) >= LEAST_SAMPLES:
            self.distributions.append(Distribution.of(case, metric, samples))
        return row

    def aim(self, name: str, value: float, aim: str) -> None:
        """Append the verdict on one aim."""
        self.aims.append(Aim.of(name, value, aim))

    def row(self, case: str, metric: str) -> Row:
        """The row of that case and metric. Raises KeyError."""
        for row in self.rows:
            if (row.case, row.metric) == (case, metric):
                return row
        raise KeyError((case, metric))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def load(cls, path: Path) -> Result:
        """The result in a file that a benchmark wrote."""
        table = json.loads(path.read_text())
        rows = [Row(**row) for row in table["rows"]]
        aims = [Aim(**aim) for aim in table["aims"]]
        spread = [Distribution(**each) for each in table.get("distributions", [])]
        pictures = table.get("series", {}), table.get("stacks", {})
        published = [Published(**each) for each in table.get("published", [])]
        return cls(table["name"], table["machine"], rows, aims, table.get("notes", []), spread, *pictures, published)


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """The smallest value that at least `fraction` of the ordered values do not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def median(samples: Iterable[float]) -> float:
    """The nearest-rank median, so that it is a value that was really seen."""
    return quantile(sorted(samples), 0.5)


def describe_machine() -> dict[str, Any]:
    """What a reader needs to compare two results: kernel, processors, memory, load, interpreter."""
    return {
        "kernel": platform.release(),
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mb": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        "load_1m": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
