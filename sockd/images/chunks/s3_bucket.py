"""The requests to one bucket of S3, or of a server with its API, with answers as they are expected.

Owns nothing: its maker closes the connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

from sockd.base.errors import StoreFull, StoreUnavailable
from sockd.base.http_client.pool import Answer, TooLong
from sockd.images.chunks.s3_connections import S3Connections, error_code

_FULL = ("QuotaExceeded", "XMinioStorageFull", "InsufficientStorage")
_LIST_BYTES = 16 << 20


class S3Bucket:
    """A bucket, by the paths of its objects. Errors have the name of the store that is in it."""

    def __init__(self, store: str, bucket: str, connections: S3Connections) -> None:
        self.connections = connections
        self._store = store
        self._path = "/" + quote(bucket, safe="~")

    def request(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        limit_bytes: int = 1 << 20,
    ) -> Answer:
        """Send one request. Raises: StoreUnavailable."""
        try:
            return self.connections.request(method, target, headers=headers, body=body, limit_bytes=limit_bytes)
        except TooLong:
            raise StoreUnavailable(self._store, "its answer is too long") from None

    def size(self, target: str) -> int | None:
        """Return the size of an object, -1 if the server does not state it, or None if there is no such object."""
        answer = self.request("HEAD", target)
        if answer.status == 404:
            return None
        self.expect(answer, 200)
        length = answer.headers.get("Content-Length", "")
        return int(length) if length.isdecimal() else -1

    def keys(self, beginning: str) -> Iterator[str]:
        """The keys with this beginning, page after page. Raises: StoreFull; StoreUnavailable."""
        parameters = {"list-type": "2", "prefix": beginning}
        while True:
            # In the order of their names, and spelled as they are signed.
            query = urlencode(sorted(parameters.items()), quote_via=quote, safe="~")
            answer = self.request("GET", f"{self._path}?{query}", limit_bytes=_LIST_BYTES)
            self.expect(answer, 200)
            try:
                page = ElementTree.fromstring(answer.body)
            except ElementTree.ParseError:
                raise StoreUnavailable(self._store, "its list of objects is not XML") from None
            for key in page.iterfind("{*}Contents/{*}Key"):
                yield key.text or ""
            token = page.findtext("{*}NextContinuationToken")
            if not token:
                return
            parameters["continuation-token"] = token

    def expect(self, answer: Answer, *statuses: int) -> None:
        """Check an answer's status. Raises: StoreFull; StoreUnavailable: it is another one."""
        if answer.status in statuses:
            return
        code = error_code(answer.body)
        if answer.status == 507 or code in _FULL:
            raise StoreFull(self._store)
        raise StoreUnavailable(self._store, f"it answers {answer.status} {code}".rstrip())


def is_missing(answer: Answer) -> bool:
    """Whether there is no such object, in a bucket that is there."""
    return answer.status == 404 and b"<Code>NoSuchBucket</Code>" not in answer.body
