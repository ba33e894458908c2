"""The management API for remote clients: the same requests over TCP, each with a key.

    POLICY: GET requires the permission read; running a function requires invoke; all other requests, and values of an
    environment, require deploy. A key for some functions allows requests about one of these, and `/status`. Requests about
    keys, and those that open a port on the worker's host, work only over the local management socket.

There is no TLS here: a proxy in front has it. A key is judged by the head, before any of a body is read. Owns nothing.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

from sockd.http.access.callers import AUTHORIZATION
from sockd.http.access.host_check import is_loopback
from sockd.http.access.keys import Keys, Right
from sockd.http.wire.connection import Application, Connection
from sockd.http.wire.exchange import Exchange
from sockd.http.wire.head import Head
from sockd.http.wire.refused import Refused
from sockd.http.wire.sockets import parse_listen
from sockd.plain.config import ManagementConfig
from sockd.plain.errors import BadConfig, KeyNotEnough, SockdError

_READS = ("GET", "HEAD")


class Needed(NamedTuple):
    """What a request takes."""

    right: Right
    function: str | None
    """That it is about; None: about the worker, or more than one."""
    is_for_every_key: bool = False
    """Also for one that is for some functions."""


class KeyedManagement:
    """An application that checks each request's key."""

    def __init__(self, app: Application, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    def open(self, connection: Connection, head: Head) -> Exchange:
        try:
            self._check(head)
        except SockdError as error:
            return Refused(connection, head, error)
        return self._app.open(connection, head)

    def _check(self, head: Head) -> None:
        shown = [value for name, value in head.headers if name == AUTHORIZATION]
        key = self._keys.bearer(shown[0] if len(shown) == 1 else None)
        path, query = (part.decode("latin-1") for part in head.path_and_query())
        # The same path that the routes are found by: decoded once.
        needed = needed_for(head.method.decode(), unquote(path), query)
        if needed is None:
            return
        function = needed.function
        if needed.is_for_every_key and key.functions:
            function = key.functions[0]
        key.check(needed.right, function)


def needed_for(method: str, path: str, query: str = "") -> Needed | None:
    """The permission that a request requires; None: any key. Raises: KeyNotEnough if no key suffices."""
    parts = path.strip("/").split("/")
    of_function = parts[2:] if parts[0] == "functions" else []
    if parts[0] == "keys" or of_function == ["debug"]:
        raise KeyNotEnough("this is for root on the worker's host (and management.group), over its own socket")
    if parts == ["key"]:
        return None
    function = parts[1].partition(":")[0] if parts[0] == "functions" and len(parts) > 1 else None
    if method in _READS:
        shows_values = of_function == ["env"] and query != ""
        return Needed("deploy" if shows_values else "read", function, is_for_every_key=parts == ["status"])
    if of_function == ["invoke"]:
        return Needed("invoke", function)
    return Needed("deploy", function)


def check_listen(config: ManagementConfig) -> None:
    """Raises: BadConfig if keys would be sent unencrypted over a network."""
    host, _ = parse_listen(config.listen)
    if not is_loopback(host) and not config.plain_http:
        raise BadConfig(
            f"management.listen = {config.listen!r} is reached from other machines, and keys would come in the clear: listen on "
            "loopback behind a proxy with TLS (docs/guide/production.md), or set management.plain_http = true"
        )
