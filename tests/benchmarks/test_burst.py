"""A burst goes on whatever it is answered, and its rates count what was answered with 200."""

from __future__ import annotations

import itertools
import socketserver
import threading
from collections.abc import Iterator

import pytest

from benchmarks.harness.burst import Burst, burst
from benchmarks.harness.client import request

ANSWERS = (
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 504 Gateway Timeout\r\ncontent-length: 4\r\n\r\nlate",
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy",
)


class Handler(socketserver.StreamRequestHandler):
    """Answers one request of each kind, and hangs up at the next."""

    def handle(self) -> None:
        for answer in ANSWERS:
            while (line := self.rfile.readline()) not in (b"\r\n", b""):
                pass
            if not line:
                return
            self.rfile.read(2)
            self.wfile.write(answer)


@pytest.fixture
def port() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_address[1]
        server.shutdown()


def test_failures_are_counted_and_do_not_end_it(port: int) -> None:
    found = burst("127.0.0.1", port, 3, itertools.repeat(request("f")), 60)
    assert len(found.ok_s) == 3 and found.ok_s == sorted(found.ok_s)
    assert found.failures["504 late"] == found.failures["503 busy"] == 3
    assert found.failed == 9, "a connection that ends without an answer is a failure, too"


def test_a_rate_is_reached_when_a_window_has_it() -> None:
    found = Burst(10.0, ok_s=[2.0, 4.0, *(5 + n / 10 for n in range(50))])
    assert found.first_s == 2.0
    assert found.rate(5.0) == 10
    assert found.reached_s(10) == 5.0
    assert found.reached_s(20) == 10.0, "it was never reached"
    assert Burst(3.0).first_s == Burst(3.0).reached_s(1) == 3.0
