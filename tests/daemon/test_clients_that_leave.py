"""What a trace says of a request whose client did not wait for the answer."""

from __future__ import annotations

import socket

import pytest

from tests.daemon.gate import Gate
from tests.daemon.running import RunningDaemon

pytestmark = pytest.mark.root

TAKES_LONGER = """
import time
from gate import wait
def f(event):
    until = time.monotonic() + 0.02
    while time.monotonic() < until:
        pass
    return wait(event)
"""
STREAMS = """
def f(pieces):
    while pieces:
        yield "more" * 1000
        pieces -= 1
"""
ENDLESS = -1


def ask(daemon: RunningDaemon, name: str, event: int) -> socket.socket:
    """The connection of a client that has sent a request."""
    client = socket.create_connection(("127.0.0.1", daemon.port), timeout=10)
    body = str(event)
    client.sendall(
        f"POST /run/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    return client


def outcomes(daemon: RunningDaemon, name: str) -> list[str]:
    """Return the outcomes of the function's invocations, the last one first."""
    return [each["outcome"] for each in daemon.manage("GET", f"/traces?function={name}").json]


def test_an_answer_that_no_one_waited_for_is_not_ok(daemon: RunningDaemon, gate: Gate) -> None:
    daemon.deploy("waits", {"f.py": TAKES_LONGER, "gate.py": Gate.CODE}, concurrency=1)
    ask(daemon, "waits", gate.port).close()
    gate.arrived()
    gate.open()
    with ask(daemon, "waits", gate.port) as client:  # behind the first, whose trace is there when this one runs
        gate.arrived()
        gate.open()
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
    assert outcomes(daemon, "waits") == ["ok", "client left"]


def test_a_stream_whose_reader_left_is_not_ok(daemon: RunningDaemon) -> None:
    daemon.deploy("streams", STREAMS, concurrency=1)
    with ask(daemon, "streams", ENDLESS) as client:
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
    with ask(daemon, "streams", 2) as client:  # behind the first
        whole = b""
        while not whole.endswith(b"0\r\n\r\n"):
            whole += client.recv(1 << 20)
    assert outcomes(daemon, "streams") == ["ok", "client left"]
