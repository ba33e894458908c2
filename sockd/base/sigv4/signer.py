"""The signer: adds to a request's headers what signs it, as botocore does.

In the initscript engine it stands between a guest's `send_rpc` and the first byte on the wire, where a cold start finds no
cache warm: what counts is how much code is run, and botocore's is 0.13 ms of it even warm. Owns a key and what is derived
from it for the day. Any thread may sign.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import time
from typing import Any, NamedTuple

from sockd.base.sigv4.canonical import (
    ALGORITHM,
    EMPTY_SHA256,
    Credentials,
    Scope,
    canonical_path,
    canonical_query,
    signing_key,
)

# CPython's own, for a few hundred bytes: OpenSSL's, once found, is faster, but finding it costs 20 us each time.
_sha256: Any = importlib.import_module("_sha2" if sys.version_info >= (3, 12) else "_sha256").sha256
_BLOCK_BYTES = 64
_AGE_S = 10.0
"""The time is spelled anew after so long; services take what is minutes old."""


class _Key(NamedTuple):
    """A day's, as HMAC wants it: both hashes with the key in them already."""

    day: str
    inner: Any
    outer: Any

    def sign(self, text: str) -> str:
        inner, outer = self.inner.copy(), self.outer.copy()
        inner.update(text.encode())
        outer.update(inner.digest())
        signature: str = outer.hexdigest()
        return signature


class Signer:
    """One key for one service in one region."""

    def __init__(self, credentials: Credentials, *, service: str, region: str = "us-east-1") -> None:
        self._credentials = credentials
        self._service = service
        self._region = region
        self._key = _Key("", None, None)

    def sign(
        self,
        method: str,
        target: str,
        fields: dict[str, str],
        payload: bytes | str = b"",
        *,
        is_canonical: bool = False,
        timestamp: str = "",
    ) -> None:
        """Add what signs it to a request's headers; all of them are signed, and Host must be among them.

        Args:
            target: as it will be on the wire, percent-encoded.
            payload: the body, or its SHA-256 in hex, or a word that stands for it.
            is_canonical: the target is spelled as it is signed, which saves a third of the work: what need not be
                encoded is not, and parameters are in the order of their names, each with an equals sign.
            timestamp: `YYYYMMDDTHHMMSSZ`; the present when empty."""
        timestamp = timestamp or utc_now()
        digest = (
            payload if isinstance(payload, str) else hashlib.sha256(payload).hexdigest() if payload else EMPTY_SHA256
        )
        fields["X-Amz-Date"] = timestamp
        if self._credentials.session_token:
            fields["X-Amz-Security-Token"] = self._credentials.session_token
        path, _, query = target.partition("?")
        if self._service == "s3":
            fields["X-Amz-Content-SHA256"] = digest
        if not is_canonical or self._service != "s3":
            path = canonical_path(path, service=self._service)
        if not is_canonical:
            query = canonical_query(query)
        signed = sorted([(name.lower(), " ".join(value.split())) for name, value in fields.items()])
        names = ";".join([name for name, _ in signed])
        headers = "".join([f"{name}:{value}\n" for name, value in signed])
        canonical = f"{method}\n{path}\n{query}\n{headers}\n{names}\n{digest}"
        scope = f"{timestamp[:8]}/{self._region}/{self._service}/aws4_request"
        text = f"{ALGORITHM}\n{timestamp}\n{scope}\n{_sha256(canonical.encode()).hexdigest()}"
        key = self._key
        if key.day != timestamp[:8]:
            key = self._key = self._derive(timestamp[:8])
        credential = f"{self._credentials.access_key}/{scope}"
        fields["Authorization"] = (
            f"{ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={key.sign(text)}"
        )

    def _derive(self, day: str) -> _Key:
        key = signing_key(self._credentials.secret_key, Scope(day, self._region, self._service))
        padded = key.ljust(_BLOCK_BYTES, b"\0")
        return _Key(day, *(_sha256(bytes(byte ^ pad for byte in padded)) for pad in (0x36, 0x5C)))


_spelled = (-_AGE_S, "")


def utc_now() -> str:
    """The present to within seconds, as signatures spell it."""
    global _spelled
    now_s = time.monotonic()
    since_s, text = _spelled
    if now_s - since_s >= _AGE_S:
        text = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        _spelled = (now_s, text)
    return text
