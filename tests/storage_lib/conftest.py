"""An app link with both its ends, the library as a function sees it, and an S3 server that tells what it was asked."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.s3.client import Client
from benchmarks.s3.process import S3Process
from sockd_storage_lib.sockd_initscript.app_link import Link
from tests.storage_lib.engine_end import EngineEnd

LIBRARY = Path(__file__).parents[2] / "storage_lib"
NAMES = ("storage", "nosql", "sockd_initscript", "sockd_storage")


@pytest.fixture
def ends() -> Iterator[tuple[EngineEnd, socket.socket]]:
    """The engine's end and the app's, which is detached by the test that takes its descriptor."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    engine = EngineEnd(ours)
    yield engine, theirs
    engine.close()
    theirs.close()


@pytest.fixture
def engine(ends: tuple[EngineEnd, socket.socket]) -> EngineEnd:
    return ends[0]


@pytest.fixture
def link(ends: tuple[EngineEnd, socket.socket]) -> Iterator[Link]:
    """The app's end."""
    link = Link(ends[1].detach())
    yield link
    link.close()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Process]:
    import boto3

    with S3Process() as server:
        # What boto3 reads once and keeps is not a test's to give back.
        boto3.client("s3", region_name="us-east-1", endpoint_url=server.url).close()
        yield server


class S3:
    """What a test needs of the server."""

    def __init__(self, server: S3Process, client: Client) -> None:
        self.server = server
        self.client = client

    def put(self, key: str, data: bytes) -> None:
        self.client.put("bkt", key, data)

    def read(self, key: str) -> bytes:
        return self.client.get("bkt", key)

    def requests(self, method: str) -> list[dict[str, Any]]:
        """What was asked of this kind, as far as it has ended."""
        return [record for record in self.client.requests() if record["method"] == method]


@pytest.fixture
def s3(s3_server: S3Process) -> Iterator[S3]:
    """The server, with the bucket `bkt`."""
    with s3_server.client() as client:
        client.make_bucket("bkt", exist_ok=True)
        client.forget_requests()
        yield S3(s3_server, client)
        client.remove_faults()
        for key in list(client.list("bkt")):
            client.delete("bkt", key)


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """`function(storage)` imports a module of the library anew, as a new sandbox would; the environment has no S3."""
    forget()
    for name in list(os.environ):
        if name.startswith(("AWS_", "SOCKD_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.syspath_prepend(str(LIBRARY))
    yield importlib.import_module
    initscript: Any = sys.modules.get("sockd_initscript")
    if initscript is not None and "SOCKD_INITSCRIPT_FD" in os.environ:
        initscript.expire()
    network: Any = sys.modules.get("sockd_storage.network")
    if network is not None:
        for client in network._clients.values():
            client.close()
    forget()


def forget() -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in NAMES:
            del sys.modules[name]


@pytest.fixture
def storage(
    function: Callable[..., ModuleType],
    ends: tuple[EngineEnd, socket.socket],
    s3: S3,
    observer: Observer,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """The module `storage` of a function that has an initscript, and an S3 behind it."""
    for name, value in s3.server.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SOCKD_INITSCRIPT_FD", named(ends[1]))
    monkeypatch.setenv("SOCKD_STORAGE_GRACE_S", "0.05")
    return function("storage")


def named(sock: socket.socket) -> str:
    """A link as a program finds it in its environment; the program owns the descriptor."""
    fd = sock.detach()
    return f"{fd}:{os.fstat(fd).st_ino}"


class Observer:
    """What the library asks of `sockd_zygote.handlers.egress`, without the tests' own connections."""

    def __init__(self) -> None:
        self.began_ns = time.monotonic_ns()
        self.has_written = False

    def may_have_written(self) -> bool:
        return self.has_written


@pytest.fixture
def observer(monkeypatch: pytest.MonkeyPatch) -> Observer:
    """This process's egress, as far as the library and the test note it."""
    observer = Observer()
    monkeypatch.setitem(sys.modules, "sockd_zygote.handlers.egress", observer)
    return observer
