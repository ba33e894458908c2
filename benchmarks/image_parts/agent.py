"""The agent of images beside a plain file: reads of chunks that it has, the page cache, throughput, and a restart.

Measured by `python -m benchmarks.instruments.agent_trial`, which owns an agent with its jail and its keeper; the cases
take turns. The paper's agent has a mode below 100 us for local hits; ours should cost at most half more than the disk itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable

from benchmarks.harness.results import Result
from benchmarks.harness.run import Run

DISK = "/var/tmp"
NATIVE, EROFS, AGENT = "native", "erofs", "agent"
COLD, WARM, SEQUENTIAL, KILLED = "4 KiB cold", "4 KiB warm", "sequential cold", "longest read when it is killed"


def measure(run: Run, result: Result) -> None:
    """Needs root."""
    run.say("the agent beside a file of the disk")
    with tempfile.TemporaryDirectory(prefix="sockd-agent-", dir=DISK) as directory:
        command = [sys.executable, "-m", "benchmarks.instruments.agent_trial", directory, str(run.pick(30, 5))]
        trial = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    add(result, trial.stdout.splitlines())


def add(result: Result, lines: Iterable[str]) -> None:
    """Rows and aims of what the trial has printed."""
    for line in lines:
        found = json.loads(line)
        result.add(found["case"], found["metric"], found["unit"], found["samples"])

    def p50(case: str, metric: str) -> float:
        return result.row(case, metric).p50

    result.aim("agent: cold 4 KiB read p50, times the native file's", p50(AGENT, COLD) / p50(NATIVE, COLD), "<= 1.5")
    result.aim("agent: warm 4 KiB read p50, times the native file's", p50(AGENT, WARM) / p50(NATIVE, WARM), "<= 1.1")
    result.aim("agent: longest read when it is killed p50, ms", p50(AGENT, KILLED), "<= 1000")
    sequential = p50(AGENT, SEQUENTIAL) / p50(EROFS, SEQUENTIAL)
    result.notes.append(f"agent: sequential cold reads reach {sequential:.2f} of EROFS on a plain file")
