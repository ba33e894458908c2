"""The management API for remote clients: the same requests over TCP, each with a key.

What a key must allow stands in `permissions`. A route that narrows its answer, or checks more than its path, finds the key with
`key_of`. There is no TLS here: a proxy in front has it. A key is judged by the head, before any of a body is read. Owns nothing.
"""

from __future__ import annotations

from urllib.parse import unquote

from starlette.requests import Request

from sockd.base.config import ManagementConfig
from sockd.base.errors import BadConfig, SockdError
from sockd.http.access.callers import AUTHORIZATION
from sockd.http.access.host_check import is_loopback
from sockd.http.access.keys import Key, Keys
from sockd.http.management.permissions import check_request
from sockd.http.server.apps.asgi import AsgiApplication
from sockd.http.server.connection import Connection
from sockd.http.server.exchange import Exchange
from sockd.http.server.listening.sockets import parse_listen
from sockd.http.server.messages.head import Head
from sockd.http.server.refused import Refused

_KEY = "key"
"""The key in the state of a request."""


class KeyedManagement:
    """An application that checks each request's key."""

    def __init__(self, app: AsgiApplication, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    def open(self, connection: Connection, head: Head) -> Exchange:
        try:
            key = self._checked(head)
        except SockdError as error:
            return Refused(connection, head, error)
        return self._app.open(connection, head, {_KEY: key})

    def _checked(self, head: Head) -> Key:
        """The key of a request that it allows. Raises: KeyNeeded, KeyNotEnough."""
        shown = [value for name, value in head.headers if name == AUTHORIZATION]
        key = self._keys.bearer(shown[0] if len(shown) == 1 else None)
        path, query = (part.decode("latin-1") for part in head.path_and_query())
        # The same path that the routes are found by: decoded once.
        check_request(key, head.method.decode(), unquote(path), query)
        return key


def key_of(request: Request) -> Key | None:
    """The key that a request came with; None: it came over the socket, from a manager of the worker."""
    key = getattr(request.state, _KEY, None)
    assert key is None or isinstance(key, Key)
    return key


def check_listen(config: ManagementConfig) -> None:
    """Raises: BadConfig if keys would be sent unencrypted over a network."""
    host, _ = parse_listen(config.listen)
    if not is_loopback(host) and not config.plain_http:
        raise BadConfig(
            f"management.listen = {config.listen!r} is reached from other machines, and keys would come in the clear: listen on "
            "loopback behind a proxy with TLS (docs/guide/production.md), or set management.plain_http = true"
        )
