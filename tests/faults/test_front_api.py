"""Clients that send too much, too slowly, or all at once."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections import defaultdict

import pytest

from tests.daemon.kernel_view import open_fds
from tests.faults import flood
from tests.faults.watching import MB, attack, ms_until
from tests.support.cases import Happened, case
from tests.support.private_worker import NEIGHBOUR, PrivateWorker

pytestmark = pytest.mark.root

LIMIT_BYTES = 6 * MB
FLOOD = 10_000
"""Connections; the worker takes 4096 (http.max_connections)."""
SLOW = 50
HALF_A_HEAD = b"POST /run/neighbour HTTP/1.1\r\nHost: loc"
TERABYTE = b"POST /run/neighbour HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\n"
A_REQUEST = b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1"
MUCH = b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n" + b" " * 200_000
RESETS = 20
BURST = 1000
POOL = 8
COUNTS = """
seen = []
def f(event):
    seen.append(event)
    return [event, len(seen)]
"""


@case("D9", "7 MB in, 7 MB out, and a Content-Length of a terabyte", expect="413, 413 and 413; the next is served")
def test_payloads_are_limited_both_ways(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy("makes", "def f(event): return 'x' * event", memory_mb=256)
    large = json.dumps("x" * (7 * MB)).encode()
    with attack(worker, happened) as watch:
        for _ in watch.rounds():
            sent = worker.daemon.request("POST", f"/run/{NEIGHBOUR}", large)
            chunked = worker.daemon.request("POST", f"/run/{NEIGHBOUR}", iter([large]), encode_chunked=True)
            made = worker.invoke("makes", 7 * MB)
            with flood.connections(worker.daemon.port, 1) as (client,):
                client.sendall(TERABYTE)
                terabyte = client.recv(4096).split(b"\r\n")[0]
            again = worker.invoke("makes", 5)
    kinds = [sent.json["errorType"], chunked.json["errorType"], made.error]
    happened(
        f"in {sent.status} {kinds[0]}, chunked {chunked.status}, out {made.status} {made.error}, {terabyte.decode()}"
    )
    assert (sent.status, chunked.status, made.status, terabyte.split()[1]) == (413, 413, 413, b"413")
    assert kinds == ["RequestTooLargeException", "RequestTooLargeException", "Function.ResponseSizeTooLarge"]
    assert (again.status, again.json, again.headers["x-sockd-cold"]) == (200, "x" * 5, "0")


@case(
    "D10",
    f"{FLOOD} idle connections, and {SLOW} clients that never finish their first line",
    expect="bounded; the idle and the slow make way; old and new clients are served all the while",
)
def test_a_flood_of_connections_is_bounded(worker: PrivateWorker, happened: Happened) -> None:
    need_open_files(FLOOD + 1000)
    worker.deploy("newcomer", "def f(event): return event")
    with attack(worker, happened):
        before = len(open_fds(worker.daemon.pid))
        with (
            flood.connections(worker.daemon.port, SLOW, HALF_A_HEAD) as slow,
            flood.held(worker.daemon.port, FLOOD),
        ):
            held = len(open_fds(worker.daemon.pid)) - before
            newcomer = worker.invoke("newcomer", 1)
            closed, said = flood.ended(slow, 5)
        back_ms = ms_until(lambda: len(open_fds(worker.daemon.pid)) <= before + 10)
    happened(f"{held} of {FLOOD} connections held; a new client: {newcomer.status} in {newcomer.ms:.0f} ms")
    happened(f"descriptors back {back_ms:.0f} ms later; {closed} of {SLOW} slow ones ended with {sorted(said)}")
    assert held <= 4200
    assert newcomer.status == 200
    assert closed == SLOW


@case("D10", "clients that never finish their first line", expect="408 after ten seconds", default=False)
@pytest.mark.timeout(40)
def test_a_slow_client_learns_that(worker: PrivateWorker, happened: Happened) -> None:
    with worker.watching() as watch, flood.connections(worker.daemon.port, SLOW, HALF_A_HEAD) as slow:
        started = time.monotonic()
        closed, said = flood.ended(slow, 20)
    happened(f"{closed} of {SLOW} ended after {time.monotonic() - started:.0f} s with {sorted(said)}; {watch}")
    assert closed == SLOW and said == {b"HTTP/1.1 408 Request Timeout"} and not watch.wrong


@case(
    "D14",
    f"{RESETS} clients reset their connections, with more sent than one read takes, while the worker looks elsewhere",
    expect="each connection is seen to be over at once, not when its minute for a body has passed",
)
def test_a_reset_behind_much_that_was_sent_is_seen(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy("echo", "def f(event): return event", concurrency=1)
    worker.call("echo", 1)
    before = set(open_fds(worker.daemon.pid))
    with worker.watching() as watch:
        with flood.connections(worker.daemon.port, RESETS, A_REQUEST) as clients:
            for client in clients:  # a connection that has asked for something is watched by the loop itself
                assert client.recv(4096).startswith(b"HTTP/1.1 200")
            theirs = {fd for fd in open_fds(worker.daemon.pid) if fd.startswith("socket:")} - before
            assert len(theirs) >= RESETS
            os.kill(worker.daemon.pid, signal.SIGSTOP)
            try:
                for client in clients:
                    client.setblocking(False)
                    client.send(MUCH)
            finally:
                for client in clients:
                    client.close()
                os.kill(worker.daemon.pid, signal.SIGCONT)
        # A few may be those of sandboxes that were made meanwhile.
        back_ms = ms_until(lambda: len(theirs.intersection(open_fds(worker.daemon.pid))) <= RESETS // 4)
    happened(f"sockets closed after {back_ms:.0f} ms; {watch}")
    assert not watch.wrong


@case(
    "D11",
    f"{BURST} requests at the same moment for a function with {POOL} sandboxes and a queue of 500",
    expect="served or 429 with Retry-After; none lost, none run twice",
)
def test_a_burst_is_served_or_refused_and_never_lost(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy("counts", COUNTS, concurrency=POOL, queue_depth=500, memory_mb=48, timeout_s=20)
    with attack(worker, happened):
        started = time.monotonic()
        answers = flood.answers_of_burst(worker.daemon.port, "counts", BURST)
        took_s = time.monotonic() - started
    served = {number: answer for number, answer in enumerate(answers) if answer.status == 200}
    refused = [answer for answer in answers if answer.status == 429]
    counts: dict[str, list[int]] = defaultdict(list)
    for number, answer in served.items():
        event, seen = answer.json
        assert event == number
        counts[answer.headers["x-sockd-sandbox"]].append(seen)
    happened(f"{len(served)} served by {len(counts)} sandboxes, {len(refused)} times 429, in {took_s:.1f} s")
    assert len(served) + len(refused) == BURST and len(served) >= 500 + POOL
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    # Each sandbox has counted its requests: as many as it has answered, so none ran whose answer was lost.
    assert all(sorted(seen) == list(range(1, len(seen) + 1)) for seen in counts.values())


def need_open_files(count: int) -> None:
    """Skip the case where a process may not have so many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"the hard limit of open files is {hard}, this case needs {count}")
