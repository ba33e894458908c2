"""A client's half of Signature Version 4, as small as it can be: the headers that sign one request."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping

from sockd.s3.canonical import ALGORITHM, Scope, SignedRequest, canonical_request, sign, signing_key, string_to_sign
from sockd.s3.signature import Credentials


def signed_headers(
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    *,
    credentials: Credentials,
    payload: bytes | str = b"",
    service: str = "s3",
    region: str = "us-east-1",
    now_s: float | None = None,
) -> dict[str, str]:
    """The headers with the signature added.

    Args:
        path: as it will be on the wire, percent-encoded; so the query.
        headers: all of them get signed; Host must be among them.
        payload: the body, or its SHA-256 in hex or a word that stands for it.
        now_s: seconds since the epoch; the present when None."""
    timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    digest = payload if isinstance(payload, str) else hashlib.sha256(payload).hexdigest()
    result = {**headers, "x-amz-date": timestamp, "x-amz-content-sha256": digest}
    if credentials.session_token:
        result["x-amz-security-token"] = credentials.session_token
    request = SignedRequest(method, path, query, {name.lower(): value for name, value in result.items()})
    names = sorted(request.headers)
    scope = Scope(timestamp[:8], region, service)
    canonical = canonical_request(request, names, digest, service=service)
    signature = sign(signing_key(credentials.secret_key, scope), string_to_sign(timestamp, scope, canonical))
    result["Authorization"] = (
        f"{ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={';'.join(names)}, Signature={signature}"
    )
    return result
