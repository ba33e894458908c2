"""Two results compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.results import Result
from benchmarks.report import compare, lost_aims, main, verdict


def result(latency: float, *, aim_value: float = 1.0) -> Result:
    made = Result("warm")
    made.add("no-op", "latency", "ms", [latency])
    made.aim("p50", aim_value, "<= 2")
    return made


def test_a_row_that_both_have_gets_its_ratio() -> None:
    assert compare(result(1.0), result(2.0)) == [("no-op", "latency", "ms", "1", "2", "2", "worse")]


def test_rows_of_one_side_are_kept() -> None:
    after = result(1.0)
    after.add("numpy", "latency", "ms", [3.0])
    assert compare(result(1.0), after)[-1] == ("numpy", "latency", "ms", "", "3", "", "only in B")


@pytest.mark.parametrize(
    ("ratio", "unit", "word"),
    [(1.05, "ms", "same"), (1.5, "ms", "worse"), (0.5, "ms", "better"), (1.5, "1/s", "better"), (0.5, "%", "worse")],
)
def test_the_verdict_knows_what_is_better(ratio: float, unit: str, word: str) -> None:
    assert verdict(ratio, unit) == word


def test_an_aim_that_is_lost_is_found() -> None:
    assert lost_aims(result(1.0), result(1.0, aim_value=3.0)) == ["p50"]
    assert lost_aims(result(1.0, aim_value=3.0), result(1.0, aim_value=3.0)) == []


def test_the_command_fails_for_a_lost_aim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text(result(1.0).to_json())
    (tmp_path / "b").write_text(result(1.0, aim_value=3.0).to_json())
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert "missed now: p50" in capsys.readouterr().out
    assert main([str(tmp_path / "a"), str(tmp_path / "a")]) == 0


def test_different_benchmarks_are_not_compared(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(result(1.0).to_json())
    (tmp_path / "b").write_text(Result("density").to_json())
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert main(["only one"]) == 2
