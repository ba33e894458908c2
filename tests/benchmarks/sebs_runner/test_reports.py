"""SeBS's files: the keys that its own deserializer reads, and its columns before ours."""

from __future__ import annotations

import csv
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sebs_runner.experiment import Kind, Outcome, Variant
from benchmarks.sebs_runner.invocation import Sample
from benchmarks.sebs_runner.reports import COLUMNS, OUR_COLUMNS, write_csv, write_experiment, write_invocations
from benchmarks.sebs_runner.target import Target

LABELS = {"benchmark": "210.thumbnailer", "size": "test", "arm": "shim", "initscript": "on", "start": "zygote"}
# What ExecutionResult.deserialize and Config.deserialize of SeBS 1.2.0 look up.
INVOCATION = {"output", "request_id", "times", "provider_times", "stats", "billing"}
TIMES = {
    "benchmark",
    "client",
    "client_begin",
    "client_end",
    "http_startup",
    "http_first_byte_return",
    "initialization",
}
CONFIG = {"update_code", "update_storage", "download_results", "container_deployment", "runtime", "architecture"}


def sample(name: str, *, cold: bool = True, traced: bool = True) -> Sample:
    read = {"call": "download", "key": "k", "start_ns": 1_040_000, "end_ns": 1_060_000}
    times = {"entered_ns": 1_010_000, "imported_ns": 1_030_000, "init_done_ns": 1_060_000, "reads": [read]}
    output: dict[str, Any] = {"is_cold": cold, "request_id": name, "begin": "1.0", "end": "1.25", "sockd": times}
    spans = [
        {"track": "reads", "detail": "region"},
        {"track": "reads", "detail": "network"},
        {"track": "rpc", "detail": "region"},
    ]
    trace = {"arrived_ns": 1_005_000, "hidden_ns": 7000, "initscript": "exit", "spans": spans}
    return Sample(
        output={**output, "result": {"output": {}, "measurement": {"compute_time": 5}}},
        headers={"server-timing": "setup;dur=2, exec;dur=250", "x-sockd-origin": "zygote"},
        begin=datetime(2026, 1, 1),
        end=datetime(2026, 1, 1),
        sent_ns=1_000_000,
        client_us=300,
        connect_s=0.001,
        first_byte_s=0.002,
        variant=LABELS,
        trace=trace if traced else None,
    )


@pytest.fixture
def outcome() -> Outcome:
    variant = Variant("sebs-210-shim", Target("", Path()), b"", {}, labels=LABELS)
    samples = [sample("a"), sample("b", cold=False), sample("c", traced=False)]
    return Outcome(variant, Kind.COLD, samples, [sample("d", cold=False)], ["failed"], 10.0, 20.0)


def test_invocations_are_what_sebs_deserializes(outcome: Outcome, tmp_path: Path) -> None:
    write_invocations(tmp_path / "experiments.json", [outcome])
    reported = json.loads((tmp_path / "experiments.json").read_text())
    assert {"_invocations", "_metrics", "begin_time", "end_time", "config", "result_bucket"} == set(reported)
    assert set(reported["config"]["experiments"]) >= CONFIG
    assert reported["config"]["experiments"]["runtime"]["language"] == "python"
    assert reported["config"]["deployment"]["name"] == "local"
    invocations = reported["_invocations"]["sebs-210-shim"]
    assert set(invocations) == {"a", "b", "c"}
    for each in invocations.values():
        assert set(each) == INVOCATION and set(each["times"]) == TIMES
        assert {"_memory", "_billed_time", "_gb_seconds"} == set(each["billing"])
        assert {"cold_start", "failure", "memory_used"} == set(each["stats"])
        assert "measurement" in each["output"]["result"]


def test_the_provider_s_initialization_of_a_cold_start_is_the_start_latency(outcome: Outcome, tmp_path: Path) -> None:
    write_invocations(tmp_path / "experiments.json", [outcome])
    invocations = json.loads((tmp_path / "experiments.json").read_text())["_invocations"]["sebs-210-shim"]
    assert invocations["a"]["provider_times"] == {"execution": 250_000, "initialization": 55}
    assert invocations["b"]["provider_times"]["initialization"] == 0
    assert invocations["c"]["provider_times"]["initialization"] == 60  # untraced: from the request's first byte


def test_an_experiment_has_its_statistics(outcome: Outcome, tmp_path: Path) -> None:
    path = write_experiment(tmp_path / "perf-cost", outcome)
    assert path.name == "cold_results.json"
    statistics = json.loads(path.read_text())["statistics"]
    assert (statistics["samples_generated"], statistics["cold_count"], statistics["failures"]) == (3, 2, ["failed"])
    assert [each["request_id"] for each in statistics["incorrect"]] == ["d"]


def test_sebs_columns_come_first_and_ours_last(outcome: Outcome, tmp_path: Path) -> None:
    write_csv(tmp_path / "result.csv", [outcome])
    with (tmp_path / "result.csv").open() as file:
        heading, first, *rest = csv.reader(file)
    assert tuple(heading) == COLUMNS + OUR_COLUMNS
    assert first[: len(COLUMNS)] == ["0", "cold", "True", "250000", "0.001", "300", "250000", ""]
    ours = dict(zip(OUR_COLUMNS, first[len(COLUMNS) :], strict=True))
    assert ours["start_latency"] == "55" and ours["import_time"] == "20" and ours["read_time"] == "20"
    assert ours["hidden_time"] == "7" and ours["prefetched_reads"] == "1" and ours["initscript_outcome"] == "exit"
    assert ours["setup_time"] == "2000" and ours["arm"] == "shim" and ours["origin"] == "zygote"
    assert len(rest) == 2
