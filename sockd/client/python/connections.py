"""Connections to a worker. Owns one connection for calls of each thread that calls.

`SOCKD_STATE_DIR` says which worker is meant: functions are called over `run.sock` of that directory, and managed over
`sockd.sock`. The kernel tells who listens there, and only root is answered. `SOCKD_URL` names a worker by its address instead,
where every program that listens can be the one that answers: what it answers is verified (`sockd.base.call_signature`).
"""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from sockd.base.own_command import runnable
from sockd.client.python.errors import NoWorker
from sockd.client.python.starting import PATIENCE, Patience, Waiting
from sockd.client.python.workers import RemoteWorker

DEFAULT_STATE_DIR = "/var/lib/sockd"
EXAMPLE_URL = "http://127.0.0.1:5000"
UNIX = "unix:"
"""What begins the address of a worker that is called over its Unix socket; the socket's path follows."""
DEADLINE_S = 960.0
"""For one answer: the longest that a function may take, and a little."""

_PEER = struct.Struct("3i")
"""struct ucred: pid, uid, gid of the process that called listen (unix(7))."""
_own = threading.local()


class Reply(NamedTuple):
    """An answer of the worker."""

    status: int
    body: bytes
    signature: str
    """Empty: it is not signed."""
    request_id: str = ""
    retry_after_s: float | None = None
    """When another try may succeed, if the worker says so and no sandbox had the call."""


class NotRoot(ConnectionError):
    """A process of another user listens where the worker should."""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket that a process of root's listens on; one of a worker that is starting is waited for."""

    def __init__(self, path: Path, timeout: float | None = None, patience: Patience = PATIENCE) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path
        self._patience = patience

    def connect(self) -> None:
        waiting = Waiting(self._path.parent, self._patience)
        while True:
            try:
                return self._connect()
            except (FileNotFoundError, ConnectionRefusedError):
                if not waiting.pause():
                    raise

    def _connect(self) -> None:
        directory = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(self.timeout)
                # However long the directory's path is, this fits into the 108 bytes of an address.
                sock.connect(f"/proc/self/fd/{directory}/{self._path.name}")
                _, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
                if uid != 0:
                    raise NotRoot(f"uid {uid} listens there, and not root")
            except BaseException:
                sock.close()
                raise
            self.sock = sock
        finally:
            os.close(directory)


def manage(
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    worker: RemoteWorker | None = None,
) -> tuple[int, bytes]:
    """One request to the management socket, or to a worker elsewhere: status and body. Raises: NoWorker, PermissionError."""
    file = state_dir() / "sockd.sock"
    try:
        with closing(UnixConnection(file) if worker is None else worker.connection()) as connection:
            own = worker.headers if worker is not None else {}
            path = f"{worker.prefix}{path}" if worker is not None else path
            connection.request(method, path, body, {**(headers or {}), **own})
            response = connection.getresponse()
            return response.status, response.read()
    except PermissionError:
        raise
    except (OSError, http.client.HTTPException) as error:
        if worker is not None:
            raise NoWorker(f"no worker answers at {worker.url}: {error}") from error
        raise NoWorker(f"no worker answers at {file}; start one: {runnable('sudo sockd up')}") from error


def invoke(url: str, name: str, event: bytes, headers: Mapping[str, str]) -> Reply:
    """POST /run/<name>. Args: url: of `worker_url`. Raises: NoWorker.

    The connection is this thread's own and is kept. One that was closed while it was idle is made anew; a request that may
    have been heard is not sent again."""
    known: dict[str, http.client.HTTPConnection] = _own.__dict__.setdefault("connections", {})
    prefix = "" if url.startswith(UNIX) else urlsplit(url).path.rstrip("/")
    connection = known.get(url)
    if connection is None or connection.sock is None or _is_closed(connection.sock):
        if connection is not None:
            connection.close()
        connection = known[url] = _connection(url)
    fields = {"content-type": "application/json", **headers}
    try:
        connection.request("POST", f"{prefix}/run/{quote(name, safe='')}", event, fields)
        response = connection.getresponse()
        body, found = response.read(), response.headers
        retry_after = found.get("retry-after", "") if "x-sockd-sandbox" not in found else ""
        return Reply(
            response.status,
            body,
            found.get("x-sockd-signature", ""),
            found.get("x-amzn-requestid", ""),
            float(retry_after) if retry_after.isdecimal() else None,
        )
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise NoWorker(f"no worker answers at {url} ({error}); start one: {runnable('sudo sockd up')}") from error


def state_dir() -> Path:
    """Return the state directory of the worker that the environment names, or the default one."""
    return Path(os.environ.get("SOCKD_STATE_DIR") or DEFAULT_STATE_DIR)


def worker_url() -> str:
    """Where functions are called: SOCKD_URL, or else the socket of the state directory; never a guessed port."""
    return os.environ.get("SOCKD_URL") or f"{UNIX}{state_dir() / 'run.sock'}"


def is_authenticated(url: str) -> bool:
    """Whether the connection itself proves who answers: the kernel does for a Unix socket, TLS for https."""
    return url.startswith((UNIX, "https:"))


def local_url() -> str | None:
    """Where the worker of the management socket listens; None if there is none, or if it is not ours to ask."""
    try:
        status, body = manage("GET", "/status")
    except (NoWorker, PermissionError):
        return None
    found: Any = json.loads(body).get("url") if status == 200 else None
    return str(found) if found else None


def _connection(url: str) -> http.client.HTTPConnection:
    if url.startswith(UNIX):
        return UnixConnection(Path(url.removeprefix(UNIX)), DEADLINE_S)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        error = NoWorker(f"SOCKD_URL={url!r} is not a URL such as {EXAMPLE_URL}")
        error.retry_after_s = None
        raise error
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname, parts.port, timeout=DEADLINE_S)


def _is_closed(sock: socket.socket) -> bool:
    """Whether the worker has closed an idle connection: then there is its end to be read, and nothing else ever is."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
