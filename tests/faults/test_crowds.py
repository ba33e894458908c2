"""Clients that take the front's memory, or its places, and those beside them: the worker's other functions and their callers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sockd.linux.cgroups.tree import CgroupTree, Hierarchies
from sockd.linux.processes import oom_score
from tests.daemon.kernel_view import rss_kb
from tests.faults import flood
from tests.faults.test_front_api import need_open_files
from tests.faults.watching import MB
from tests.support.cases import Happened, case
from tests.support.private_worker import NEIGHBOUR, PrivateWorker

pytestmark = pytest.mark.root

BUFFER_MB = 64
LIMIT_MB = 400
"""The memory of the daemon's cgroup, with what it starts before that has one of its own."""
HOARDERS = 300
BODY_BYTES = 6 * MB
HOLD_S = 6
PASSING, PIECE_BYTES = 60, 50_000
HELD_KB = PASSING * BODY_BYTES * 9 // 10 // 1024
"""By how much that many bodies make the daemon grow, at least."""
CALLS = 20
PLACES, CROWD = 1024, 1350
"""Connections that a worker takes, and that one user has: a quarter of the default, as the rule counts in shares of it."""
HOARDS = """
import collections, select, socket, time

def f(event):
    port, count, size, hold_s = event
    head = b"POST /run/neighbour HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: %d\\r\\n\\r\\n" % size
    piece, left, said, sent = bytes(1 << 17), {}, collections.Counter(), 0
    ends, poller = time.monotonic() + hold_s, select.poll()
    while time.monotonic() < ends:
        while len(left) < count:
            s = socket.create_connection(("127.0.0.1", port))
            s.setblocking(False)
            s.send(head)
            left[s.fileno()] = [s, size - 1]
            poller.register(s, select.POLLIN | select.POLLOUT)
        for fd, events in poller.poll(100):
            s, rest = left[fd]
            try:
                if events & select.POLLIN and not (reported := s.recv(4096)):
                    raise ConnectionError
                elif events & select.POLLIN:
                    said[reported[:12].decode()] += 1
                    raise ConnectionError
                if events & select.POLLOUT and rest:
                    n = s.send(piece[:rest])
                    left[fd][1] -= n
                    sent += n
                    if not left[fd][1]:
                        poller.modify(fd, select.POLLIN)
            except (ConnectionError, BlockingIOError) as error:
                if isinstance(error, BlockingIOError):
                    continue
                poller.unregister(fd)
                s.close()
                del left[fd]
    return [sent >> 20, dict(said)]
"""


@pytest.fixture
def limited() -> Iterator[list[str]]:
    """A command that starts a worker in a cgroup of its own with a limit of memory."""
    tree = CgroupTree.create(Hierarchies.detect(), f"sockd-test-{uuid.uuid4().hex[:8]}")
    try:
        cgroup = tree.cgroup("daemon")
        cgroup.limits.set_memory(LIMIT_MB * MB)
        joined = [os.path.join(top, "daemon", "cgroup.procs") for top in tree.directories]
        enter = f"import os, sys\nfor each in {joined}: open(each, 'w').write('0')\nos.execv(sys.argv[1], sys.argv[1:])"
        up = (sys.executable, "-m", "sockd", "up", "--listen", "127.0.0.1:0")
        yield [sys.executable, "-c", enter, *up]
        assert cgroup.oom_kills() == 0
        cgroup.close()
    finally:
        tree.destroy_all(5)


@case(
    "K2",
    f"{HOARDERS} connections of a function, each with an unfinished body of 6 MB, in a worker with {LIMIT_MB} MB",
    expect="the daemon takes its budget and half of its idle size at most; neighbours lose no call, large ones included",
)
def test_unfinished_bodies_stay_within_a_budget(limited: list[str], happened: Happened, tmp_path: Path) -> None:
    worker = PrivateWorker(tmp_path, f"[http]\nbuffer_mb = {BUFFER_MB}\n", command=limited)
    try:
        worker.deploy("hoards", HOARDS, memory_mb=128, timeout_s=30)
        large = json.dumps("x" * MB).encode()
        assert worker.daemon.request("POST", f"/run/{NEIGHBOUR}", large).status == 200
        idle_kb, most_kb, over = rss_kb(worker.daemon.pid), 0, threading.Event()
        reported: list[object] = []

        def hoard() -> None:
            reported.append(worker.invoke("hoards", [worker.daemon.port, HOARDERS, BODY_BYTES, HOLD_S]).json)
            over.set()

        wrong, calls = [], 0
        with worker.watching() as watch:
            attacker = threading.Thread(target=hoard)
            attacker.start()
            while not over.wait(0.02):
                answer = worker.daemon.request("POST", f"/run/{NEIGHBOUR}", large)
                calls += 1
                if answer.status != 200 or answer.body != large:
                    wrong.append((answer.status, answer.body[:200]))
                most_kb = max(most_kb, rss_kb(worker.daemon.pid))
            attacker.join()
        happened(
            f"daemon {idle_kb // 1024} -> {most_kb // 1024} MB with a budget of {BUFFER_MB} MB; attacker sent {reported}"
        )
        happened(
            f"{len(watch.ms)} small calls of the neighbour and {calls} of 1 MB, wrong: {watch.wrong[:3]} {wrong[:3]}"
        )
        assert most_kb <= 1.5 * idle_kb + BUFFER_MB * 1024
        assert watch.ms and calls and not watch.wrong and not wrong
        assert worker.alive
    finally:
        worker.close()


