"""A function that fails, and where its traceback is: in `sockd logs`, behind what it printed."""

from __future__ import annotations

from benchmarks.harness.worker import Worker, WorkerFailed
from demo.checks import FUNCTIONS, WrongAnswer

NAME = "failing"
EVENT = '{"id": 7, "items": [{"price": 3}, {"cost": 4}]}'
EXPECTED = (
    "order 7\n",
    "[ERROR] KeyError: 'price'\n",
    "Traceback (most recent call last):\n",
    'File "/var/task/handler.py", line 10, in handler',
    'return sum(item["price"] for item in order["items"])',
)


def show_failure(worker: Worker) -> None:
    """Deploy it, invoke it, and print its log. Raises: WrongAnswer, if it does not fail or its log does not say why."""
    worker.deploy(FUNCTIONS / NAME, NAME)
    try:
        worker.cli("invoke", NAME, "-d", EVENT)
    except WorkerFailed as failed:
        if "KeyError" not in str(failed):
            raise
    else:
        raise WrongAnswer(f"{NAME} did not fail")
    log = worker.cli("logs", NAME)
    check_log(log)
    print(f"\nwhat became of an order without a price (sockd logs {NAME}):\n{log}", flush=True)


def check_log(log: str) -> None:
    """Raises: WrongAnswer."""
    for text in EXPECTED:
        if text not in log:
            raise WrongAnswer(f"{text!r} is not in the log of {NAME}:\n{log}")
