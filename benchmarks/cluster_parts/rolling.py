"""A rolling upgrade under load: clients of HAProxy call while `sockd cluster roll` has each worker ended and started again.

The command that replaces a worker is `python -m benchmarks.cluster_parts.rolling SOCKET NAME`: it has this benchmark, the owner
of the workers, do it, and ends when the worker serves again, as `systemctl restart` does.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cluster_parts.group import Group
from benchmarks.harness.functions import Function
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run
from benchmarks.harness.worker import REPOSITORY, Worker, WorkerFailed, sockd
from benchmarks.upgrade import ECHO, Clients

CLIENTS = 16
SHARE_BEFORE = 0.1


def measure_rolling(run: Run, group: Group, scratch: Path, result: Result) -> None:
    wanted = run.pick(12_000, 1500)
    group.deploy(Function("echo", ECHO, settings={"handler": "handler:f"}).write(scratch), "echo")
    with group.front() as port, _replacing(group) as at:
        clients = Clients(port, CLIENTS)
        with clients.calling():
            clients.wait(int(wanted * SHARE_BEFORE))
            began = time.perf_counter()
            _roll(group.workers[max(group.workers)], at)
            took_s = time.perf_counter() - began
            clients.wait(max(wanted, clients.requests + int(wanted * SHARE_BEFORE)))
    result.add("rolling upgrade", "duration", "s", [took_s], tail=False)
    result.add("rolling upgrade", "wait of a request", "ms", [each * 1000 for each in clients.waits_s])
    result.add("rolling upgrade", "requests", "", [float(clients.requests)], tail=False)
    result.aim("requests that failed during a rolling upgrade", clients.failed.total(), "<= 0")
    for words, count in clients.failed.most_common(3):
        result.notes.append(f"rolling upgrade: {count} times {words}")


def _roll(asked: Worker, at: Path) -> None:
    """Run `sockd cluster roll` on a worker."""
    command = (sys.executable, "-m", "benchmarks.cluster_parts.rolling", str(at), "{name}")
    words = [*sockd(), "cluster", "roll", "--state-dir", str(asked.state_dir), "--", *command]
    done = subprocess.run(words, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    if done.returncode:
        raise WorkerFailed(done.stderr)


@contextlib.contextmanager
def _replacing(group: Group) -> Iterator[Path]:
    """Replace workers for commands, for the length of a block; the value is the socket at which they ask."""
    with tempfile.TemporaryDirectory(prefix="sockd-bench-roll-") as directory:
        path = Path(directory) / "socket"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            thread = threading.Thread(target=_serve, args=(listener, group))
            thread.start()
            try:
                yield path
            finally:
                listener.shutdown(socket.SHUT_RDWR)  # ends its accept
                thread.join()


def _serve(listener: socket.socket, group: Group) -> None:
    with contextlib.suppress(OSError):  # it is over
        while True:
            connection, _ = listener.accept()
            with connection:
                name = connection.recv(100).decode()
                group.stop(name)
                group.start(name)
                connection.sendall(b"\n")


def replaced(path: str, name: str) -> bool:
    """Have the benchmark replace a worker; whether it has."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(name.encode())
        return bool(connection.recv(1))


if __name__ == "__main__":
    sys.exit(not replaced(*sys.argv[1:]))
