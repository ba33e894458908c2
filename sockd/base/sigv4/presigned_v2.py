"""The presigned URLs that boto3 still makes by default in us-east-1: version 2, HMAC-SHA1 over a part of the request.

Only in the query and only for S3. It covers no Host, no body, and of the parameters only those of the table.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from urllib.parse import unquote

from sockd.base.sigv4.canonical import SignedRequest

_SIGNED_PARAMETERS = frozenset(
    """accelerate acl analytics cors defaultObjectAcl delete inventory lifecycle location logging metrics notification
    partNumber policy replication requestPayment response-cache-control response-content-disposition
    response-content-encoding response-content-language response-content-type response-expires restore select tagging
    torrent uploadId uploads versionId versioning versions website""".split()
)


def is_presigned_v2(parameters: Mapping[str, str]) -> bool:
    return "AWSAccessKeyId" in parameters


def signature(request: SignedRequest, expires: str, secret_key: str) -> str:
    """The signature that the request should have, in base64."""
    headers = request.headers
    amazon = sorted(name for name in headers if name.startswith("x-amz-"))
    lines = (
        request.method,
        headers.get("content-md5", ""),
        headers.get("content-type", ""),
        expires,
        *(f"{name}:{' '.join(headers[name].split())}" for name in amazon),
        request.path + _signed_query(request.query),
    )
    text = "\n".join(lines).encode("utf-8", "surrogateescape")
    return base64.b64encode(hmac.digest(secret_key.encode(), text, "sha1")).decode()


def _signed_query(query: str) -> str:
    pairs = [part.partition("=") for part in query.split("&")] if query else []
    signed = sorted((name, sign + unquote(value)) for name, sign, value in pairs if name in _SIGNED_PARAMETERS)
    return "?" + "&".join(name + value for name, value in signed) if signed else ""
