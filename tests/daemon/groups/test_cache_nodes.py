"""The cache nodes of a group when one of its workers is killed, is frozen, or has a node that answers garbage."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.daemon.groups.test_images import counted, node_addresses, node_token
from tests.daemon.groups.workers import Workers
from tests.daemon.images.test_images import CONFIG, app, deploy, upload
from tests.daemon.running import RunningDaemon
from tests.daemon.test_events import soon
from tests.support.cases import Happened, case
from tests.support.images.cache_nodes import CacheNode
from tests.support.images.image_layouts import Files, python_files, write_layout
from tests.support.servers.postgres_server import PostgresServer

DATA = [random.Random(number).randbytes(1 << 18).hex() for number in range(10)]
"""Files of the image that no start reads by itself, each as long as a chunk of 512 KiB."""
APART = "0" * (3 << 20)
"""A file between each two of them: reads of one fetch no chunks of the next one ahead."""
FILLED = 5
"""How many of them the nodes have from the first worker."""
MEMBER = """
INSERT INTO workers (id, epoch, started_at, seen_at, silent_s, about)
SELECT '{name}', 1, 0, extract(epoch FROM clock_timestamp()), 600, (about::jsonb || '{{"cache_node": "{node}"}}')::text
FROM workers WHERE id = 'w3'
"""
"""A member like w3 with a cache node at another address, for longer than a test takes."""
pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]


@case(
    "W16",
    "a worker whose cache node the others read from is killed, one is frozen, two nodes answer garbage",
    expect="each function in an image starts and reads right bytes; the nodes that are asked change with the group",
)
def test_lost_frozen_and_lying_cache_nodes_fail_no_start(
    workers: Workers, server: PostgresServer, tmp_path: Path, happened: Happened
) -> None:
    first, second, third = (workers.start(name) for name in ("w1", "w2", "w3"))
    nodes = node_addresses(workers, "w3", {"w1", "w2", "w3"})
    deploy_all(workers, first, tmp_path / "layout")
    for number in range(FILLED):
        start(first, number)
    soon(lambda: counted(workers, nodes, "puts") >= 5 * FILLED)

    workers.kill("w1")
    start(second, 0)
    start(third, 0)
    workers.wait_until("w3", w1="gone")
    start(third, 1)

    fourth = workers.start("w4")
    joined = node_addresses(workers, "w3", {"w4"})
    followed(workers, server)
    start(third, FILLED)
    soon(lambda: counted(workers, joined, "puts") > 0, "no worker has put a stripe on the node that joined")
    with frozen_with_its_node(workers, "w2"):
        start(fourth, 1)
        start(third, 2)
        workers.wait_until("w3", w2="gone")
        start(fourth, FILLED)
    workers.wait_until("w3", w2="serving")

    with garbling_node() as (garbling, asked), lying_node(workers, tmp_path) as lying:
        for name, node in (("garbling", garbling), ("lying", lying)):
            server.run(MEMBER.format(name=name, node=node))
        followed(workers, server)
        for number in range(FILLED + 1, len(DATA)):
            start(third, number)
        put = len(DATA) - FILLED - 1
        soon(lambda: counted(workers, {"lying": lying}, "puts") >= put, "no worker has put stripes on the lying node")
        for number in range(FILLED + 1, len(DATA)):
            start(fourth, number)  # of the five nodes four have a stripe: those of the lying one are used
        last = workers.start("w5")
        for number in range(len(DATA)):
            start(last, number)
        assert asked.is_set()
        lies = counted(workers, {"lying": lying}, "memory_hits")
    happened(f"all starts read right bytes; one node sent {lies} stripes with other data")
    assert lies


@pytest.mark.parametrize("way", ["take-over", "SIGUSR2", "SIGTERM", "SIGKILL"])
def test_the_next_life_of_a_worker_has_its_cache_node_at_the_same_port(workers: Workers, way: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    node = {"w1": f"127.0.0.1:{port}"}
    worker = workers.start("w1", cache_node_port=port)
    assert node_addresses(workers, "w1", {"w1"}) == node
    with socket.create_connection(("127.0.0.1", port)):  # whose end keeps the port from others for a minute
        match way:
            case "take-over":
                worker = workers.start("w1", cache_node_port=port, takes_over=True)
            case "SIGUSR2":
                mark = worker.mark
                worker.signal(signal.SIGUSR2)
                worker.wait_line(r"listening on ", since=mark)
            case _:
                worker.signal(signal.Signals[way])
                worker.wait()
                worker = workers.start("w1", cache_node_port=port)
    assert node_addresses(workers, "w1", {"w1"}) == node
    assert counted(workers, node, "puts") == 0
    assert not any("no cache node on this worker" in line for line in worker.lines)


def deploy_all(workers: Workers, through: RunningDaemon, layout: Path) -> None:
    """Deploy a function for each file of DATA, all of one image, and wait until each worker knows them."""
    files = {f"data{number}": data for number, data in enumerate(DATA)}
    apart = {f"data{number}-apart": APART for number in range(len(DATA))}
    write_layout(layout, [python_files().tar(), app("1"), Files(plain=dict(sorted((files | apart).items())))], CONFIG)
    digest = upload(through, layout)
    for number in range(len(DATA)):
        deploy(through, f"app{number}", digest)
    for number in range(len(DATA)):
        workers.wait_for(f"app{number}", lambda function: "version_number" in function)


def start(worker: RunningDaemon, number: int) -> None:
    """Have a worker start the function of a file, which reads it."""
    assert worker.call(f"app{number}", {"what": "read", "path": f"/data{number}"}) == DATA[number]


def followed(workers: Workers, server: PostgresServer) -> None:
    """Wait until all workers that run have reported twice, and so have read who else is there now."""
    for _ in range(2):
        begun = float(server.run("SELECT extract(epoch FROM clock_timestamp())"))
        seen = f"SELECT id FROM workers WHERE seen_at > {begun}"
        soon(lambda seen=seen: workers.by_name.keys() <= set(server.run(seen).split()))  # type: ignore[misc]


@contextmanager
def frozen_with_its_node(workers: Workers, name: str) -> Iterator[None]:
    """Stop a worker's process and its cache node's for the length of a block, as on a machine that is suspended."""
    nodes = [pid for pid in workers.by_name[name].pids() if is_node(pid)]
    assert nodes
    with workers.frozen(name), ExitStack() as stack:
        for pid in nodes:
            os.kill(pid, signal.SIGSTOP)
            stack.callback(os.kill, pid, signal.SIGCONT)
        yield


def is_node(pid: int) -> bool:
    """Return whether a process of a worker serves stripes, or is the launcher of the one that does."""
    with suppress(OSError):
        return b"listening_node" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


@contextmanager
def garbling_node() -> Iterator[tuple[str, threading.Event]]:
    """Answer everything with bytes that are no HTTP; the values are the address, and whether something was asked."""
    asked = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while connection.recv(1 << 16):
                asked.set()
                connection.sendall(os.urandom(4096))

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", asked
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()


@contextmanager
def lying_node(workers: Workers, directory: Path) -> Iterator[str]:
    """Run a cache node with the group's token that sends stripes with other data; the value is its address."""
    token = directory / "node-token"
    token.touch(mode=0o600)
    token.write_text(node_token(workers))
    node = CacheNode("--token-file", str(token), lies=True)
    try:
        node.start()
        yield node.address
    finally:
        node.kill()
