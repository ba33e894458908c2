"""What AWS Signature Version 4 signs, a request in its one canonical spelling, and with what: credentials, and the key made of
them for a day, region and service.

Pure functions for both ends: `verifier` verifies with them, `signer` signs with them.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

ALGORITHM = "AWS4-HMAC-SHA256"
EMPTY_SHA256 = hashlib.sha256().hexdigest()
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """The parts of a request that a signature can cover, as they are on the wire."""

    method: str
    path: str
    """Still percent-encoded."""
    query: str
    """Still percent-encoded, without the question mark."""
    headers: Mapping[str, str]
    """Names in lower case; values of a repeated name joined by commas."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key, its secret, and the token if they are of a session."""

    access_key: str
    secret_key: str
    session_token: str | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """Where and when a signature holds."""

    date: str
    """YYYYMMDD"""
    region: str
    service: str

    def __str__(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/aws4_request"


def canonical_request(
    request: SignedRequest, signed_headers: Collection[str], payload: str, *, service: str, leave_out: str = ""
) -> str:
    """The canonical spelling.

    Args:
        signed_headers: names in lower case, sorted; all of them are in the request.
        payload: the SHA-256 of the body in hex, or one of the words that stand for none.
        leave_out: a parameter of the query that is not signed (the signature itself)."""
    headers = "".join(f"{name}:{' '.join(request.headers[name].split())}\n" for name in signed_headers)
    return "\n".join(
        (
            request.method,
            canonical_path(request.path, service=service),
            canonical_query(request.query, leave_out=leave_out),
            headers,
            ";".join(signed_headers),
            payload,
        )
    )


def canonical_path(path: str, *, service: str) -> str:
    """S3 signs the path as it means it, encoded once; every other service signs what is on the wire, encoded once more."""
    if service == "s3":
        return quote(unquote_to_bytes(path), safe="/~") or "/"
    return quote(_without_dots(path), safe="/~")


def canonical_query(query: str, *, leave_out: str = "") -> str:
    """The parameters in the order of their encoded names and values."""
    if not query:
        return ""
    pairs = []
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if part and name != leave_out:
            pairs.append((_encoded(name), _encoded(value)))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def string_to_sign(timestamp: str, scope: Scope, canonical: str) -> str:
    digest = hashlib.sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{ALGORITHM}\n{timestamp}\n{scope}\n{digest}"


@functools.lru_cache(maxsize=64)
def signing_key(secret: str, scope: Scope) -> bytes:
    """The key that signs within this scope."""
    key = f"AWS4{secret}".encode()
    for part in (scope.date, scope.region, scope.service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def sign(key: bytes, text: str) -> str:
    return hmac.digest(key, text.encode("utf-8", "surrogateescape"), "sha256").hex()


def _encoded(text: str) -> str:
    # A plus is a space in a query by custom; those who sign spell a space %20 and a plus %2B.
    return quote(unquote_to_bytes(text.replace("+", "%20")), safe="~")


def _without_dots(path: str) -> str:
    kept: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del kept[-1:]
        elif part and part != ".":
            kept.append(part)
    return "/" + "/".join(kept) + ("/" if kept and path.endswith("/") else "")
