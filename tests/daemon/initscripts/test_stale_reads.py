"""A read after a possible write of the function is never older than the write, and from memory if the object has not changed."""

from __future__ import annotations

import os
import random
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.s3.process import S3Process
from tests.daemon.prefetching import fetching, patient, reading, sources, trace
from tests.daemon.running import RunningDaemon
from tests.daemon.snapshots.snapshotted import origin

pytestmark = pytest.mark.root

OLD, NEW = b"old", b"new"
REGION, NETWORK = "region", "network"
CODE = """
import concurrent.futures, ctypes, multiprocessing, os, socket, struct, subprocess, sys, threading
import sockd_initscript
import storage

libc = ctypes.CDLL(None)

def by_python(port):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.recv(1)

def by_libc(port):
    made = libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
    address = struct.pack("=H2s4s8x", socket.AF_INET, port.to_bytes(2, "big"), bytes((127, 0, 0, 1)))
    assert libc.connect(made, address, len(address)) == 0
    libc.recv(made, ctypes.create_string_buffer(1), 1, 0)
    libc.close(made)

def by_libc_fork(port):
    child = libc.fork()
    if child == 0:
        by_libc(port)
        libc._exit(0)
    libc.waitpid(child, None, 0)

def by_os_fork(port):
    child = os.fork()
    if child == 0:
        by_python(port)
        os._exit(0)
    os.waitpid(child, 0)

def by_subprocess(port):
    subprocess.run(["/bin/bash", "-c", f"read -N 1 < /dev/tcp/127.0.0.1/{port}"], check=True)

def by_multiprocessing(port):
    process = multiprocessing.get_context("fork").Process(target=by_python, args=(port,))
    process.start()
    process.join()

def by_thread(port):
    thread = threading.Thread(target=by_libc, args=(port,))
    thread.start()
    thread.join()

def by_datagram(port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"", ("127.0.0.1", port))
        sender.recv(1)

def by_fast_open(port):
    made = socket.socket()
    made.sendto(b".", socket.MSG_FASTOPEN, ("127.0.0.1", port))
    made.recv(1)

def by_upload(port):
    storage.storage.unique_name = staticmethod(lambda name: name)
    storage.upload_stream("data", "a", b"new")

def by_kept_connection(port):
    kept.send(b".")
    kept.recv(1)

def by_parked_connection(port):  # of the init of a snapshot
    parked.connect(("127.0.0.1", port))
    parked.recv(1)

def metric(port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"starts:1|c", ("127.0.0.1", 9))

def child(port):
    subprocess.run(["true"], check=True)

def another_read(port):
    storage.get_instance().client.get_object(Bucket="data", Key="other")["Body"].read()

def another_list(port):
    storage.get_instance().client.list_objects_v2(Bucket="data", Prefix="o")

def probe(port):
    with socket.socket(socket.AF_INET6) as sock:  # as urllib3 does at import
        sock.bind(("::1", 0))

def nothing(port): pass

kept = parked = None
if "PARKED_PORT" in os.environ:
    parked = socket.create_connection(("127.0.0.1", int(os.environ["PARKED_PORT"])))
    parked.recv(1)

def read(key):
    return bytes(storage.download_stream("data", key)).decode()

def f(event):
    global kept
    if "kept" in event:
        kept = socket.create_connection(("127.0.0.1", event["port"]))
        kept.recv(1)
    first = read("b")
    globals()[event["do"]](event["port"])
    return [first, *map(read, event["keys"])]

def in_threads(event):
    sockd_initscript.link().recv_msg(len(event["keys"]) - 1, 20)  # the script has announced this and all before it
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        return list(threads.map(read, event["keys"]))
"""
WRITES = (
    "by_python",
    "by_libc",
    "by_libc_fork",
    "by_os_fork",
    "by_subprocess",
    "by_multiprocessing",
    "by_thread",
    "by_datagram",
    "by_fast_open",
    "by_upload",
    "by_kept_connection",
)
ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


@pytest.fixture(scope="module")
def server(ledger_of_module: None) -> Iterator[S3Process]:
    with S3Process() as server, server.client() as client:
        client.make_bucket("data")
        for key in ("b", "other", *(f"k{number}" for number in range(16))):
            client.put("data", key, key.encode())
        yield server


