"""Where images come from in a benchmark: a registry, a chunk store in S3 and cache nodes, each at a distance that is chosen.

Real parts: Debian's docker-registry, `python -m benchmarks.s3`, `sockd cache-node`. A distance is the time to an answer's
first byte.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.worker import sockd
from benchmarks.peers.shaping_proxy import shaping_proxy
from benchmarks.s3.client import Client
from benchmarks.s3.process import S3Process

BUCKET = "images"
REGISTRY = "docker-registry"
NODES = 5
_LISTENS = re.compile(r"listening on (127\.0\.0\.1:\d+)")
_NODE = re.compile(r"cache node on (\S+)")


@dataclass(frozen=True, slots=True)
class Origin:
    """Addresses, all of this machine."""

    registry: str
    """HOST:PORT."""
    store: str
    """A URL."""
    client: Client
    """The client of the store, without the distance."""
    server: S3Process
    """The store itself, which has the credentials."""
    nodes: tuple[str, ...]
    """HOST:PORT."""
    files: Path
    """With `credentials` and `key`, which all workers share."""

    def settings(self, worker: str, *, tenant: str, nodes: bool = False, **more: Any) -> dict[str, Any]:
        """The section [images] of a worker of that name."""
        shared = {
            "store": f"s3://{BUCKET}/bench",
            "endpoint": self.store,
            "credentials_file": str(self.files / "credentials"),
            "key_file": str(self.files / "key"),
            "worker": worker,
            "tenant": tenant,
        }
        return {**shared, **({"nodes": list(self.nodes)} if nodes else {}), **more}

    def bytes_moved(self) -> int:
        """Return the bytes of the store's answers since the last call."""
        moved = sum(int(record["bytes"]) for record in self.client.requests())
        self.client.forget_requests()
        return moved


@contextlib.contextmanager
def origin(first_byte_ms: float, key: bytes) -> Iterator[Origin]:
    """Everything, ended with the block. Args: first_byte_ms: the distance of registry and store; 0: none is added."""
    with contextlib.ExitStack() as stack:
        files = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sockd-origin-", dir="/var/tmp")))
        server = stack.enter_context(S3Process(files / "objects"))
        client = stack.enter_context(server.client())
        client.make_bucket(BUCKET)
        _write_private(files / "key", key)
        server.write_credentials(files / "credentials")
        registry = stack.enter_context(_registry(files))
        nodes = tuple(stack.enter_context(_node()) for _ in range(NODES))
        store = server.url
        if first_byte_ms:
            registry_url = f"http://{registry}"
            far = (stack.enter_context(_far(url, first_byte_ms)) for url in (store, registry_url))
            store, registry = next(far), next(far).removeprefix("http://")
        yield Origin(registry, store, client, server, nodes, files)


def _far(url: str, first_byte_ms: float) -> contextlib.AbstractContextManager[str]:
    return shaping_proxy(url, first_byte_ms=first_byte_ms, bandwidth_mb=0)


def _write_private(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)


@contextlib.contextmanager
def _registry(files: Path) -> Iterator[str]:
    config = {
        "version": "0.1",
        "log": {"level": "info"},
        "storage": {"filesystem": {"rootdirectory": str(files / "registry")}},
        "http": {"addr": "127.0.0.1:0"},
    }
    (files / "registry.yml").write_text(json.dumps(config))  # which is YAML, too
    with _running([REGISTRY, "serve", str(files / "registry.yml")], _LISTENS, "stderr") as address:
        yield address


@contextlib.contextmanager
def _node() -> Iterator[str]:
    with _running([*sockd(), "cache-node", "--listen", "127.0.0.1:0"], _NODE, "stdout") as address:
        yield address


@contextlib.contextmanager
def _running(command: list[str], ready: re.Pattern[str], stream: str) -> Iterator[str]:
    """A server, killed in the end; what `ready` finds in a line of its output."""
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: subprocess.PIPE}
    with (
        subprocess.Popen(command, text=True, **pipes) as process,  # type: ignore[call-overload]
        contextlib.ExitStack() as stack,
    ):
        try:
            lines = getattr(process, stream)
            found = next((found for line in lines if (found := ready.search(line))), None)
            if found is None:
                sys.exit(f"{command[0]} did not start")
            # A server that logs each request would wait at a full pipe for good.
            reading = threading.Thread(target=deque, args=(lines, 0))
            stack.callback(reading.join)
            reading.start()
            yield found[1]
        finally:
            process.kill()
