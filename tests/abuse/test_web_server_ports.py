"""Group K, 24: a web server on the host's network opens its listener anew, and a neighbour takes its port meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tests.daemon.gate import Gate
from tests.daemon.images.test_images import deploy, upload
from tests.daemon.running import RunningDaemon
from tests.support.cases import Happened, case
from tests.support.images.image_layouts import PYTHON, Files, python_files, write_layout
from tests.support.private_worker import LedgerBesideWorkers, command_without

pytestmark = pytest.mark.root

WAIT_S = 3.0
"""For an answer that a neighbour would have to give."""
SERVER = f"""#!{PYTHON}
import os, socket, time
port, host = int(os.environ["PORT"]), os.environ["AT"]
def listening():
    while True:
        try:
            if host == "::":
                return socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
            return socket.create_server((host, port))
        except OSError:
            time.sleep(0.01)
listener = listening()
while True:
    connection, _ = listener.accept()
    reopens = connection.recv(65536).startswith(b"GET /reopen")
    if reopens:  # before the answer, after which the sandbox is paused
        listener.close()
        gate = socket.create_connection(("127.0.0.1", int(os.environ["GATE"])))
        gate.sendall(b"closed\\n")
    connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: 5\\r\\n\\r\\n%5d" % port)
    connection.close()
    if reopens:
        gate.recv(100)
        gate.close()
        listener = listening()
"""
THIEF = """
import socket
from gate import wait
def f(event):
    with socket.create_server(("127.0.0.1", event["port"])) as listener:
        wait(event["gate"], "listening")
        listener.settimeout(0)
        got = []
        try:
            while True:
                connection, _ = listener.accept()
                connection.settimeout(5)
                got.append(connection.recv(1000).decode())
                connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: 6\\r\\n\\r\\nstolen")
                connection.close()
        except BlockingIOError:
            return got
"""


@pytest.fixture
def web_worker(request: pytest.FixtureRequest, tmp_path: Path, ledger: LedgerBesideWorkers) -> Iterator[RunningDaemon]:
    """A worker of its own: what serves images outlives the functions."""
    broken = request.config.getoption("broken", default="")
    daemon = RunningDaemon.start(tmp_path / "state", command=command_without(broken))
    yield daemon
    daemon.close()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.close()


@case(
    "K24",
    "a web server on the host's network closes its listener and opens another one; a neighbour takes the port meanwhile",
    expect="an error for the caller, and not one byte for the neighbour; then the server is asked again",
)
@pytest.mark.parametrize("at", ["0.0.0.0", "::"])
def test_a_neighbour_gets_no_request_of_a_web_server(
    web_worker: RunningDaemon, gate: Gate, tmp_path: Path, happened: Happened, at: str
) -> None:
    write_layout(
        tmp_path / "layout", [python_files().tar(), Files(executable={"server": SERVER})], {"Cmd": ["/server"]}
    )
    deploy(
        web_worker,
        "web",
        upload(web_worker, tmp_path / "layout"),
        app_port=8080,
        network="host",
        env={"AT": at, "GATE": str(gate.port)},
        concurrency=1,
    )
    web_worker.deploy("thief", {"f.py": THIEF, "gate.py": Gate.CODE}, timeout_s=60)
    port = int(web_worker.request("GET", "/run/web/reopen").body)
    assert gate.arrived() == "closed"
    with ThreadPoolExecutor(2) as pool:
        thief = pool.submit(web_worker.call, "thief", {"port": port, "gate": gate.port})
        assert gate.arrived() == "listening"
        secret = pool.submit(web_worker.request, "GET", "/run/web/secret")
        wait([secret], timeout=WAIT_S)
        gate.open()
        stolen = [each for each in thief.result() if each]
    answer = secret.result()
    happened(f"the neighbour got {stolen}, the caller {answer.status}: {answer.body[:200]!r}")
    assert not stolen
    assert answer.json["errorType"] in ("WebServer.PortInUse", "WebServer.NoAnswer"), answer
    web_worker.when(lambda: web_worker.request("GET", "/run/web/port").body == b"%5d" % port)
