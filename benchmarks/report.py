"""`python -m benchmarks.report A.json B.json`: what changed between two results of the same benchmark."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.harness.results import Result
from benchmarks.harness.table import number, print_table

NOTABLE = 0.1
"""A p50 that moved by less than this share is called the same; the machine's own noise is about that."""


def main(arguments: list[str]) -> int:
    """Print the comparison. Returns 2 for wrong arguments, 1 when an aim that held is missed now, else 0."""
    if len(arguments) != 2:
        print("usage: python -m benchmarks.report A.json B.json", file=sys.stderr)
        return 2
    before, after = (Result.load(Path(argument)) for argument in arguments)
    if before.name != after.name:
        print(f"{before.name} and {after.name} are different benchmarks", file=sys.stderr)
        return 2
    print_table(
        f"{before.name}: {arguments[0]} -> {arguments[1]}",
        ("case", "metric", "unit", "A", "B", "B / A", ""),
        compare(before, after),
    )
    lost = lost_aims(before, after)
    for name in lost:
        print(f"an aim that held is missed now: {name}")
    return 1 if lost else 0


def compare(before: Result, after: Result) -> list[tuple[str, ...]]:
    """One line per row that both results have, then the rows that only one has."""
    old = {(row.case, row.metric): row for row in before.rows}
    new = {(row.case, row.metric): row for row in after.rows}
    lines: list[tuple[str, ...]] = []
    for key, row in old.items():
        if key in new:
            ratio = new[key].p50 / row.p50 if row.p50 else float("inf")
            lines.append(
                (*key, row.unit, number(row.p50), number(new[key].p50), number(ratio), verdict(ratio, row.unit))
            )
    lines += [(*key, row.unit, number(row.p50), "", "", "only in A") for key, row in old.items() if key not in new]
    lines += [(*key, row.unit, "", number(row.p50), "", "only in B") for key, row in new.items() if key not in old]
    return lines


def verdict(ratio: float, unit: str) -> str:
    """In words: rates and hit shares are better when higher, times and memory when lower."""
    if abs(ratio - 1) < NOTABLE:
        return "same"
    higher_is_better = unit in ("1/s", "%")
    return "better" if (ratio > 1) == higher_is_better else "worse"


def lost_aims(before: Result, after: Result) -> list[str]:
    """Aims that held before and do not hold any more."""
    held = {aim.name for aim in before.aims if aim.holds}
    return [aim.name for aim in after.aims if not aim.holds and aim.name in held]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
