"""AWS's signatures: who signed a request with which of the worker's keys (`[lambda_api.keys]`).

Owns the keys. A signature covers method, path, query, host, the x-amz-* headers and the body; it holds for 15 minutes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from sockd.base.errors import SockdError
from sockd.base.sigv4.canonical import Credentials, SignedRequest
from sockd.base.sigv4.verifier import SignatureRefused, Verifier


class AccessDenied(SockdError):
    """The request needs a key, or another one."""

    status = 403
    error_type = "AccessDeniedException"


class MissingSignature(AccessDenied):
    """The request is not signed."""

    error_type = "MissingAuthenticationTokenException"


class UnknownKey(AccessDenied):
    """The request is signed with a key that is not configured."""

    error_type = "UnrecognizedClientException"


class InvalidSignature(AccessDenied):
    """The signature is wrong or expired."""

    error_type = "InvalidSignatureException"


class Signatures:
    """The keys of one worker."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        """Args: keys: secrets by their names."""
        self._names = list(keys)
        credentials = (Credentials(name, secret) for name, secret in keys.items())
        self._verifier = Verifier(*credentials, service="lambda") if keys else None

    @property
    def has_keys(self) -> bool:
        """Whether requests must be signed."""
        return self._verifier is not None

    def check_head(self, headers: Mapping[str, str]) -> None:
        """Refuse a request whose head names no key of these, before its body is read. Raises: AccessDenied."""
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
            raise MissingSignature("this worker has no keys ([lambda_api.keys]), so no request can be signed")
        try:
            return self._verifier.verify(request, hashlib.sha256(body).hexdigest()).access_key
        except SignatureRefused as refused:
            raise InvalidSignature(refused.message) from None
