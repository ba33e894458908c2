"""`sockd invoke --debug`: an invocation that waits for a debugger."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import click

from sockd.client.console.client import Management, Reply
from sockd.client.console.output import say

DEBUG_PORT = 5678
"""The default port of Python debuggers."""
REMOTE_ROOT = "/var/task"
"""The code's directory in a sandbox."""


class DebugPort(click.ParamType[int]):
    """The optional value of --debug."""

    name = "port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if not text.isascii() or not text.isdigit() or int(text) > 65535:
            self.fail(
                f"{text!r} is not a port; --debug without a port must be the last option: sockd invoke NAME --debug",
                param,
                ctx,
            )
        return int(text)


def debugged(management: Management, name: str, payload: bytes, port: int, source: Path) -> Reply:
    """Run a function once under a debugger, and print how to attach one. Raises: Failure; KeyboardInterrupt ends it."""
    answer: dict[str, Any] = {}
    lines = management.lines("POST", "functions", name, "debug", body=payload, query={"port": str(port)})
    for line in lines:
        if "progress" in line:
            say(line["progress"])
        elif "listening" in line:
            say(how_to_attach(name, line["listening"], source))
        else:
            answer = line["result"]
    return Reply(answer["status"], answer["headers"], base64.b64decode(answer["body"]))


def how_to_attach(name: str, port: int, source: Path) -> str:
    """Instructions for the user."""
    launch = json.dumps(launch_configuration(name, port, source), indent=2)
    return (
        f"{name} waits for a debugger on 127.0.0.1:{port}; Ctrl-C ends it.\n"
        f"{source.resolve()} is {REMOTE_ROOT} there (--source, if the code is elsewhere). For VS Code's launch.json:\n{launch}"
    )


def launch_configuration(name: str, port: int, source: Path) -> dict[str, Any]:
    """The launch configuration of VS Code's Python debugger."""
    return {
        "name": f"sockd: {name}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "127.0.0.1", "port": port},
        "pathMappings": [{"localRoot": str(source.resolve()), "remoteRoot": REMOTE_ROOT}],
    }
