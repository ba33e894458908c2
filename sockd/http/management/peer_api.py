"""The API for the other workers of the group, on the public port: GET /group/PATH is GET /PATH of the management API.

Each request is signed (`peer_key`). One that another worker makes for a client with a key shows this key, and may what the key
may; others were made for managers of that worker. Owns nothing.
"""

from __future__ import annotations

import time

from sockd.base.errors import BadRequest, SockdError
from sockd.http.access.callers import AUTHORIZATION
from sockd.http.management.keyed import KeyedManagement
from sockd.http.management.peer_key import HEADER, NotAPeer, PeerKey
from sockd.http.server.apps.asgi import AsgiApplication
from sockd.http.server.connection import Connection
from sockd.http.server.exchange import Exchange
from sockd.http.server.messages.head import Head
from sockd.http.server.refused import Refused

PREFIX = b"/group"
"""Before the path of each request."""
ANOTHER = b"/workers/"
"""Requests of the management API that ask another worker: one that was asked asks no further."""


class PeerApi:
    """What a front is given."""

    def __init__(self, app: AsgiApplication, keyed: KeyedManagement, key: PeerKey, worker: str) -> None:
        """Args: app, keyed: the management API, for managers and for those with a key; worker: this one's name."""
        self._app = app
        self._keyed = keyed
        self._key = key
        self._worker = worker

    def serves(self, head: Head) -> bool:
        """Whether a request is for it, by its path."""
        return head.target.startswith(PREFIX + b"/")

    def open(self, connection: Connection, head: Head) -> Exchange:
        """As `Application.open`."""
        try:
            asked, is_keyed = self._checked(head)
        except SockdError as error:
            return Refused(connection, head, error)
        return (self._keyed if is_keyed else self._app).open(connection, asked)

    def _checked(self, head: Head) -> tuple[Head, bool]:
        """Return the request of the management API, and whether it shows a key. Raises: NotAPeer, BadRequest."""
        signatures = [value for name, value in head.headers if name == HEADER]
        keys = [value for name, value in head.headers if name == AUTHORIZATION]
        if len(signatures) != 1 or len(keys) > 1:
            raise NotAPeer("this is for the workers of a group; clients use the management API")
        target, key = head.target.removeprefix(PREFIX), keys[0] if keys else b""
        self._key.check(signatures[0], self._worker, target, key, time.time())
        if head.method != b"GET" or target.startswith(ANOTHER):
            raise BadRequest("another worker can be asked for what it has, and for nothing else")
        return Head(head.method, target, head.version, head.headers), bool(keys)
