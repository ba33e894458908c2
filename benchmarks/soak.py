"""Load that never repeats itself for as long as one likes, on functions that change and functions that go: does the worker grow?

Owns a private worker, or none: `Traffic` drives any. Speaks HTTP only. `scripts/soak` runs it.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import random
import socket
import sys
import threading
import time
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.worker import running_worker

HANDLER = "VERSION = {version}\ndef f(event):\n    return [VERSION, event]\n"
LIMIT_MB_PER_HOUR = 1.0
"""The bound of promise 30 in SPECIFICATION.md."""
GOES = 10
"""One deploy of so many is of a function that is called and removed."""


class Management(http.client.HTTPConnection):
    """The worker's management socket."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__("sockd", timeout=60)
        self._directory = state_dir

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        directory = os.open(self._directory, os.O_PATH | os.O_DIRECTORY)
        try:
            self.sock.connect(f"/proc/self/fd/{directory}/sockd.sock")
        finally:
            os.close(directory)


@dataclass
class Traffic:
    """Requests for some functions, and deploys of them, of one client each; several may run beside each other."""

    port: int
    state_dir: Path
    functions: int = 20
    requests: int = 0
    deploys: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    _random: random.Random = field(default_factory=lambda: random.Random(30))

    def __post_init__(self) -> None:
        self._calls = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        self._manages = Management(self.state_dir)

    def deploy_all(self) -> None:
        """Each function once."""
        for number in range(self.functions):
            self.deploy(f"stays-{number}")

    def deploy(self, name: str) -> None:
        """Another version of a function."""
        self.deploys += 1
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("f.py", HANDLER.format(version=time.time_ns()))
        answer = self._exchange(
            self._manages, "PUT", f"/functions/{name}", packed.getvalue(), {"x-sockd-overrides": '{"memory_mb": 48}'}
        )
        if b'"error"' in answer:
            self.failed[f"deploy: {answer.splitlines()[-1][:100]!r}"] += 1

    def change_one(self) -> None:
        """Deploy: mostly a function that stays; now and then one that is called once and removed."""
        if self.deploys % GOES:
            self.deploy(f"stays-{self._random.randrange(self.functions)}")
            return
        name = f"goes-{self.deploys}"
        self.deploy(name)
        self.call(name)
        self._exchange(self._manages, "DELETE", f"/functions/{name}", b"", {})

    def call_one(self) -> None:
        """Request one of the functions that stay."""
        self.call(f"stays-{self._random.randrange(self.functions)}")

    def call(self, name: str) -> None:
        """One request, its body of any length up to 300 bytes."""
        self.requests += 1
        body = json.dumps("x" * self._random.randrange(300)).encode()
        self._exchange(self._calls, "POST", f"/run/{name}", body, {})

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> bytes:
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self.failed[f"{method}: {error!r}"] += 1
            return b""
        if response.status >= 300:
            self.failed[f"{method}: {response.status} {answer[:100]!r}"] += 1
        return answer

    def close(self) -> None:
        self._calls.close()
        self._manages.close()


def rss_mb(pid: int) -> float:
    """Resident memory of a process."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def growth_per_hour(samples: list[tuple[float, float]]) -> float:
    """The slope of the least squares through (s, MB), in MB an hour; of the second half, when all bounded stores are full."""
    later = samples[len(samples) // 2 :]
    if len(later) < 2:
        return 0.0
    mean_s = sum(s for s, _ in later) / len(later)
    mean_mb = sum(mb for _, mb in later) / len(later)
    over = sum((s - mean_s) * (mb - mean_mb) for s, mb in later)
    return over / sum((s - mean_s) * (s - mean_s) for s, _ in later) * 3600


def repeat(what: object, per_s: float, ends: float) -> None:
    """Call it at that rate until then, or as often as it can."""
    assert callable(what)
    due = time.monotonic()
    while (now := time.monotonic()) < ends:
        if now < due:
            time.sleep(due - now)
        due = max(due + 1 / per_s, now - 1)
        what()


def main() -> int:
    """Soak a worker of its own; 1: it grows, or something failed."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=90)
    parser.add_argument("--requests", type=float, default=500, help="per second")
    parser.add_argument("--deploys", type=float, default=9, help="per second")
    parser.add_argument("--functions", type=int, default=20)
    parser.add_argument("--every", type=float, default=60, help="seconds between two lines")
    arguments = parser.parse_args()
    with running_worker() as worker:
        calls, changes = (Traffic(worker.port, worker.state_dir, arguments.functions) for _ in range(2))
        changes.deploy_all()
        began = time.monotonic()
        ends = began + arguments.minutes * 60
        threads = [
            threading.Thread(target=repeat, args=(calls.call_one, arguments.requests, ends)),
            threading.Thread(target=repeat, args=(changes.change_one, arguments.deploys, ends)),
        ]
        samples: list[tuple[float, float]] = []
        counts: list[int] = []
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            threads[0].join(min(arguments.every, max(0.1, ends - time.monotonic())))
            samples.append((time.monotonic() - began, rss_mb(worker.process.pid)))
            counts.append(descriptors(worker.process.pid))
            print(
                f"{samples[-1][0] / 60:6.1f} min  {calls.requests:9} requests  {changes.deploys:7} deploys  "
                f"{samples[-1][1]:7.1f} MB  {counts[-1]:4} descriptors  {(calls.failed + changes.failed).total()} failed",
                flush=True,
            )
        calls.close()
        changes.close()
    grows = growth_per_hour(samples)
    failed = calls.failed + changes.failed
    print(f"{grows:+.2f} MB an hour over the second half; at most {LIMIT_MB_PER_HOUR} may be")
    for words, count in failed.most_common(10):
        print(f"{count} times {words}")
    return int(grows > LIMIT_MB_PER_HOUR or bool(failed))


if __name__ == "__main__":
    sys.exit(main())
