"""Connections to a worker's two doors. Owns one connection to the public door for each thread that calls.

`SOCKD_URL` says where the public door is, `SOCKD_STATE_DIR` whose management socket is meant.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from sockd.remote.errors import NoWorker

DEFAULT_STATE_DIR = "/var/lib/sockd"
DEFAULT_URL = "http://127.0.0.1:5000"
DEADLINE_S = 960.0
"""For one answer: the longest that a function may take, and a little."""

_own = threading.local()


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        directory = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            # However long the directory's path is, this fits into the 108 bytes of an address.
            self.sock.connect(f"/proc/self/fd/{directory}/{self._path.name}")
        finally:
            os.close(directory)


def manage(
    method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """One request to the management socket: status and body. Raises: NoWorker, PermissionError."""
    file = Path(os.environ.get("SOCKD_STATE_DIR") or DEFAULT_STATE_DIR, "sockd.sock")
    try:
        with closing(UnixConnection(file)) as connection:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return response.status, response.read()
    except PermissionError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise NoWorker(f"no worker answers at {file}; start one: sudo sockd up") from error


def invoke(url: str, name: str, event: bytes) -> tuple[int, bytes]:
    """POST /run/<name>: status and body. Raises: NoWorker.

    The connection is this thread's own and is kept. One that was closed while it was idle is made anew; a request that may
    have been heard is not sent again."""
    known: dict[str, http.client.HTTPConnection] = _own.__dict__.setdefault("connections", {})
    target = f"{urlsplit(url).path.rstrip('/')}/run/{quote(name, safe='')}"
    connection = known.get(url)
    if connection is None or connection.sock is None or _is_closed(connection.sock):
        if connection is not None:
            connection.close()
        connection = known[url] = _connection(url)
    try:
        connection.request("POST", target, event, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise NoWorker(f"no worker answers at {url} ({error}); start one: sudo sockd up") from error


def worker_url() -> str:
    """Where functions are called: SOCKD_URL, else what the local worker says if it may be asked, else the default."""
    return os.environ.get("SOCKD_URL") or local_url() or DEFAULT_URL


def local_url() -> str | None:
    """Where the worker of the management socket listens; None if there is none, or if it is not ours to ask."""
    try:
        status, body = manage("GET", "/status")
    except (NoWorker, PermissionError):
        return None
    found: Any = json.loads(body).get("url") if status == 200 else None
    return str(found) if found else None


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise NoWorker(f"SOCKD_URL={url!r} is not a URL such as {DEFAULT_URL}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname, parts.port, timeout=DEADLINE_S)


def _is_closed(sock: socket.socket) -> bool:
    """Whether the worker has closed an idle connection: then there is its end to be read, and nothing else ever is."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
