"""Functions with snapshots, as tests deploy them and look at their starts."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.daemon.running import Answer, RunningDaemon, zipped

TOKEN = """
import os, random, uuid
TOKEN = uuid.uuid4().hex
print("the init of", TOKEN)
COUNT = [0]
def handler(event, context):
    COUNT[0] += 1
    return {"token": TOKEN, "count": COUNT[0], "random": random.random(), "type": os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"]}
"""
"""A handler whose module draws a token: starts with the same one are forks of one init."""


def deploy(
    daemon: RunningDaemon, name: str, files: Mapping[str, str | bytes] | str | bytes, **settings: Any
) -> tuple[dict[str, Any], list[str]]:
    """Deploy a function with a snapshot, whose sandboxes serve one request each; (the function, what the deploy said)."""
    body = files if isinstance(files, bytes) else zipped({"handler.py": files} if isinstance(files, str) else files)
    overrides = {"check": False, "snapshot": True, "reuse_sandbox": False, **settings}
    answer = daemon.manage("PUT", f"/functions/{name}", body, {"x-sockd-overrides": json.dumps(overrides)})
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert "result" in lines[-1], lines
    return lines[-1]["result"], [line["progress"] for line in lines[:-1]]


def origin(answer: Answer) -> str:
    """Where the sandbox of a request came from, which must have succeeded."""
    assert answer.status == 200, answer
    return answer.headers["x-sockd-origin"]


def state(daemon: RunningDaemon, name: str) -> tuple[str, str]:
    """(state, reason) of a function's snapshot."""
    (function,) = [each for each in daemon.manage("GET", "/functions").json if each["name"] == name]
    return function["snapshot"], function["snapshot_reason"]


def template_pid(daemon: RunningDaemon, name: str) -> int:
    """The process of a function's template, on the host."""
    title = f"sockd: template of {name}"
    (found,) = [pid for pid in daemon.pids() if command_line(pid) == title]
    return found


def has_template(daemon: RunningDaemon, name: str) -> bool:
    """Whether there is a process of a function's template."""
    return any(command_line(pid) == f"sockd: template of {name}" for pid in daemon.pids())


def command_line(pid: int) -> str:
    """What ps shows of a process; empty: it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()
    except OSError:
        return ""


def kill_template(daemon: RunningDaemon, name: str) -> None:
    """Kill a function's template."""
    os.kill(template_pid(daemon, name), signal.SIGKILL)
