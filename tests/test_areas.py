"""The map of areas in CONTRIBUTING.md is complete: each part of the product is in one area, and each test in one or more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.areas import ROOT, areas

ALL = areas().values()


def test_each_part_of_the_product_is_in_one_area() -> None:
    parts = [path for path in (ROOT / "sockd").iterdir() if path.is_dir() and list(path.rglob("*.py"))]
    parts += [ROOT / name for name in ("zygote", "initscripts", "storage_lib", "benchmarks")]
    missing = [
        str(part.relative_to(ROOT))
        for part in parts
        if not any(ROOT / code == part for area in ALL for code in area.code)
    ]
    assert missing == []
    listed = [code for area in ALL for code in area.code]
    assert len(listed) == len(set(listed))
    assert [code for code in listed if not (ROOT / code).exists()] == []


def test_each_test_is_in_an_area() -> None:
    covered = [Path(ROOT, path) for area in ALL for path in area.test_paths()]
    folders = {path for path in covered if path.is_dir()}
    missing = [
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("test_*.py")
        if file not in covered and not folders.intersection(file.parents)
    ]
    assert missing == []


def test_each_pattern_has_a_test() -> None:
    patterns = [pattern for area in ALL for pattern in area.tests]
    assert [pattern for pattern in patterns if not list(ROOT.glob(pattern))] == []


def test_an_unknown_area_is_refused_with_those_that_are_known() -> None:
    command = [sys.executable, "-m", "tests.support.areas", "attic"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no area 'attic'" in done.stderr and "images" in done.stderr
