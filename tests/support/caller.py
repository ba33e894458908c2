"""Who calls a function again and again and takes the time: a process of its own, which nothing of the test delays.

A thread of the test would wait for the interpreter while another makes a text of 7 MB, and tell that as the worker's time.
The process does what lines on its stdin say, one measurement after the other, and answers in lines of JSON:

    python -m tests.support.caller PORT NAME

    GAP_S MOST   begin: call NAME, each time after a pause; MOST calls end it as "stop" does
    after MORE   how many calls there were, as soon as there are so many more
    stop         the end: {"ms": how long each call took, "wrong": what came that was not the event}
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE
from typing import Any, BinaryIO

from benchmarks.harness.client import BadAnswer, Client, request

REPO = Path(__file__).resolve().parents[2]
ENDLESS = 1 << 30
"""MOST, where "stop" is to end it."""
_TIMEOUT_S = 30.0
"""The time limit of one call."""


class Caller:
    """The process, as its parent sees it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @classmethod
    def start(cls, port: int, name: str) -> Caller:
        """One that waits for orders; in a session, and so a scheduling group, of its own, as a client elsewhere would be."""
        command = [sys.executable, "-m", "tests.support.caller", str(port), name]
        return cls(subprocess.Popen(command, stdin=PIPE, stdout=PIPE, cwd=REPO, start_new_session=True))

    def tell(self, order: str) -> None:
        """Raises: AssertionError where it has died."""
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), f"{order}\n".encode())
        except BrokenPipeError:
            raise self._died() from None

    def answer(self) -> Any:
        """Wait for its next one; who does not wait to the end has none any more. Raises: AssertionError where it has died."""
        assert self._process.stdout is not None
        try:
            line = self._process.stdout.readline()
        except BaseException:  # the test's timeout: the answer would be taken for the next one
            self.kill()
            raise
        if not line.endswith(b"\n"):
            raise self._died()
        return json.loads(line)

    def wait_for(self, more: int) -> int:
        """Wait until it has made so many more calls; how many there were since the measurement began."""
        self.tell(f"after {more}")
        calls = self.answer()
        assert isinstance(calls, int)
        return calls

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _died(self) -> AssertionError:
        return AssertionError(f"the caller of the function died with status {self._process.wait()}")

    def close(self) -> None:
        with self._process:
            self.kill()


class _Calls:
    """One measurement, in the process itself. The events are 0, 1, ..., and a right answer is the event."""

    def __init__(self, port: int, name: str) -> None:
        self._port = port
        self._name = name
        self._client: Client | None = None
        self.ms: list[float] = []
        self.wrong: list[str] = []

    def call(self) -> None:
        body = str(len(self.ms)).encode()
        started = time.perf_counter()
        try:
            if self._client is None:
                self._client = Client("127.0.0.1", self._port, timeout_s=_TIMEOUT_S)
            answer = self._client.exchange(request(self._name, body))
            if answer.body != body:
                self.wrong.append(f"{answer.status} {answer.body[:200]!r}")
        except (OSError, BadAnswer) as error:
            self.wrong.append(repr(error))
            self.close()
        self.ms.append((time.perf_counter() - started) * 1000)

    def close(self) -> None:
        """End its connection; another call would make another."""
        if self._client is not None:
            self._client.socket.close()
            self._client = None


def _measure(calls: _Calls, orders: BinaryIO, gap_s: float, most: int) -> None:
    """Call until an order to stop comes, or often enough. A call that is due is made however fast orders come."""
    wanted: int | None = None
    due = time.monotonic() + gap_s
    while len(calls.ms) < most:
        if select.select([orders], [], [], max(0.0, due - time.monotonic()))[0]:
            verb, *more = orders.readline().split()
            if verb != b"after":
                break
            wanted = len(calls.ms) + int(more[0])
        if wanted is not None and len(calls.ms) >= wanted:
            _say(len(calls.ms))
            wanted = None
        if time.monotonic() >= due:
            calls.call()
            due = time.monotonic() + gap_s
    calls.close()
    _say({"ms": calls.ms, "wrong": calls.wrong})


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


def main(port: str, name: str) -> None:
    with open(0, "rb", buffering=0, closefd=False) as orders:  # what a buffer holds, select does not see
        while order := orders.readline():
            gap_s, most = order.split()
            _measure(_Calls(int(port), name), orders, float(gap_s), int(most))


if __name__ == "__main__":
    main(*sys.argv[1:])
