"""Results in SeBS's own files: `experiments.json`, `<type>_results.json` and `result.csv`.

Pure but for writing. Times are microseconds as in SeBS, `connection_time` seconds as in SeBS. SeBS's columns come first and
in its order, ours after them. `provider_times.initialization`, which SeBS prints as `init` of cold starts, is the start
latency: from the start of the sandbox to the first line that works on data.
"""

from __future__ import annotations

import csv
import json
import platform
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.sebs_runner.experiment import Outcome
from benchmarks.sebs_runner.invocation import Sample

COLUMNS = (
    "memory",
    "type",
    "is_cold",
    "exec_time",
    "connection_time",
    "client_time",
    "provider_time",
    "mem_used",
)
"""SeBS's."""
OUR_COLUMNS = (
    "benchmark",
    "size",
    "arm",
    "initscript",
    "start",
    "origin",
    "start_latency",
    "setup_time",
    "import_time",
    "read_time",
    "reads",
    "read_bytes",
    "hidden_time",
    "prefetched_reads",
    "initscript_outcome",
    "request_id",
)
"""Ours. start: zygote or fresh, as the worker was asked; origin: what the sandbox was forked from; times in microseconds."""


def write_invocations(path: Path, outcomes: Sequence[Outcome]) -> None:
    """`experiments.json` of `benchmark invoke`: all samples by function."""
    path.write_text(_dump(_experiment(outcomes, {})))


def write_experiment(directory: Path, outcome: Outcome) -> Path:
    """`<type>_results.json` of perf-cost, for one variant; its path."""
    statistics = {
        "samples_generated": len(outcome.samples),
        "failures": outcome.failures,
        "failures_count": len(outcome.failures),
        "incorrect": [_invocation(sample) for sample in outcome.incorrect],
        "incorrect_count": len(outcome.incorrect),
        "cold_count": outcome.cold_count,
    }
    kind = outcome.kind.value
    settings = {
        "benchmark": outcome.variant.labels["benchmark"],
        "experiments": [kind],
        "input-size": outcome.variant.labels["size"],
        "repetitions": len(outcome.samples),
        "concurrent-invocations": 1,
        "memory-sizes": [],
    }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{kind}_results.json"
    path.write_text(_dump({**_experiment([outcome], {"perf-cost": settings}), "statistics": statistics}))
    return path


def write_csv(path: Path, outcomes: Iterable[Outcome]) -> None:
    """`result.csv`."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow((*COLUMNS, *OUR_COLUMNS))
        for outcome in outcomes:
            writer.writerows(_row(outcome.kind.value, sample) for sample in outcome.samples)


def _row(kind: str, sample: Sample) -> list[Any]:
    times, labels = sample.times, sample.variant
    return [
        0,  # SeBS's word for the default memory
        kind,
        sample.cold,
        sample.benchmark_us,
        sample.connect_s,
        sample.client_us,
        _provider_us(sample),
        None,
        *(labels.get(name, "") for name in OUR_COLUMNS[:5]),
        sample.headers.get("x-sockd-origin", ""),
        round(sample.start_us),
        round(sample.phases_ms.get("setup", 0.0) * 1000),
        (times["imported_ns"] - times["entered_ns"]) // 1000,
        round(sample.read_us),
        len(times["reads"]),
        sample.read_bytes,
        round(sample.hidden_us),
        sample.prefetched_reads,
        (sample.trace or {}).get("initscript") or "",
        sample.request_id,
    ]


def _experiment(outcomes: Sequence[Outcome], experiments: dict[str, Any]) -> dict[str, Any]:
    """An ExperimentResult of SeBS, as its serializer writes one."""
    return {
        "_invocations": {
            outcome.variant.name: {sample.request_id: _invocation(sample) for sample in outcome.samples}
            for outcome in outcomes
        },
        "_metrics": {},
        "begin_time": min(outcome.begin_s for outcome in outcomes),
        "end_time": max(outcome.end_s for outcome in outcomes),
        "config": {"experiments": _experiment_config(experiments), "deployment": _deployment()},
        "result_bucket": None,
    }


def _experiment_config(experiments: dict[str, Any]) -> dict[str, Any]:
    return {
        "update_code": False,
        "update_storage": False,
        "download_results": False,
        "runtime": {"language": "python", "version": ".".join(platform.python_version_tuple()[:2])},
        "flags": {},
        "experiments": experiments,
        "architecture": "x64" if platform.machine() == "x86_64" else "arm64",
        "container_deployment": False,
    }


def _deployment() -> dict[str, Any]:
    """SeBS knows no sockd; its own local deployment is the one whose files have no provider's parts."""
    return {"name": "local", "region": "", "resources": {}}


def _invocation(sample: Sample) -> dict[str, Any]:
    """An ExecutionResult of SeBS."""
    return {
        "output": sample.output,
        "request_id": sample.request_id,
        "times": {
            "benchmark": sample.benchmark_us,
            "client": sample.client_us,
            "client_begin": _stamp(sample.begin),
            "client_end": _stamp(sample.end),
            "http_startup": sample.connect_s,
            "http_first_byte_return": sample.first_byte_s,
            "initialization": 0,
        },
        "provider_times": {
            "execution": _provider_us(sample),
            "initialization": round(sample.start_us) if sample.cold else 0,
        },
        "stats": {"cold_start": sample.cold, "failure": False, "memory_used": None},
        "billing": {"_memory": None, "_billed_time": None, "_gb_seconds": 0},
    }


def _provider_us(sample: Sample) -> int:
    return round(sample.phases_ms.get("exec", 0.0) * 1000)


def _stamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S.%f")


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"
