"""The pieces of work that have a budget: each is done some times, in parts that are counted apart.

Owns nothing: the caller owns the worker."""

from __future__ import annotations

import http.client
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.daemon.running import RunningDaemon

NOOP = "def f(event): return event"
CALLS = 15
"""Pieces in one measurement."""
WARM_CALLS = 100
_numbers = itertools.count()

Work = Callable[[], Iterator[int]]
"""Does the pieces; yields after each part how many pieces it had."""
PAUSE_S = 0.05
"""Behind each start: its sandbox has ended and another spare is there before the next, on most machines."""


class NotThatWork(Exception):
    """A sandbox came from somewhere else: the machine was too busy for this measurement."""


@contextmanager
def calls(daemon: RunningDaemon, name: str, origin: str) -> Iterator[Work]:
    """Requests over one kept connection, each with a body of another length, half of them with a trace header.

    Args: origin: what each answer says of its sandbox. Raises: NotThatWork, of the work, when one says something else."""
    host, port = daemon.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port))
    headers: dict[str, str] = {} if origin == "warm" else {"X-Sockd-Fresh": "1"}
    traced = {**headers, "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    pause = threading.Event()

    def work() -> Iterator[int]:
        for number in range(WARM_CALLS if origin == "warm" else CALLS):
            body = b'"%s"' % (b"x" * (number * 37 % 2000))
            connection.request("POST", f"/run/{name}", body, traced if number % 2 else headers)
            answer = connection.getresponse()
            assert (answer.read(), answer.status) == (body, 200)
            if answer.headers["x-sockd-origin"] != origin:
                raise NotThatWork(answer.headers["x-sockd-origin"])
            if origin != "warm":
                pause.wait(PAUSE_S)
                yield 1
        if origin == "warm":
            yield WARM_CALLS

    try:
        yield work
    finally:
        connection.close()


def deploys(daemon: RunningDaemon) -> Work:
    """Deploys of one function, each with other code."""

    def work() -> Iterator[int]:
        for _ in range(CALLS):
            daemon.deploy("deployed", f"# {next(_numbers)}\n{NOOP}")
            yield 1

    return work
