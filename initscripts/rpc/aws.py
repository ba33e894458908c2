"""What a function's environment says of AWS: where a service is, and who signs the requests to it.

Signing is botocore's; what is kept here is that a signature costs 35 µs instead of 50: the key that is derived from the
day, and a request that is a plain object. Owns the signers. Knows nothing of what is signed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from initscripts.rpc.addresses import Origin, parse_origin
from initscripts.rpc.base import malformed

_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_WORD = re.compile(r"[\x21-\x7e]+")


class AwsService:
    """One service as one function uses it: `base_path` stands before each path (mostly '')."""

    def __init__(self, name: str, env: Mapping[str, str]) -> None:
        """`name`: s3, sqs, dynamodb. Raises: RpcFailed (malformed) for an endpoint that is none."""
        self.name = name
        self.region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1"
        url = (
            env.get(f"AWS_ENDPOINT_URL_{name.upper()}")
            or env.get("AWS_ENDPOINT_URL")
            or f"https://{name}.{self.region}.amazonaws.com"
        )
        # All of it ends up in heads, on connections that functions share: no line may end early.
        if not all(map(_WORD.fullmatch, filter(None, (url, self.region, *map(env.get, _CREDENTIALS))))):
            raise malformed(f"spaces or control characters in the endpoint of {name}, the region or the credentials")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.query or parts.fragment:
            raise malformed(f"the endpoint of {name} is {url!r}, which is not http://host:port")
        self.origin: Origin = parse_origin(f"{parts.scheme}://{parts.netloc}")
        self.base_path = parts.path.rstrip("/")
        self._env = env
        self._signer: Any = None

    def head(self, method: str, target: str, fields: dict[str, str], body: bytes = b"") -> bytes:
        """The signed head of a request, with its empty line. `target` is percent-encoded and begins with '/'. The function's
        own key signs; without one the request goes out as it is, for public buckets."""
        authority = self.origin.authority
        fields["host"] = authority
        target = self.base_path + target
        signer = self._signer or self._make_signer()
        if signer is not _UNSIGNED:
            signer.add_auth(_SignedRequest(method, f"{self.origin.scheme}://{authority}{target}", fields, body))
        lines = "".join([f"{name}: {value}\r\n" for name, value in fields.items()])
        return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")

    def _make_signer(self) -> Any:
        access_key, secret_key, token = map(self._env.get, _CREDENTIALS)
        if not access_key or not secret_key:
            self._signer = _UNSIGNED
        else:
            self._signer = _signer_class(self.name)(_credentials(access_key, secret_key, token), self.name, self.region)
        return self._signer


_UNSIGNED = object()


class _SignedRequest:
    """As much of botocore's AWSRequest as its signers look at."""

    params = None

    def __init__(self, method: str, url: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.url = url
        self.headers = headers
        self.body = body
        self.context: dict[str, Any] = {}


def _credentials(access_key: str, secret_key: str, token: str | None) -> Any:
    from botocore.credentials import Credentials  # 200 ms, and only where something is signed

    return Credentials(access_key, secret_key, token or None)


def _signer_class(service: str) -> type[Any]:
    from botocore.auth import S3SigV4Auth, SigV4Auth

    base: type[Any] = S3SigV4Auth if service == "s3" else SigV4Auth

    class Signer(base):  # type: ignore[misc]
        """Remembers the key of the day, which takes four of the five HMACs."""

        _day_and_key = ("", b"")  # one name for both: guests' threads sign, too

        def signature(self, string_to_sign: str, request: _SignedRequest) -> str:
            today = request.context["timestamp"][:8]
            day, key = self._day_and_key
            if day != today:
                key = f"AWS4{self.credentials.secret_key}".encode()
                for part in (today, self._region_name, self._service_name, "aws4_request"):
                    key = self._sign(key, part)
                self._day_and_key = (today, key)
            signature: str = self._sign(key, string_to_sign, hex=True)
            return signature

    return Signer


def tenant(env: Mapping[str, str]) -> str:
    """Functions with the same environment may share connections."""
    digest = hashlib.sha256()
    for name in sorted(env):
        digest.update(f"{name}\0{env[name]}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]
