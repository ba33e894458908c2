"""The part of `images` that measures the agent: it runs, and its aims are ratios of what it has measured."""

from __future__ import annotations

import json

import pytest

from benchmarks.harness.results import Result
from benchmarks.harness.run import Run
from benchmarks.image_parts import agent


def lines(**p50: float) -> list[str]:
    cases = {
        "native_cold": (agent.NATIVE, agent.COLD),
        "native_warm": (agent.NATIVE, agent.WARM),
        "erofs_sequential": (agent.EROFS, agent.SEQUENTIAL),
        "agent_cold": (agent.AGENT, agent.COLD),
        "agent_warm": (agent.AGENT, agent.WARM),
        "agent_sequential": (agent.AGENT, agent.SEQUENTIAL),
        "agent_killed": (agent.AGENT, agent.KILLED),
    }
    return [
        json.dumps({"case": case, "metric": metric, "unit": "us", "samples": [p50.get(name, 1.0)]})
        for name, (case, metric) in cases.items()
    ]


def test_each_aim_is_a_ratio_within_the_run() -> None:
    result = Result("images")
    agent.add(result, lines(agent_cold=1.6, native_warm=2.0))
    assert {aim.name.partition(": ")[2]: (aim.value, aim.holds) for aim in result.aims} == {
        "cold 4 KiB read p50, times the native file's": (1.6, False),
        "warm 4 KiB read p50, times the native file's": (0.5, True),
        "longest read when it is killed p50, ms": (1.0, True),
    }


@pytest.mark.root
def test_the_agent_is_measured_here() -> None:
    result = Result("images")
    agent.measure(Run(quick=True), result)
    assert {row.case for row in result.rows} == {agent.NATIVE, agent.EROFS, agent.AGENT}
    assert len(result.aims) == 3
