"""Clients that call without a pause while one worker follows another: does a request fail, and how long does the slowest wait?

Each way of the guide's page is tried on a private worker: `--take-over`, SIGUSR2, and a socket that stays open while the worker
is stopped and started, as systemd's. Half of the clients keep their connection, half open one for each request; bodies have any
length, some requests have a trace header, and clients pause at random. A streamed answer and a followed log are open from before.
Owns the worker. Speaks HTTP and the command line only. `scripts/upgrade-test` runs it.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.worker import REPOSITORY, WorkerFailed, sockd, stop, tail, wait_ready

ECHO = "print('begun')\n\n\ndef f(event):\n    return event\n"
STREAM = """
import time
def f(event):
    for number in range(event["pieces"]):
        yield f"{number}\\n"
        time.sleep(0.25)
"""
PIECES = 16
"""The pieces of the streamed answer: four seconds."""
PATIENCE_S = 60.0
LONGEST_PAUSE_S = 0.01
SHARE_BEFORE, SHARE_AFTER = 0.3, 0.3
"""The shares of all requests that are answered before the upgrade begins, and after it at least."""
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@dataclass
class Clients:
    """Clients of one function. Counts are under the lock."""

    port: int
    count: int
    waits_s: list[float] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _ended: bool = False

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """All clients call until the end of the block."""
        threads = [threading.Thread(target=self._call, args=(number,)) for number in range(self.count)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended = True
            for thread in threads:
                thread.join()

    def wait(self, requests: int) -> None:
        """Wait until so many requests have ended. Raises: WorkerFailed, when they do not."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.requests >= requests, PATIENCE_S * 5):
                raise WorkerFailed(f"{self.requests} requests have ended, and not {requests}")

    @property
    def requests(self) -> int:
        return len(self.waits_s) + self.failed.total()

    def _call(self, number: int) -> None:
        draw, keeps = random.Random(number), number % 2 == 0
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        pause = threading.Event()
        while not self._ended:
            body = json.dumps("x" * draw.randrange(2000)).encode()
            headers = {"traceparent": TRACE} if draw.random() < 0.2 else {}
            began = time.monotonic()
            failure = exchange(connection, body, headers)
            with self._changed:
                if failure:
                    self.failed[failure] += 1
                else:
                    self.waits_s.append(time.monotonic() - began)
                self._changed.notify_all()
            if failure or not keeps:
                connection.close()
            pause.wait(draw.random() * LONGEST_PAUSE_S)
        connection.close()


def exchange(connection: http.client.HTTPConnection, body: bytes, headers: dict[str, str]) -> str:
    """Call the function once; returns what was wrong, empty: nothing. Nothing is tried again."""
    try:
        connection.request("POST", "/run/echo", body, headers)
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    if answer.status != 200:
        return f"{answer.status} {text[:80]!r}"
    return "" if text == body else "another answer"


class Upgrade:
    """A worker that is followed by another in one of the ways."""

    def __init__(self, scratch: Path) -> None:
        self._state = scratch / "state"
        self._log = (scratch / "worker.log").open("a")
        self._config = scratch / "sockd.toml"
        self._config.write_text("")
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.port: int = self._socket.getsockname()[1]
        self._process: subprocess.Popen[str] | None = None
        self.log = scratch / "worker.log"

    def start(self, *, activated: bool = False, arguments: Sequence[str] = ()) -> None:
        """Start a worker, and wait until it serves. Args: activated: it is given the socket, as by systemd."""
        command = [*sockd(), "up", "--listen", f"127.0.0.1:{self.port}", "--config", str(self._config), *arguments]
        given = [self._socket.fileno()] if activated else []
        if activated:
            # The shell keeps its pid: LISTEN_PID is the worker's.
            words = f'LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=sockd.socket exec "$@" 3<&{given[0]}'
            command = ["bash", "-c", words, "bash", *command]
        else:
            self._socket.close()
        self._process = subprocess.Popen(
            [*command, "--state-dir", str(self._state)],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=REPOSITORY,
            pass_fds=given,
            start_new_session=True,
        )
        wait_ready(self._process)

    def deploy(self, scratch: Path) -> None:
        """Deploy the functions."""
        for name, code in (("echo", ECHO), ("stream", STREAM)):
            directory = scratch / name
            directory.mkdir()
            (directory / "f.py").write_text(code)
            command = [*sockd(), "deploy", str(directory), "--name", name, "--state-dir", str(self._state)]
            subprocess.run(command, check=True, capture_output=True, cwd=REPOSITORY)

    def follow_log(self) -> Follower:
        """Start `sockd logs -f`."""
        return Follower([*sockd(), "logs", "echo", "-f", "--state-dir", str(self._state)])

    def take_over(self) -> None:
        """Start another worker with --take-over; the old one must end with 0."""
        old = self._process
        assert old is not None
        self.start(arguments=["--take-over"])
        if status := old.wait(PATIENCE_S):
            raise WorkerFailed(f"the old worker ended with {status}")
        assert old.stdout
        old.stdout.close()

    def restart_in_place(self) -> None:
        """Send SIGUSR2, and wait until the process serves again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR2)
        wait_ready(self._process)

    def restart_below_socket(self) -> None:
        """Stop the worker and start another, which both have the socket of somebody else."""
        assert self._process is not None
        stop(self._process)
        self.start(activated=True)

    def close(self) -> None:
        """End the worker."""
        self._socket.close()
        if self._process is not None:
            stop(self._process)
        self._log.close()


class Follower:
    """`sockd logs -f`, which follows a worker from its first line on, until that worker ends."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=REPOSITORY)
        self._begun = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        with self._process.stdout as lines:
            for _ in lines:
                self._begun.set()

    def wait_begun(self) -> None:
        """Wait for its first line. Raises: WorkerFailed."""
        if not self._begun.wait(PATIENCE_S):
            raise WorkerFailed("sockd logs -f shows nothing")

    def wait_ended(self) -> None:
        """Wait for its end. Raises: subprocess.TimeoutExpired."""
        self._process.wait(PATIENCE_S)
        self._reader.join()


