"""A function whose code has a number, so that an answer tells which version gave it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.daemon.gate import Gate
from tests.daemon.running import DEADLINE_S, zipped

CODE = """
import os, sys
from gate import wait
print("imported", NUMBER)
imported = []
def handler(event, context):
    imported.append(1)
    if "gate" in event:
        wait(event["gate"])
    if event.get("raise"):
        raise KeyError("no")
    if event.get("exit"):
        os._exit(1)
    return {
        "number": NUMBER,
        "version": context.function_version,
        "variable": os.environ["AWS_LAMBDA_FUNCTION_VERSION"],
        "arn": context.invoked_function_arn,
        "type": os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"],
        "pid": os.getpid(),
        "calls": len(imported),
    }
"""


def code(number: int) -> str:
    return f"NUMBER = {number}\n{CODE}"


def files(number: int) -> bytes:
    return zipped({"app.py": code(number), "gate.py": Gate.CODE})


def publish(client: Any, name: str, number: int) -> str:
    """Deploy and publish; its version."""
    version: str = client.update_function_code(FunctionName=name, ZipFile=files(number), Publish=True)["Version"]
    return version


def until(holds: Callable[[], Any], deadline_s: float = DEADLINE_S) -> None:
    """Wait for what nobody tells: it is asked for again and again."""
    expired = threading.Event()
    timer = threading.Timer(deadline_s, expired.set)
    timer.start()
    try:
        while not holds():
            assert not expired.wait(0.02), "it did not come true"
    finally:
        timer.cancel()


def ready(client: Any, name: str, qualifier: str) -> bool:
    """Whether all that was provisioned is there; it must not have failed."""
    status = client.get_provisioned_concurrency_config(FunctionName=name, Qualifier=qualifier)
    assert status["Status"] in ("READY", "IN_PROGRESS"), status
    return bool(status["Status"] == "READY")
