"""Workers on other machines: their addresses, and the keys that this user has for them.

`sockd login URL` keeps a key in credentials.json below XDG_CONFIG_HOME/sockd, which is this user's alone (0600); SOCKD_KEY is
used instead where no file is to be left, as in a CI's job. A key crosses a network over https only, unless the login said
otherwise.

Owns that file.
"""

from __future__ import annotations

import http.client
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

WORKER_VARIABLE, KEY_VARIABLE = "SOCKD_WORKER", "SOCKD_KEY"
EXAMPLE = "https://sockd.example.org"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class BadLogin(Exception):
    """An address that cannot be a worker's, or for which there is no key; `fix` is a command that helps."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


class RemoteWorker(NamedTuple):
    """A worker's management API, and the key to it."""

    url: str
    key: str

    @property
    def prefix(self) -> str:
        """What comes before the path of each request."""
        return urlsplit(self.url).path

    @property
    def headers(self) -> dict[str, str]:
        """The headers of each request."""
        return {"authorization": f"Bearer {self.key}"}

    def connection(self, timeout_s: float | None = None) -> http.client.HTTPConnection:
        """A new one, not open yet. Certificates are checked (SSL_CERT_FILE names an authority of one's own)."""
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=timeout_s)


def address(url: str, *, plain_http: bool = False) -> str:
    """A worker's address in the one way in which it is kept. Args: plain_http: also to other machines. Raises: BadLogin."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment or "@" in parts.netloc:
        raise BadLogin(f"{url!r} is not an address such as {EXAMPLE}")
    if parts.scheme == "http" and host not in LOOPBACK and not plain_http:
        raise BadLogin(
            f"{url} is not https: the key would cross the network in the clear", f"sockd login {url} --plain-http"
        )
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}{f':{port}' if port else ''}{parts.path.rstrip('/')}"


def worker_at(url: str) -> RemoteWorker:
    """The worker of an address, with SOCKD_KEY or the key that `sockd login` has kept. Raises: BadLogin."""
    kept = _read().get(address(url, plain_http=True), {})
    where = address(url, plain_http=bool(kept.get("plain_http")))
    key = os.environ.get(KEY_VARIABLE) or kept.get("key")
    if not key:
        raise BadLogin(f"there is no key for {where}", f"sockd login {where}")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise BadLogin(f"the key for {where} is none: it has characters that no key has", f"sockd login {where}")
    return RemoteWorker(where, key)


def keep(worker: RemoteWorker, *, plain_http: bool) -> Path:
    """Remember a key, instead of another for the same worker; the file. Raises: BadLogin, OSError."""
    return _write({**_read(), worker.url: {"key": worker.key, "plain_http": plain_http}})


def forget(url: str | None) -> list[str]:
    """Forget the key for a worker, or all; the addresses. Raises: BadLogin, OSError."""
    kept = _read()
    gone = list(kept) if url is None else [each for each in kept if each == address(url, plain_http=True)]
    if gone:
        _write({each: value for each, value in kept.items() if each not in gone})
    return gone


def credentials_file() -> Path:
    """Where keys are kept."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".config") / "sockd" / "credentials.json"


def _read() -> Mapping[str, dict[str, Any]]:
    path = credentials_file()
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise BadLogin(f"{path} is open to other users of this host", f"chmod 600 {path}")
            kept = json.load(file)
    except FileNotFoundError:
        return {}
    except ValueError:
        kept = None
    except OSError as error:
        raise BadLogin(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(kept, dict) or not all(isinstance(value, dict) for value in kept.values()):
        raise BadLogin(f"{path} is damaged", f"rm {path}")
    return kept


def _write(kept: Mapping[str, dict[str, Any]]) -> Path:
    path = credentials_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    file_fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(file_fd, "w") as file:
            json.dump(kept, file, indent=2)
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path
