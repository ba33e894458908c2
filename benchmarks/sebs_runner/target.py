"""The worker that benches run on: one that is running, or a private one for the time of a run.

A private worker keeps its state in the cache, so that packages are downloaded once and not once per run; everything else
about it is its own. Spoken to like any worker: management over its socket, invocations over HTTP.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from benchmarks.harness.worker import WorkerFailed, stop, tail, to_toml, wait_ready
from benchmarks.sebs_runner.errors import NotPossible
from sockd.base.config import MB, CodeConfig
from sockd.client.console.client import Management
from sockd.functions.code.packing import pack

CODE = CodeConfig(max_zip_bytes=120 * MB, max_code_bytes=600 * MB)
"""220 brings an ffmpeg of 80 MB along."""
Sections = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Target:
    """A worker within reach."""

    url: str
    state_dir: Path
    is_private: bool = False
    always_cold: bool = False
    """Whether the target keeps no sandbox: every answer comes from a fresh one."""

    @property
    def is_local(self) -> bool:
        """Whether what listens on our loopback can be reached from its functions."""
        return re.match(r"https?://(127\.|localhost|\[::1\])", self.url) is not None

    def deploy(self, name: str, archive: bytes, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Publish a version; returns the worker's description of it. Raises: cli.output.Failure."""
        headers = {"x-sockd-overrides": json.dumps(overrides)} if overrides else {}
        result: dict[str, Any] = {}
        for line in self.management.lines("PUT", "functions", name, body=archive, headers=headers):
            result = line.get("result", result)
        return result

    def remove(self, name: str) -> None:
        self.management.exchange("DELETE", "functions", name)

    def zygote_packages(self) -> set[str]:
        """Normalized names of the packages that some Zygote holds now."""
        found: set[str] = set()
        nodes = [self.management.get("tree")["root"]]
        while nodes:
            if (node := nodes.pop()) is not None:
                found.update(canonicalize_name(package.partition("==")[0]) for package in node["packages"])
                nodes.extend(node.get("children", ()))
        return found

    def trace(self, request_id: str) -> dict[str, Any] | None:
        """What the worker remembers of an invocation; None when it keeps no traces."""
        reply = self.management.exchange("GET", "traces", request_id)
        if reply.status != 200:
            return None
        trace: dict[str, Any] = json.loads(reply.body)
        return trace

    @property
    def management(self) -> Management:
        return Management(self.state_dir)


def running(state_dir: Path, url: str | None) -> Target:
    """The worker that has this state directory. Raises: cli.output.Failure when none answers."""
    status = Management(state_dir).get("status")
    return Target(url or status["url"], state_dir)


def archive_of(directory: Path) -> bytes:
    """A package as the zip that is deployed. Raises: SockdError."""
    return pack(directory, CODE)


@contextmanager
def private(
    cache: Path,
    *,
    always_cold: bool,
    zygotes: bool = True,
    environment: Mapping[str, str] | None = None,
    sections: Sections | None = None,
) -> Iterator[Target]:
    """A worker of our own, stopped at the end.

    Args:
        always_cold: it keeps no sandbox after an answer.
        zygotes: False: every sandbox is a fresh interpreter.
        environment: variables that hold where the user's own environment says nothing.
        sections: more of its TOML.
    Raises: NotPossible, with its words, when it does not start."""
    if os.geteuid() != 0:
        raise NotPossible("a worker needs root", fix="sudo sockd sebs ..., or --worker for one that is running")
    home = cache / "worker"
    home.mkdir(parents=True, exist_ok=True)
    config: dict[str, Mapping[str, Any]] = {
        "code": {"max_zip_bytes": CODE.max_zip_bytes, "max_code_bytes": CODE.max_code_bytes},
        "zygote": {"enabled": zygotes},
        **({"sandbox": {"idle_limit": 0}} if always_cold else {}),
        **(sections or {}),
    }
    (home / "sockd.toml").write_text(to_toml(config))
    options = ("--listen", "127.0.0.1:0", "--state-dir", str(home / "state"), "--config", str(home / "sockd.toml"))
    with (home / "worker.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "sockd", "up", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**(environment or {}), **os.environ},
            start_new_session=True,
        )
    try:
        yield Target(_url_of(process, home / "worker.log"), home / "state", is_private=True, always_cold=always_cold)
    finally:
        stop(process)


def _url_of(process: subprocess.Popen[str], log: Path) -> str:
    try:
        host, port = wait_ready(process)
    except WorkerFailed:
        raise NotPossible(f"the private worker did not start:\n{tail(log)}", fix="sockd doctor") from None
    return f"http://{host}:{port}"
