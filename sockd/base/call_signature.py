"""How a caller and the worker prove to each other that they share a function's call key, over a port that others may hold.

    request   X-Sockd-Signature: <nonce>.<HMAC-SHA256 of name, nonce, what the code must be, and body>
    answer    X-Sockd-Signature: <HMAC-SHA256 of name, the request's nonce, status, and body>

The key is the deployer's; the worker keeps it sealed, and no sandbox ever sees it. The nonce is the caller's: an answer to
another request does not verify. Both ends import this file. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import re

IF_CODE = "x-sockd-if-code"
"""Which code may run: digests or source tags, separated by commas. Other code answers 412 and is not run."""
SIGNATURE = "x-sockd-signature"
KEY_BYTES = 32
_REQUEST_SIGNATURE = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{64})")


def source_tag(source: str) -> str:
    """A source in 64 hex digits, as `IF_CODE` names it. Args: source: `FILE:FUNCTION`."""
    return hashlib.sha256(b"sockd source\n" + source.encode("utf-8", "surrogatepass")).hexdigest()


def key_id(key: bytes) -> str:
    """Names a key without telling it."""
    return hashlib.sha256(b"sockd key\n" + key).hexdigest()[:16]


def request_signature(key: bytes, name: str, nonce: str, code: str, body: bytes) -> str:
    """The header of a request. Args: nonce: 32 hex digits, never used before; code: the value of `IF_CODE`, or empty."""
    return f"{nonce}.{_mac(key, ('sockd call', name, nonce, code), body)}"


def verified_nonce(key: bytes, name: str, header: str, code: str, body: bytes) -> str | None:
    """The nonce of a request that was signed with this key; None: the header is malformed, or does not verify."""
    parts = _REQUEST_SIGNATURE.fullmatch(header)
    if parts is None:
        return None
    nonce, mac = parts.groups()
    return nonce if hmac.compare_digest(mac, _mac(key, ("sockd call", name, nonce, code), body)) else None


def answer_signature(key: bytes, name: str, nonce: str, status: int, body: bytes) -> str:
    """The header of an answer."""
    return _mac(key, ("sockd answer", name, nonce, str(status)), body)


def is_answer_signed(key: bytes, name: str, nonce: str, status: int, body: bytes, header: str) -> bool:
    """Whether an answer comes from one that has the key, and answers the request with this nonce."""
    return hmac.compare_digest(header.encode(), answer_signature(key, name, nonce, status, body).encode())


def _mac(key: bytes, fields: tuple[str, ...], body: bytes) -> str:
    # No field holds a line feed (names, hex digits and commas only), so no two sets of fields give the same text.
    mac = hmac.new(key, "\n".join((*fields, "")).encode(), hashlib.sha256)
    mac.update(body)
    return mac.hexdigest()
