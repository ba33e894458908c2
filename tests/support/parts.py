"""Parts of the tests, for processes that run at the same time: `pytest --part 1/2` and `pytest --part 2/2`.

Each process imports and collects the files of its part alone, while each of pytest-xdist's collects all tests. Owns nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

TEST = re.compile(r"^ *(?:async )?def test_", re.MULTILINE)
GENERATED = re.compile(r"^ *@(?:given|fuzz)\b", re.MULTILINE)
TESTS_IN_GENERATED = 10
"""A test whose cases are generated takes about as long as so many others."""


def part_of(files: Iterable[Path], part: str) -> frozenset[Path]:
    """Return the files of a part. Args: files: those of all parts; part: `1/2`: the first of two."""
    number, _, count = part.partition("/")
    return divided({file: weight(file.read_text()) for file in files}, int(count))[int(number) - 1]


def weight(text: str) -> int:
    """Estimate how long the tests of a file take, in tests."""
    return len(TEST.findall(text)) + TESTS_IN_GENERATED * len(GENERATED.findall(text))


def divided(weights: Mapping[Path, int], count: int) -> list[frozenset[Path]]:
    """Divide files into parts of nearly the same weight. The same files give the same parts."""
    parts: list[set[Path]] = [set() for _ in range(count)]
    totals = [0] * count
    for file in sorted(weights, key=lambda file: (-weights[file], file)):
        lightest = totals.index(min(totals))
        totals[lightest] += weights[file]
        parts[lightest].add(file)
    return [frozenset(part) for part in parts]