WAYS: dict[str, Callable[[Upgrade], None]] = {
    "take-over": Upgrade.take_over,
    "in-place": Upgrade.restart_in_place,
    "socket": Upgrade.restart_below_socket,
}


def stream(port: int, lines: list[bytes]) -> None:
    """Read the streamed answer to its end, or to where it is cut."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
        connection.request("POST", "/run/stream", json.dumps({"pieces": PIECES}))
        lines += connection.getresponse().read().splitlines()


def run(way: str, requests: int, clients: int) -> bool:
    """Try one way, print a line, and return whether nothing failed."""
    with tempfile.TemporaryDirectory(prefix="sockd-upgrade-") as name:
        scratch = Path(name)
        upgrade = Upgrade(scratch)
        try:
            upgrade.start(activated=way == "socket")
            upgrade.deploy(scratch)
            callers, lines = Clients(upgrade.port, clients), list[bytes]()
            streaming = threading.Thread(target=stream, args=(upgrade.port, lines))
            following = upgrade.follow_log()
            with callers.calling():
                callers.wait(int(requests * SHARE_BEFORE))
                following.wait_begun()  # else it may follow the next worker
                streaming.start()
                began = time.monotonic()
                WAYS[way](upgrade)
                took_s = time.monotonic() - began
                callers.wait(max(requests, int(callers.requests + requests * SHARE_AFTER)))
            streaming.join()
            following.wait_ended()
        except Exception as error:
            error.add_note(f"the end of the worker's log:\n{tail(upgrade.log)}")
            raise
        finally:
            upgrade.close()
    waits = sorted(callers.waits_s)
    is_whole = len(lines) == PIECES
    print(
        f"{way:10} {callers.requests} requests of {clients} clients, {callers.failed.total()} failed; "
        f"the next worker served after {took_s:.1f} s; p50 {waits[len(waits) // 2] * 1e3:.1f} ms, "
        f"p99 {waits[len(waits) * 99 // 100] * 1e3:.0f} ms, longest {waits[-1]:.2f} s; "
        f"the streamed answer {'is whole' if is_whole else f'was cut behind {len(lines)} of {PIECES} pieces'}",
        flush=True,
    )
    for words, count in callers.failed.most_common(10):
        print(f"    {count} times {words}")
    return is_whole and not callers.failed


def main() -> int:
    """Try all ways, or those that are named; 1: a request failed, or the stream was cut."""
    parser = argparse.ArgumentParser(prog="scripts/upgrade-test", description=__doc__)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=", ".join(WAYS), default=list(WAYS))
    parser.add_argument("--requests", type=int, default=10_000, help="of each way, at least")
    parser.add_argument("--clients", type=int, default=64)
    arguments = parser.parse_args()
    if unknown := [way for way in arguments.ways if way not in WAYS]:
        parser.error(f"no way {unknown[0]!r}; there are {', '.join(WAYS)}")
    results = [run(way, arguments.requests, arguments.clients) for way in arguments.ways]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
