"""Signatures: AWS Signature Version 4 in a request's headers, as botocore makes it.

It stands between a guest's `send_rpc` and the first byte on the wire, where a cold start finds no cache warm: what counts is
how much code is run, and botocore's is 0.13 ms of it even warm. This is what it comes to for requests like ours. Owns a key
and what is derived from it for the day. Any thread may sign.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import sys
import time
from typing import Any, NamedTuple
from urllib.parse import quote

# CPython's own, for a few hundred bytes: OpenSSL's, once found, is faster, but finding it costs 20 us each time.
_sha256: Any = importlib.import_module("_sha2" if sys.version_info >= (3, 12) else "_sha256").sha256
_BLOCK_BYTES = 64
_ALGORITHM = "AWS4-HMAC-SHA256"
_EMPTY = hashlib.sha256().hexdigest()
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

    def __init__(self, service: str, region: str, access_key: str, secret_key: str, token: str) -> None:
        """`token`: of a session; '' is none."""
        self._service = service
        self._region = region
        self._access_key = access_key
        self._secret_key = secret_key
        self._token = token
        self._key = _Key("", None, None)

    def sign(self, method: str, target: str, fields: dict[str, str], body: bytes = b"") -> None:
        """Add what signs it to a request's headers; Host must be among them. `target` is percent-encoded, its parameters in
        the order of their names."""
        timestamp = utc_now()
        digest = hashlib.sha256(body).hexdigest() if body else _EMPTY
        fields["X-Amz-Date"] = timestamp
        if self._token:
            fields["X-Amz-Security-Token"] = self._token
        path, _, query = target.partition("?")
        if self._service == "s3":
            fields["X-Amz-Content-SHA256"] = digest
        else:  # S3 signs the path as it is, every other service what is left of it, encoded once more
            path = quote(_without_dots(path), safe="/~")
        signed = sorted([(name.lower(), " ".join(value.split())) for name, value in fields.items()])
        names = ";".join([name for name, _ in signed])
        headers = "".join([f"{name}:{value}\n" for name, value in signed])
        canonical = f"{method}\n{path}\n{query}\n{headers}\n{names}\n{digest}"
        scope = f"{timestamp[:8]}/{self._region}/{self._service}/aws4_request"
        text = f"{_ALGORITHM}\n{timestamp}\n{scope}\n{_sha256(canonical.encode()).hexdigest()}"
        key = self._key
        if key.day != timestamp[:8]:
            key = self._key = self._derive(timestamp[:8])
        signature, credential = key.sign(text), f"{self._access_key}/{scope}"
        fields["Authorization"] = f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"

    def _derive(self, day: str) -> _Key:
        key = f"AWS4{self._secret_key}".encode()
        for part in (day, self._region, self._service, "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
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


def _without_dots(path: str) -> str:
    kept: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del kept[-1:]
        elif part and part != ".":
            kept.append(part)
    return "/" + "/".join(kept) + ("/" if kept and path.endswith("/") else "")
