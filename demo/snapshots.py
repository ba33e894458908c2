"""A function that loads a model for two seconds: each start from a Zygote loads it again, from a snapshot none."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.harness.client import Answer, Client
from benchmarks.harness.functions import Function
from benchmarks.harness.table import number, print_table
from benchmarks.harness.worker import Worker
from demo.checks import WrongAnswer

LOADS = """import time

time.sleep(2)
MODEL = [number * number for number in range(100_000)]


def handler(event, context):
    return MODEL[event]
"""
STARTS = 3
SETTINGS = {"reuse_sandbox": False, "memory_mb": 128, "timeout_s": 30}


def show_snapshot(worker: Worker, scratch: Path) -> None:
    """Deploy it with a snapshot and without, and print what starts take. Raises: WrongAnswer."""
    rows = []
    for name, snapshot in (("loads-a-model", False), ("loads-a-model-snapshot", True)):
        function = Function(name, LOADS, settings={**SETTINGS, "snapshot": snapshot})
        worker.deploy(function.write(scratch), name)
        with Client(worker.host, worker.port) as client:
            answers = [client.invoke(name, b"7") for _ in range(STARTS)]
        for answer in answers:
            check_start(answer, is_template=snapshot)
        best = min(answers, key=lambda answer: answer.ms)
        rows.append((name, best.headers["x-sockd-origin"], number(best.phases_ms()["init"]), number(best.ms)))
    print_table(
        "a model that loads for 2 s, in each start or once (snapshot = true)", ("function", "from", "init", "ms"), rows
    )


def check_start(answer: Answer, *, is_template: bool) -> None:
    """Raises: WrongAnswer."""
    if json.loads(answer.body) != 49:
        raise WrongAnswer(f"the model answered {answer.body!r} instead of 49")
    if (answer.headers["x-sockd-origin"] == "template") is not is_template:
        raise WrongAnswer(f"a start came from {answer.headers['x-sockd-origin']}")
