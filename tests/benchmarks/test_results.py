"""Results: statistics, aims, the JSON that benchmarks exchange, and tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.harness.results import Aim, Result, Row, median, quantile
from benchmarks.harness.table import number, plain_table


def test_quantiles_are_values_that_were_seen() -> None:
    ordered = [float(value) for value in range(1, 101)]
    assert quantile(ordered, 0.5) == 50.0
    assert quantile(ordered, 0.99) == 99.0
    assert quantile(ordered, 1.0) == 100.0
    assert quantile([7.0], 0.5) == quantile([7.0], 0.99) == 7.0
    assert median([3.0, 1.0, 2.0]) == 2.0


def test_a_row_sums_up_its_samples() -> None:
    assert Row.of("no-op", "start", "ms", [2.0, 1.0, 3.0]) == Row("no-op", "start", "ms", 2.0, 3.0, 3, 1.0, 3.0)
    assert Row.of("no-op", "rate", "1/s", [5.0], tail=False).p99 is None


@pytest.mark.parametrize(
    ("value", "aim", "holds"),
    [(2.5, "<= 2.5", True), (2.51, "<= 2.5", False), (450.0, ">= 450", True), (449.0, ">= 450", False)],
)
def test_an_aim_compares_as_it_is_written(value: float, aim: str, holds: bool) -> None:
    assert Aim.of("a", value, aim).holds is holds


def test_a_result_survives_its_json(tmp_path: Path) -> None:
    result = Result("warm")
    result.add("no-op", "latency", "ms", [1.0, 2.0])
    result.aim("p50", 1.0, "<= 2")
    result.notes.append("quick run")
    (tmp_path / "a.json").write_text(result.to_json())
    assert Result.load(tmp_path / "a.json") == result


def test_the_json_has_the_documented_keys() -> None:
    result = Result("warm")
    result.add("no-op", "latency", "ms", [1.0])
    result.aim("p50", 1.0, "<= 2")
    table = json.loads(result.to_json())
    assert {"name", "machine", "rows", "aims"} <= table.keys()
    assert {"case", "metric", "unit", "p50", "p99", "n"} <= table["rows"][0].keys()
    assert table["aims"] == [{"name": "p50", "value": 1.0, "aim": "<= 2", "holds": True}]


def test_a_missing_row_is_named() -> None:
    with pytest.raises(KeyError, match="no-op"):
        Result("warm").row("no-op", "latency")


@pytest.mark.parametrize(
    ("value", "text"), [(0.0421, "0.042"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (12345.6, "12,346")]
)
def test_numbers_are_readable(value: float, text: str) -> None:
    assert number(value) == text


def test_a_plain_table_lines_its_columns_up() -> None:
    assert plain_table("t", ("case", "p50"), [("a", "1"), ("longer", "22")]) == "t\ncase    p50\na       1\nlonger  22"
