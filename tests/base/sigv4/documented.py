"""The requests that AWS's documentation signs, and a verifier that knows their key."""

from __future__ import annotations

import calendar
from collections.abc import Mapping

from sockd.base.sigv4.canonical import EMPTY_SHA256, Credentials, SignedRequest
from sockd.base.sigv4.verifier import Verifier

EXAMPLE = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
THEN_S = calendar.timegm((2013, 5, 24, 0, 0, 0))
DATE = "20130524T000000Z"
SCOPE = "20130524/us-east-1/s3/aws4_request"
BUCKET = "examplebucket.s3.amazonaws.com"


def verifier(*credentials: Credentials, service: str = "s3", now_s: float = THEN_S) -> Verifier:
    return Verifier(*(credentials or (EXAMPLE,)), service=service, clock=lambda: now_s)


def documented(
    method: str, path: str, query: str, headers: Mapping[str, str], signature: str, payload: str = EMPTY_SHA256
) -> SignedRequest:
    """A request of the documentation of S3 (Signature Calculations for the Authorization Header)."""
    found = {"host": BUCKET, "x-amz-content-sha256": payload, "x-amz-date": DATE, **headers}
    found["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={EXAMPLE.access_key}/{SCOPE},"
        f"SignedHeaders={';'.join(sorted(found))},Signature={signature}"
    )
    return SignedRequest(method, path, query, found)
