"""`python -m demo.cluster`: three workers, PostgreSQL and HAProxy on this machine, and what becomes of events when a worker dies.

Starts all of it (`sockd cluster up`), and leaves nothing behind. Exits 1 when a request failed or an event was lost.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.table import print_table
from benchmarks.harness.worker import REPOSITORY, WorkerFailed, lines_until, sockd, stop, tail
from demo.run import say

NAMES = ("w1", "w2", "w3")
FUNCTIONS = tuple(f"f{number}" for number in range(6))
EVENTS = 40
CALLS = 100
START_S = 180.0
EVENTS_S = 120.0
"""How long the events may take of the worker that died: it starts again, or is missed after 15 s."""
CODE = "import time\ndef f(event):\n    time.sleep(event.get('s', 0))\n    return event\n"


class DemoFailed(Exception):
    """A request failed, or an event was lost."""


class Group:
    """The group that `sockd cluster up` runs."""

    def __init__(self, directory: Path, port: int) -> None:
        self._directory = directory
        self._port = port

    def cli(self, name: str, *arguments: str) -> str:
        """Return what a command prints at a worker. Raises: WorkerFailed."""
        command = [*sockd(), *arguments, "--state-dir", str(self._directory / name)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
        if done.returncode:
            raise WorkerFailed(f"sockd {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def json(self, name: str, *arguments: str) -> Any:
        """Return what a command prints as JSON."""
        return json.loads(self.cli(name, *arguments, "--json"))

    def call(self, function: str, event: object, *, later: bool = False) -> str:
        """Call a function through the front; return the worker that answered. Raises: DemoFailed."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        headers = {"X-Amz-Invocation-Type": "Event"} if later else {}
        with contextlib.closing(connection):
            connection.request("POST", f"/run/{function}", json.dumps(event), headers)
            answer = connection.getresponse()
            body = answer.read()
        if answer.status != (202 if later else 200):
            raise DemoFailed(f"{function}: status {answer.status}: {body[:500].decode(errors='replace')}")
        return str(answer.headers["x-sockd-worker"])


def kill(pid: int) -> None:
    """End a process by SIGKILL; return when it is gone."""
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.poll()
    finally:
        os.close(pidfd)


def main() -> int:
    """Run the demonstration. Returns the exit status."""
    try:
        with tempfile.TemporaryDirectory(prefix="sockd-cluster-") as scratch, running(Path(scratch)) as group:
            show(group, Path(scratch))
    except (DemoFailed, WorkerFailed, OSError, http.client.HTTPException) as error:
        print("demo failed:", error, *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    say("every request was answered, and every event has run")
    return 0


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Group]:
    """A group for the length of a block. Raises: WorkerFailed."""
    directory.chmod(0o711)  # PostgreSQL runs as another user
    port, log = free_ports(), directory / "cluster.log"
    command = [*sockd(), "cluster", "up", f"--workers={len(NAMES)}", f"--port={port}", f"--directory={directory}/group"]
    say(f"starting PostgreSQL, {len(NAMES)} workers and HAProxy")
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=REPOSITORY)
    try:
        assert process.stdout is not None
        if not any("serves at" in line for line in lines_until(process.stdout, time.monotonic() + START_S)):
            raise WorkerFailed("the group did not start")
        yield Group(directory / "group", port)
    except Exception as error:
        error.add_note(tail(log))
        raise
    finally:
        stop(process)


def free_ports() -> int:
    """Return a port that is free, with as many after it as there are workers."""
    while True:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            first = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port: int = first.getsockname()[1]
            for number in range(1, len(NAMES) + 1):
                stack.enter_context(socket.create_server(("127.0.0.1", port + number)))
            return port


def show(group: Group, scratch: Path) -> None:
    """Deploy and call functions, kill a worker, and show what comes of it. Raises: DemoFailed."""
    code = scratch / "function"
    code.mkdir()
    (code / "f.py").write_text(CODE)
    say("deploying functions")
    for name in NAMES:
        for function in FUNCTIONS:
            group.cli(name, "deploy", str(code), "--name", function)
    homes = {function: group.call(function, {}) for function in FUNCTIONS}
    print_table("which worker serves a function", ("function", "worker"), list(homes.items()))
    print(group.cli("w1", "workers"))
    home = homes[FUNCTIONS[0]]
    other = next(name for name in NAMES if name != home)
    pid = group.json(home, "status")["pid"]
    say(f"having {EVENTS} events run, and killing {home}, which runs them")
    for _ in range(EVENTS):
        group.call(FUNCTIONS[0], {"s": 0.5}, later=True)
    kill(pid)
    served = Counter(group.call(FUNCTIONS[1], {}) for _ in range(CALLS))
    served += Counter(group.call(FUNCTIONS[0], {}) for _ in range(CALLS))
    print_table("who served meanwhile", ("worker", "calls"), [(name, str(calls)) for name, calls in served.items()])
    await_events(group, other)
    print(group.cli(other, "workers"))


def await_events(group: Group, name: str) -> None:
    """Wait until no worker has an event. Raises: DemoFailed."""
    ends = time.monotonic() + EVENTS_S
    while left := sum(row["events"] for row in group.json(name, "workers")):
        if time.monotonic() > ends:
            raise DemoFailed(f"{left} events have not run")
    if dead := group.json(name, "events", "ls", "--state", "dead"):
        raise DemoFailed(f"{len(dead)} events are dead letters")


if __name__ == "__main__":
    sys.exit(main())
