"""How many IP sockets the sandboxes of a function have, over all of them, and all functions together: on a real daemon."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.daemon.gate import Gate
from tests.daemon.running import DEADLINE_S, RunningDaemon

pytestmark = pytest.mark.root

OF_FUNCTION, OF_ALL = 30, 50
HOLDS = """
import errno, socket
from gate import wait
kept = []
def f(event):
    try:
        for _ in range(event["count"]):
            kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        said = "ok"
    except OSError as error:
        said = errno.errorcode[error.errno]
    count = len(kept)
    if event["gate"]:
        wait(event["gate"])
    return [count, said]
"""


def until(condition: Callable[[], bool]) -> None:
    """Ask again and again: what the daemon does behind a cgroup's last event makes no other."""
    ends = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < ends
        threading.Event().wait(0.02)


@pytest.fixture(scope="module")
def config() -> str:
    return f"[sandbox]\nfunction_sockets = {OF_FUNCTION}\nsockets = {OF_ALL}\n"


@pytest.fixture(autouse=True)
def empty(daemon: RunningDaemon) -> Iterator[None]:
    """No sandbox of another test is left."""
    yield
    for function in daemon.manage("GET", "/functions").json:
        daemon.remove(function["name"])
    until(lambda: daemon.status()["cgroups"]["recycling"] == 0)


def test_sandboxes_of_a_function_share_what_it_may_have_and_functions_what_there_is(
    daemon: RunningDaemon, gate: Gate
) -> None:
    for name in ("holds", "other"):
        daemon.deploy(name, {"f.py": HOLDS, "gate.py": Gate.CODE}, timeout_s=15)
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(daemon.call, "holds", {"count": 20, "gate": gate.port})
        gate.arrived()
        # The first sandbox has a connection to the gate as well.
        assert daemon.call("holds", {"count": 20, "gate": 0}) == [OF_FUNCTION - 21, "EMFILE"]
        gate.open()
        assert busy.result() == [20, "ok"]
    held = OF_FUNCTION - 1
    assert daemon.call("other", {"count": OF_ALL, "gate": 0}) == [OF_ALL - held, "EMFILE"]
    daemon.remove("holds")
    until(lambda: daemon.call("other", {"count": OF_ALL, "gate": 0})[0] == OF_FUNCTION)


def test_a_new_version_has_no_new_share(daemon: RunningDaemon, gate: Gate) -> None:
    daemon.deploy("holds", {"f.py": HOLDS, "gate.py": Gate.CODE}, timeout_s=15)
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(daemon.call, "holds", {"count": 20, "gate": gate.port})
        gate.arrived()
        daemon.deploy("holds", {"f.py": HOLDS + "# another", "gate.py": Gate.CODE}, timeout_s=15)
        assert daemon.call("holds", {"count": 20, "gate": 0}) == [OF_FUNCTION - 21, "EMFILE"]
        gate.open()
        assert busy.result() == [20, "ok"]
