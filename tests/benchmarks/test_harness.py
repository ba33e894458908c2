"""What all benchmarks share: turns, arguments, exit status, configuration of workers."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from benchmarks.harness.cold import holds
from benchmarks.harness.functions import IMPORTS
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run, in_turns, main
from benchmarks.harness.worker import to_toml, with_kernel

TREE = {"packages": [], "children": [{"packages": ["numpy==2.4.0"], "children": [{"packages": ["pandas==3.0.0"]}]}]}


def test_turns_take_every_case_once_per_round() -> None:
    calls: list[str] = []

    def case(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    samples = in_turns({"a": lambda: case("a"), "b": lambda: case("b")}, rounds=4)
    assert {name: len(values) for name, values in samples.items()} == {"a": 4, "b": 4}
    assert all(set(calls[turn : turn + 2]) == {"a", "b"} for turn in range(0, 8, 2))


def measure(run: Run) -> Result:
    result = Result("small")
    result.add("case", "metric", "ms", [run.pick(2.0, 1.0)])
    result.aim("aim", run.pick(2.0, 1.0), "<= 1")
    return result


def test_main_writes_json_and_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("small", measure, "small", ["--quick", "--json", str(tmp_path / "r.json")]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["rows"][0]["p50"] == 1.0
    assert "holds" in capsys.readouterr().out


def test_a_missed_aim_fails_only_when_asked() -> None:
    assert main("small", measure, "small", []) == 0
    assert main("small", measure, "small", ["--strict"]) == 1
    assert main("small", measure, "small", ["--strict", "--quick"]) == 0


def test_a_configuration_becomes_toml() -> None:
    config: dict[str, dict[str, object]] = {
        "zygote": {"spares": 0, "enabled": False, "policy": "sock"},
        "packages": {"preload": ["numpy"]},
    }
    assert tomllib.loads(to_toml(config)) == config


def test_workers_take_the_ways_of_the_kernel_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    config: dict[str, dict[str, object]] = {"sandbox": {"idle_limit": 0}, "zygote": {"spares": 0}}
    monkeypatch.delenv("SOCKD_KERNEL", raising=False)
    assert with_kernel(config) == config
    monkeypatch.setenv("SOCKD_KERNEL", "6.1")
    assert with_kernel(config) == {"sandbox": {"idle_limit": 0, "kernel": "6.1"}, "zygote": {"spares": 0}}
    assert with_kernel({"sandbox": {"kernel": "6.12"}}) == {"sandbox": {"kernel": "6.12"}}


def test_a_function_becomes_a_directory(tmp_path: Path) -> None:
    directory = IMPORTS["numpy"].write(tmp_path)
    assert (directory / "requirements.txt").read_text() == "numpy\n"
    assert tomllib.loads((directory / "sockd.toml").read_text())["handler"] == "handler:handler"
    compile((directory / "handler.py").read_text(), "handler.py", "exec")


def test_a_package_is_found_anywhere_in_the_tree() -> None:
    assert holds(TREE, "pandas")
    assert not holds(TREE, "pan")
    assert not holds(None, "pandas")
