"""Access to AWS's API.

Functions on the host's network reach this port, and so do web pages in local browsers. A client that may deploy can run
code; one that may read a function's settings knows its secrets. So:

    POLICY: with keys, every request must be signed with one of them. Without keys only Invoke is available, under the rules
    of `/run` (`sockd.http.access.callers`), and only on loopback. A worker without keys that listens elsewhere does not start.

Owns nothing: `sockd.http.access.signatures` has the keys.
"""

from __future__ import annotations

from collections.abc import Mapping

from sockd.base.config import HttpConfig, LambdaApiConfig
from sockd.base.errors import BadConfig
from sockd.http.access.host_check import is_loopback
from sockd.http.access.signatures import AccessDenied, Signatures
from sockd.http.aws.routes import PERMISSIONS, Operation, Permission
from sockd.http.server.listening.sockets import parse_listen

MIN_SECRET_CHARS = 16
_NEEDS_KEY = (
    "without keys this port serves Invoke only, as functions and web pages can reach it. Configure one, "
    '[lambda_api.keys] NAME = "SECRET", and let the client sign with it; or use `sockd deploy`'
)


class Access:
    """What is open of one worker."""

    def __init__(self, signatures: Signatures) -> None:
        self.signatures = signatures

    @classmethod
    def of(cls, config: LambdaApiConfig, http: HttpConfig) -> Access:
        """What a configuration says. Raises: BadConfig, when it would open too much."""
        for name, secret in config.keys.items():
            if not name.isascii() or not name.isalnum() or len(secret) < MIN_SECRET_CHARS:
                raise BadConfig(
                    f"lambda_api.keys.{name[:40]}: its name must be letters and digits, and its secret at least "
                    f"{MIN_SECRET_CHARS} characters: openssl rand -hex 20"
                )
        host, _ = parse_listen(http.listen)
        if config.enabled and not config.keys and not is_loopback(host):
            raise BadConfig(
                f"listen = {http.listen!r} is reached from other machines: add a key, [lambda_api.keys] NAME = "
                '"SECRET", for requests to be signed with, or set lambda_api.enabled = false and serve /run alone'
            )
        return cls(Signatures(config.keys))

    @property
    def has_keys(self) -> bool:
        """Whether requests must be signed."""
        return self.signatures.has_keys

    def check_head(self, operation: Operation, headers: Mapping[str, str]) -> None:
        """Refuse a request by its head, before its body is read. Raises: AccessDenied."""
        if self.signatures.has_keys:
            self.signatures.check_head(headers)
        elif PERMISSIONS[operation] is not Permission.INVOKE:
            raise AccessDenied(f"{operation.value} is not open here: {_NEEDS_KEY}")
