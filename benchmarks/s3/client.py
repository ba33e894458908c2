"""The few S3 calls that development tools and tests make, over kept connections, each sent once: a fault of the server is seen.

Not for functions: those have boto3 or `storage`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

from benchmarks.s3.xml import NAMESPACE
from sockd.base.http_client.pool import ConnectionPool
from sockd.base.sigv4.canonical import Credentials
from sockd.base.sigv4.signer import Signer

CONNECT_S = 60.0
DEADLINE_S = 600.0
"""For one exchange; rules of the server may delay it for minutes."""
Records = list[dict[str, Any]]
"""Fields of request_log.Record."""


class Refused(Exception):
    """The server answered with an error; `status` and its `code`, if it gave one."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Reply:
    """A good answer."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


class Client:
    """A client of one server. Owns its connections, which are made when they are needed.

    Args:
        url: http://host:port of the server, or of a proxy before it.
        credentials: what to sign with.
        admin_token: opens `inject` and `requests`.

    Every call raises Refused, OSError and http.client.HTTPException."""

    def __init__(self, url: str, credentials: Credentials, *, admin_token: str = "") -> None:
        self._connections = ConnectionPool(url, connect_s=CONNECT_S)
        self._signer = Signer(credentials, service="s3")
        self._admin_token = admin_token

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connections.close()

    def make_bucket(self, bucket: str, *, exist_ok: bool = False) -> None:
        try:
            self._call("PUT", bucket)
        except Refused as refused:
            if not exist_ok or refused.code != "BucketAlreadyOwnedByYou":
                raise

    def put(self, bucket: str, key: str, data: bytes, *, content_type: str = "binary/octet-stream") -> str:
        """Store an object; its ETag, with quotes."""
        return self._call("PUT", bucket, key, body=data, headers={"Content-Type": content_type}).headers["etag"]

    def get(self, bucket: str, key: str) -> bytes:
        return self._call("GET", bucket, key).body

    def get_range(self, bucket: str, key: str, first: int, last: int, *, if_match: str | None = None) -> Reply:
        """The bytes from `first` to `last`, both included."""
        headers = {"Range": f"bytes={first}-{last}"} | ({"If-Match": if_match} if if_match else {})
        return self._call("GET", bucket, key, headers=headers)

    def head(self, bucket: str, key: str) -> Reply:
        return self._call("HEAD", bucket, key)

    def list(self, bucket: str, prefix: str = "") -> Iterator[str]:
        """Keys in order, page after page."""
        token: str | None = ""
        while True:
            page = ElementTree.fromstring(self.list_page(bucket, prefix, token or "").body)
            for key in page.iterfind(f"{{{NAMESPACE}}}Contents/{{{NAMESPACE}}}Key"):
                yield key.text or ""
            token = page.findtext(f"{{{NAMESPACE}}}NextContinuationToken")
            if not token:
                return

    def list_page(self, bucket: str, prefix: str = "", token: str = "") -> Reply:
        """One page of a list, as S3 gives it. Args: token: of the page before; empty: the first."""
        parameters = {"list-type": "2", "prefix": prefix} | ({"continuation-token": token} if token else {})
        return self._call("GET", bucket, parameters=parameters)

    def delete(self, bucket: str, key: str) -> None:
        """Delete an object; that it is not there is no error."""
        self._call("DELETE", bucket, key)

    def delete_bucket(self, bucket: str) -> None:
        self._call("DELETE", bucket)

    def inject(self, match: str = "", **rule: Any) -> int:
        """Add a rule (the fields of faults.Rule); its id."""
        number: int = json.loads(self._admin("POST", "faults", json.dumps({"match": match, **rule}).encode()))["id"]
        return number

    def remove_faults(self) -> None:
        self._admin("DELETE", "faults")

    def requests(self, *, at_least: int = 0) -> Records:
        """The request log, in the order in which they came; of those under way `end_ns` is 0.

        Args:
            at_least: wait until there are so many (the server gives up after 10 s)."""
        found: Records = json.loads(self._admin("GET", f"requests/{at_least}"))
        return found

    def forget_requests(self) -> None:
        self._admin("DELETE", "requests")

    def _call(
        self,
        method: str,
        bucket: str,
        key: str = "",
        *,
        parameters: Mapping[str, str] | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        path = f"/{bucket}" + (f"/{quote(key, safe='/~')}" if key else "")
        query = urlencode(parameters or {}, quote_via=quote)
        target = f"{path}?{query}" if query else path
        fields = {"Host": self._connections.host, **(headers or {})}
        self._signer.sign(method, target, fields, body)
        return self._exchange(method, target, fields, body)

    def _admin(self, method: str, path: str, body: bytes = b"") -> bytes:
        return self._exchange(method, f"/-/{path}", {"Authorization": f"Bearer {self._admin_token}"}, body).body

    def _exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        answer = self._connections.exchange(
            method, target, headers, body, limit_bytes=sys.maxsize, deadline_s=DEADLINE_S
        )
        if answer.status >= 300:
            raise _refused(answer.status, answer.body)
        return Reply(answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.body)


def _refused(status: int, body: bytes) -> Refused:
    try:
        tree = ElementTree.fromstring(body)
        return Refused(status, tree.findtext("Code") or "", tree.findtext("Message") or "")
    except ElementTree.ParseError:
        return Refused(status, "", body[:200].decode(errors="replace"))
