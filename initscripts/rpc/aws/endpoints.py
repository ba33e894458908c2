"""What a function's environment says of AWS: where a service is, and who signs the requests to it.

Owns the signer. Knows nothing of what is signed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from sockd.base.sigv4.canonical import Credentials
from sockd.base.sigv4.signer import Signer
from sockd_initscripts.rpc.base import malformed
from sockd_initscripts.rpc.dialing.addresses import Origin, parse_origin

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
        access_key, secret_key, token = (env.get(name, "") for name in _CREDENTIALS)
        self._signer: Signer | None = None
        if access_key and secret_key:
            self._signer = Signer(Credentials(access_key, secret_key, token), service=name, region=self.region)

    def head(self, method: str, target: str, fields: dict[str, str], body: bytes = b"") -> bytes:
        """The signed head of a request, with its empty line. `target` is percent-encoded, its parameters in the order
        of their names, and begins with '/'. The function's
        own key signs; without one the request goes out as it is, for public buckets."""
        authority = self.origin.authority
        fields["host"] = authority
        target = self.base_path + target
        if self._signer is not None:
            self._signer.sign(method, target, fields, body, is_canonical=True)
        lines = "".join([f"{name}: {value}\r\n" for name, value in fields.items()])
        return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")


def tenant(env: Mapping[str, str]) -> str:
    """Functions with the same environment may share connections."""
    digest = hashlib.sha256()
    for name in sorted(env):
        digest.update(f"{name}\0{env[name]}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]
