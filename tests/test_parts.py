"""The parts of `make check`: each file of tests is in one of them."""

from __future__ import annotations

from pathlib import Path

from tests.support.parts import divided, part_of, weight

TESTS = Path(__file__).parent


def test_each_file_is_in_one_part() -> None:
    files = list(TESTS.rglob("test_*.py"))
    parts = [part_of(files, f"{number}/3") for number in (1, 2, 3)]
    assert sorted(file for part in parts for file in part) == sorted(files)


def test_parts_weigh_nearly_the_same() -> None:
    weights = {Path(f"test_{number}.py"): number for number in range(1, 20)}
    totals = [sum(weights[file] for file in part) for part in divided(weights, 4)]
    assert sum(totals) == sum(weights.values()) and max(totals) - min(totals) <= 3


def test_a_generated_test_weighs_as_much_as_ten() -> None:
    assert weight("def test_a() -> None:\n    pass\n\n\n@given(x)\nasync def test_b() -> None:\n    pass\n") == 12
