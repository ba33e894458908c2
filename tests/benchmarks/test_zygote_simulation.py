"""The simulator that compares the policies, and what it says of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.instruments.zygote_simulation import FORK_S, MB, POLICIES, WARM_S, Simulation, Trace, main, simulate
from sockd.starts.zygotes.selection import NODE_OVERHEAD_BYTES, TreeLimits

ROOT = Path(__file__).parents[2]


def trace(calls: list[int], *, gap_s: float = 10.0, functions: list[list[list[int]]] | None = None) -> Trace:
    """Calls `gap_s` apart of functions that need packages a (100 ms, 20 MB), b (10 ms, 5 MB), c (50 ms, 10 MB)."""
    return Trace.parse(
        {
            "packages": [["a", 0.1, 20 * MB], ["b", 0.01, 5 * MB], ["c", 0.05, 10 * MB]],
            "functions": functions or [[[0]], [[0], [1]], [[2]]],
            "times": [gap_s * index for index in range(len(calls))],
            "calls": calls,
        }
    )


@pytest.fixture(scope="module")
def generated() -> list[Trace]:
    """Three traces of 300 functions, from the benchmark's generator."""
    code = "import sys; from benchmarks.harness.trace import *; "
    code += "sys.stdout.buffer.write(dump(make_trace(functions=300, requests=3000, seed={})))"
    return [
        Trace.parse(
            json.loads(
                subprocess.run(
                    [sys.executable, "-c", code.format(seed)], cwd=ROOT, capture_output=True, check=True
                ).stdout
            )
        )
        for seed in (1, 2, 3)
    ]


def test_a_second_call_finds_the_handler_warm() -> None:
    summary = simulate(trace([0, 0, 0, 0]), "none", limit_bytes=100 * MB)
    assert (summary.warm, summary.root) == (0.75, 0.25)
    assert summary.p50_ms == pytest.approx(WARM_S * 1e3)
    assert summary.cold_mean_ms == pytest.approx(FORK_S * 1e3 + 100)


def test_without_handlers_every_call_is_cold() -> None:
    summary = simulate(trace([0, 0, 0]), "none", limit_bytes=100 * MB, handler_bytes=0)
    assert (summary.warm, summary.root) == (0.0, 1.0)


@pytest.mark.parametrize("policy", ["sock", "measured"])
def test_a_zygote_serves_once_it_is_made(policy: str) -> None:
    summary = simulate(trace([0] * 10), policy, limit_bytes=100 * MB, handler_bytes=0)
    assert summary.exact >= 0.8
    assert summary.zygotes_made == 1
    assert summary.peak_mb == pytest.approx((2 * NODE_OVERHEAD_BYTES + 20 * MB) / MB)


def test_a_zygote_does_not_serve_while_it_is_made() -> None:
    summary = simulate(trace([0] * 5, gap_s=0.01), "sock", limit_bytes=100 * MB, handler_bytes=0)
    assert summary.root == 1.0


def test_a_subset_serves_in_part() -> None:
    simulation = Simulation(trace([0] * 4 + [1]), "sock", 100 * MB, 0)
    assert simulation.run().partial == pytest.approx(0.2)


def test_no_zygote_is_made_where_there_is_no_room() -> None:
    for policy in POLICIES:
        summary = simulate(trace([0, 1, 2] * 10), policy, limit_bytes=NODE_OVERHEAD_BYTES + MB, handler_bytes=0)
        assert summary.zygotes_made == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_memory_and_nodes_stay_within_their_limits(policy: str, generated: list[Trace]) -> None:
    simulation = Simulation(generated[0], policy, 200 * MB, 256 * MB, TreeLimits(max_nodes=8))
    summary = simulation.run()
    assert summary.peak_mb <= 200
    assert len(simulation.tree.nodes) <= 8
    assert summary.requests == 3000
    assert summary.warm + summary.exact + summary.partial + summary.root == pytest.approx(1.0, abs=1e-3)
    tree = simulation.tree
    blocks = {id(block): block.bytes for node in tree.nodes.values() for block in node.blocks}
    assert tree.used_bytes == len(tree.nodes) * NODE_OVERHEAD_BYTES + sum(blocks.values())


def test_the_measured_policy_beats_socks_at_equal_memory(generated: list[Trace]) -> None:
    for one in generated:
        for limit in (200, 600):
            sock = simulate(one, "sock", limit_bytes=limit * MB)
            measured = simulate(one, "measured", limit_bytes=limit * MB)
            assert measured.mean_ms < 0.9 * sock.mean_ms
            assert measured.cold_mean_ms < sock.cold_mean_ms


def test_numbers_do_not_depend_on_hash_order(tmp_path: Path) -> None:
    make = "import sys; from benchmarks.harness.trace import *; "
    make += "sys.stdout.buffer.write(dump(make_trace(functions=50, requests=800, seed=5)))"
    play = [sys.executable, "-m", "benchmarks.instruments.zygote_simulation", "--json", "--limit-mb", "150"]
    answers = set()
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        made = subprocess.run([sys.executable, "-c", make], cwd=ROOT, env=environment, capture_output=True, check=True)
        played = subprocess.run(play, input=made.stdout, cwd=ROOT, env=environment, capture_output=True, check=True)
        answers.add(played.stdout)
    assert len(answers) == 1


def test_the_command_prints_a_row_for_each_limit_and_policy(tmp_path: Path) -> None:
    data: dict[str, Any] = {"packages": [["a", 0.1, MB]], "functions": [[[0]]], "times": [0.0, 1.0], "calls": [0, 0]}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(data))
    lines: list[str] = []
    options = ["--limit-mb", "64", "--limit-mb", "128", "--policy", "sock", "--policy", "measured"]
    main([str(path), *options], write=lines.append)
    rows = json.loads(lines[0])["rows"]
    assert [(row["limit_mb"], row["policy"]) for row in rows] == [
        (64, "sock"),
        (64, "measured"),
        (128, "sock"),
        (128, "measured"),
    ]
    assert "cdf_ms" not in rows[0]


def test_a_trace_that_calls_what_it_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="only functions that it has"):
        trace([7])


def test_a_zygote_does_not_serve_a_function_with_what_its_imports_looked_for() -> None:
    data = {
        "packages": [["a-1-wheel", 0.1, 20 * MB], ["b-1-wheel", 0.1, 20 * MB]],
        "looks_for": {"a-1-wheel": ["b"]},
        "functions": [[[0]], [[0], [1]]],
        "times": [0.0, 10.0],
        "calls": [0, 1],
    }
    shares = {
        policy: simulate(Trace.parse(data), policy, limit_bytes=100 * MB).partial
        for policy in ("measured", "measured, sound")
    }
    assert shares == {"measured": 0.5, "measured, sound": 0.0}


def test_a_zygote_serves_no_other_order_of_imports_if_one_changes_what_another_sees() -> None:
    data = {
        "packages": [["a-1-wheel", 0.1, 20 * MB], ["b-1-wheel", 0.1, 20 * MB]],
        "functions": [[[0], [1]], [[1], [0]]],
        "times": [0.0, 10.0],
        "calls": [0, 1],
    }
    filters = {"writes": {"b-1-wheel": ["warnings.filters"]}}
    shares = [
        simulate(Trace.parse(each), "measured, sound", limit_bytes=100 * MB).exact
        for each in (data, {**data, **filters})
    ]
    assert shares == [0.5, 0.0]
