"""Access to AWS's API.

Functions on the host's network reach this port, and so do web pages in local browsers. A client that may deploy can run
code; one that may read a function's settings knows its secrets. So:

    POLICY: with keys, every request must be signed with one of them. Without keys only Invoke is available, under the rules
    of `/run` (`sockd.http.access.callers`), and only on loopback. A worker without keys that listens elsewhere does not start.

Owns the keys. A signature covers method, path, query, host, the x-amz-* headers and the body; it holds for 15 minutes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from sockd.base.config import HttpConfig, LambdaApiConfig
from sockd.base.errors import BadConfig
from sockd.base.sigv4.canonical import SignedRequest
from sockd.base.sigv4.credentials import Credentials
from sockd.base.sigv4.verifier import SignatureRefused, Verifier
from sockd.http.access.host_check import is_loopback
from sockd.http.aws.errors import AccessDenied, InvalidSignature, MissingSignature, UnknownKey
from sockd.http.aws.routes import PERMISSIONS, Operation, Permission
from sockd.http.server.sockets import parse_listen

MIN_SECRET_CHARS = 16
_NEEDS_KEY = (
    "without keys this port serves Invoke only, as functions and web pages can reach it. Configure one, "
    '[lambda_api.keys] NAME = "SECRET", and let the client sign with it; or use `sockd deploy`'
)


class Access:
    """The keys of one worker, and what is open without them."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._names = list(keys)
        credentials = (Credentials(name, secret) for name, secret in keys.items())
        self._verifier = Verifier(*credentials, service="lambda") if keys else None

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
        return cls(config.keys)

    @property
    def has_keys(self) -> bool:
        """Whether requests must be signed."""
        return self._verifier is not None

    def check_head(self, operation: Operation, headers: Mapping[str, str]) -> None:
        """Refuse a request by its head, before its body is read. Raises: AccessDenied."""
        if self._verifier is None:
            if PERMISSIONS[operation] is not Permission.INVOKE:
                raise AccessDenied(f"{operation.value} is not open here: {_NEEDS_KEY}")
            return
        authorization = headers.get("authorization")
        if authorization is None:
            raise MissingSignature("Missing Authentication Token: this worker takes signed requests only")
        if not any(f"Credential={name}/" in authorization for name in self._names):
            raise UnknownKey("The security token included in the request is invalid.")

    def check(self, request: SignedRequest, body: bytes | bytearray) -> None:
        """Verify the signature of a whole request. Takes a millisecond per megabyte. Raises: AccessDenied."""
        if self._verifier is None:
            return
        try:
            self._verifier.verify(request, hashlib.sha256(body).hexdigest())
        except SignatureRefused as refused:
            if refused.code in ("InvalidAccessKeyId", "InvalidToken"):
                raise UnknownKey("The security token included in the request is invalid.") from None
            raise InvalidSignature(refused.message) from None

    def signer(self, request: SignedRequest, body: bytes | bytearray) -> str:
        """The name of the key that a request to a function URL is signed with. Takes as long as `check`. Raises: AccessDenied."""
        if self._verifier is None:
            raise MissingSignature("this worker has no keys ([lambda_api.keys]), so nobody can sign")
        try:
            return self._verifier.verify(request, hashlib.sha256(body).hexdigest()).access_key
        except SignatureRefused as refused:
            raise InvalidSignature(refused.message) from None
