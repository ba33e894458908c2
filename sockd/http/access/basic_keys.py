"""Keys as a browser shows them: a user name and a password in each request (HTTP Basic, RFC 7617).

    name and secret          of `lambda_api.keys`: they read and invoke, and deploy where AWS's API is served
    any name, a key's text   of `sockd keys`, with the permissions that it has

POLICY: no login form and no cookie. A cookie of this origin would come with each request for a function's web app below /run as
well, and browsers that show the page in a sandbox, an origin of its own, send SameSite cookies neither with its forms nor for
its streams. A key that is revoked is refused from the next request on, and there is no session to end. Owns nothing.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping

from sockd.http.access.callers import AUTHORIZATION
from sockd.http.access.keys import RIGHTS, Key, Keys
from sockd.http.server.messages.head import Head

_BASIC = b"basic"


class BasicKeys:
    """Both kinds of keys of one worker."""

    def __init__(self, aws_keys: Mapping[str, str], keys: Keys, *, aws_deploys: bool) -> None:
        """Args: aws_keys: `lambda_api.keys`; aws_deploys: these may make changes."""
        self._aws_keys = aws_keys
        self._keys = keys
        self._aws_deploys = aws_deploys

    @property
    def are_there(self) -> bool:
        """Whether there is any key that one could sign in with."""
        return bool(self._aws_keys or self._keys.list())

    def find(self, authorization: bytes) -> Key | None:
        """Return the key that a header shows, if it is one. Args: authorization: empty: there is no such header."""
        scheme, _, encoded = authorization.partition(b" ")
        try:
            given = base64.b64decode(encoded, validate=True) if scheme.lower() == _BASIC else b""
        except ValueError:  # binascii.Error is one, too
            given = b""
        # Every key is compared, each in constant time: how long it takes tells nothing about any.
        known = [
            name for name, secret in self._aws_keys.items() if hmac.compare_digest(given, f"{name}:{secret}".encode())
        ]
        if known:
            return Key("", known[0], "", [*RIGHTS] if self._aws_deploys else ["read", "invoke"])
        return self._keys.find(given.partition(b":")[2])

    def withhold(self, head: Head) -> None:
        """Take keys out of a request that is not for the page. A browser sends them to every path of the host."""
        head.headers = [
            (name, value)
            for name, value in head.headers
            if name != AUTHORIZATION or value[: len(_BASIC)].lower() != _BASIC or self.find(value) is None
        ]