@case(
    "K2",
    f"{PASSING} connections with unfinished bodies of 6 MB, which are closed; others that came meanwhile stay",
    expect="10 s later the daemon has at most 1.5 times its idle memory",
)
def test_the_memory_of_bodies_returns_to_the_host(
    tmp_path: Path, happened: Happened, request: pytest.FixtureRequest
) -> None:
    config = f"[http]\nbuffer_mb = {PASSING * 2 * 7}\n"
    worker = PrivateWorker(tmp_path, config, broken=request.config.getoption("broken", default=""))
    pid, port, body = worker.daemon.pid, worker.daemon.port, bytes(BODY_BYTES - 1)
    stay: list[socket.socket] = []
    try:
        idle_kb = rss_kb(pid)
        head = f"POST /run/{NEIGHBOUR} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {BODY_BYTES}\r\n\r\n".encode()
        with flood.connections(port, PASSING, head) as clients:
            for start in range(0, BODY_BYTES - 1, PIECE_BYTES):
                for client in clients:  # in turns, so that the bodies' parts lie among each other
                    client.sendall(body[start : start + PIECE_BYTES])
                stay.append(flood.connect(port))
                stay[-1].sendall(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\nGET /status HT")
            held_kb = worker.daemon.when(lambda: (rss := rss_kb(pid)) > idle_kb + HELD_KB and rss)
        left_kb = 0

        def is_small() -> bool:
            nonlocal left_kb
            left_kb = rss_kb(pid)
            return left_kb <= 1.5 * idle_kb

        with suppress(AssertionError):
            worker.daemon.when(is_small, deadline_s=10)
        happened(f"daemon {idle_kb >> 10} -> {held_kb >> 10} -> {left_kb >> 10} MB")
        assert left_kb <= 1.5 * idle_kb
    finally:
        for client in stay:
            client.close()
        worker.close()


@case(
    "K4",
    f"{CROWD} connections of one user with a whole head and an unfinished body, where a worker takes {PLACES}",
    expect=f"the {CALLS} calls of others are answered",
)
@pytest.mark.timeout(240)
@pytest.mark.parametrize("again", [False, True], ids=["held", "opened again"])
def test_a_crowd_with_unfinished_bodies_takes_no_places_from_others(
    tmp_path: Path, happened: Happened, request: pytest.FixtureRequest, again: bool
) -> None:
    need_open_files(2 * CROWD)
    broken = request.config.getoption("broken", default="")
    worker = PrivateWorker(tmp_path, f"[http]\nmax_connections = {PLACES}\n", broken=broken)
    try:
        with flood.held_bodies(worker.daemon.port, CROWD, again=again):
            statuses = [worker.invoke(NEIGHBOUR, number).status for number in range(CALLS)]
        happened(f"{statuses.count(200)} of {CALLS} answered")
        assert statuses == [200] * CALLS
        worker.settle()
        assert not [line for line in worker.daemon.lines if "Traceback" in line]
    finally:
        worker.close()


LOWERS = """
def f(event):
    try:
        with open("/proc/self/oom_score_adj", "w") as own:
            own.write(str(event))
    except OSError as error:
        return error.strerror
    with open("/proc/self/oom_score_adj") as own:
        return int(own.read())
"""


@case(
    "K2",
    "the host runs out of memory, as oom_score_adj has it, and a function lowers its own",
    expect="the daemon and farm init are the last to go, what runs functions comes first; no function can change that",
)
def test_functions_go_before_the_daemon(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy("lowers", LOWERS)
    assert worker.call("lowers", oom_score.THEIRS) == oom_score.THEIRS
    scores = {
        kind: {score(each.pid) for each in worker.processes(kind)}
        for kind in ("launcher", "init", "root zygote", "sandbox")
    }
    lowered = [worker.call("lowers", value) for value in (499, -1000)]
    happened(f"daemon {score(worker.daemon.pid)}, {scores}; a function that lowers its own: {lowered}")
    ours = oom_score.OURS if may_lower() else 0
    assert score(worker.daemon.pid) == ours
    assert scores["launcher"] == scores["init"] == {ours}
    assert scores["root zygote"] == scores["sandbox"] == {oom_score.THEIRS}
    if may_lower():  # else the worker may not either, and what it writes is no floor
        assert lowered == ["Permission denied"] * 2


def may_lower() -> bool:
    """Whether this host lets root lower it (CAP_SYS_RESOURCE)."""
    lowers = "import os; os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-900')"
    return subprocess.run([sys.executable, "-c", lowers], capture_output=True).returncode == 0


def score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())