class Service:
    """Something that a function talks to, on one port of TCP and UDP: at each word it overwrites the object `a` in S3. On TCP
    the connection is the first word."""

    def __init__(self, server: S3Process) -> None:
        self._server = server
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._tcp.getsockname()[1]
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", self.port))
        self._poll = select.poll()
        self._connections: dict[int, socket.socket] = {}
        self._end, end = os.pipe()
        self._stop = os.fdopen(end, "wb")
        for fd in (self._tcp.fileno(), self._udp.fileno(), self._end):
            self._poll.register(fd, select.POLLIN)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._end:
                    return
                try:
                    self._answer(fd)
                except ConnectionError:
                    self._forget(fd)

    def _answer(self, fd: int) -> None:
        if fd == self._udp.fileno():
            _, sender = self._udp.recvfrom(1)
            self._write()
            self._udp.sendto(b".", sender)
            return
        connection = self._connections.get(fd)
        if connection is None:
            connection, _ = self._tcp.accept()
            self._connections[connection.fileno()] = connection
            self._poll.register(connection.fileno(), select.POLLIN)
        elif not connection.recv(1):
            self._forget(fd)
            return
        self._write()
        connection.send(b".")

    def _forget(self, fd: int) -> None:
        self._poll.unregister(fd)
        self._connections.pop(fd).close()

    def _write(self) -> None:
        with self._server.client() as client:
            client.put("data", "a", NEW)

    def close(self) -> None:
        self._stop.close()
        self._thread.join()
        for each in (self._tcp, self._udp, *self._connections.values()):
            each.close()
        os.close(self._end)


@pytest.fixture
def service(server: S3Process) -> Iterator[Service]:
    service = Service(server)
    yield service
    service.close()


@pytest.fixture
def deploy(daemon: RunningDaemon, server: S3Process) -> Any:
    def deploy(name: str, *keys: str, **more: Any) -> None:
        files = reading(CODE, init_wasm=fetching(*keys))
        settings = {"env": patient(server) | ENVIRONMENT, "timeout_s": 25, **more}
        daemon.deploy(name, files, initscript={"wasm": "init.wasm"}, storage="sockd", **settings)

    return deploy


def reads(daemon: RunningDaemon, answer: Any) -> list[str]:
    return sources(trace(daemon, answer))


@pytest.mark.parametrize("write", WRITES)
def test_nothing_older_than_a_write_is_read(
    daemon: RunningDaemon, server: S3Process, service: Service, deploy: Any, write: str
) -> None:
    with server.client() as client:
        client.put("data", "a", OLD)
    deploy("writes", "a", "b")
    event = {"do": write, "port": service.port, "keys": ["a"], **({"kept": True} if "kept" in write else {})}
    answer = daemon.run("writes", event)
    assert answer.json == ["b", NEW.decode()]
    assert reads(daemon, answer)[-1] == NETWORK


@pytest.mark.parametrize(("do", "last"), [("nothing", REGION), ("by_parked_connection", NETWORK)])
def test_a_connection_of_a_snapshots_init_counts_when_it_is_made_again(
    daemon: RunningDaemon, server: S3Process, service: Service, deploy: Any, do: str, last: str
) -> None:
    parked = {"PARKED_PORT": str(service.port)}
    deploy("parks", "a", "b", snapshot=True, reuse_sandbox=False, env=patient(server) | ENVIRONMENT | parked)
    with server.client() as client:
        client.put("data", "a", OLD)
    answer = daemon.run("parks", {"do": do, "port": service.port, "keys": ["a"]})
    assert (origin(answer), answer.json) == ("template", ["b", (OLD if last == REGION else NEW).decode()])
    assert reads(daemon, answer) == [REGION, last]


@pytest.mark.parametrize("deed", ["nothing", "probe", "metric", "child", "another_read", "another_list"])
def test_what_has_not_changed_is_served_from_memory(
    daemon: RunningDaemon, server: S3Process, deploy: Any, deed: str
) -> None:
    keys = [f"k{number}" for number in range(4)]
    deploy("serves", "b", *keys)
    with server.client() as client:
        client.forget_requests()
        answer = daemon.run("serves", {"do": deed, "port": 0, "keys": keys})
        assert answer.json == ["b", *keys]
        assert reads(daemon, answer) == [REGION] * 5
        asked = [record["method"] for record in client.requests() if record["path"] != "/data/other"]
    assert asked.count("HEAD") == (0 if deed in ("nothing", "probe", "child") else 4)


def test_objects_are_served_in_whatever_order_threads_read_them(daemon: RunningDaemon, deploy: Any) -> None:
    keys = [f"k{number}" for number in range(16)]
    deploy("shuffled", *keys, handler="f:in_threads")
    random.Random(40).shuffle(keys)
    answer = daemon.run("shuffled", {"keys": keys})
    assert answer.json == keys
    assert reads(daemon, answer) == [REGION] * 16
