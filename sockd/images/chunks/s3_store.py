"""A chunk store in a bucket of S3, or of a server with its API.

    <prefix>roots/<root>/<64 digits>    a chunk
    <prefix>objects/<key>               an object

An upload is signed with the SHA-256 of its bytes, so that the server refuses others. Put-if-absent is If-None-Match,
compare-and-set is If-Match with the ETag. S3 reads and lists what was written before (since 2020); the garbage
collector relies on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from sockd.base.errors import ChunkMissing, StoreUnavailable, Tampered
from sockd.base.http_client.pool import Answer, TooLong
from sockd.base.sigv4.canonical import Credentials
from sockd.images.chunks.chunk import CHUNK_BYTES, is_named
from sockd.images.chunks.s3_bucket import S3Bucket, is_missing
from sockd.images.chunks.s3_connections import Patience, S3Connections, error_code
from sockd.images.chunks.store import (
    MAX_OBJECT_BYTES,
    StoredObject,
    check_key,
    check_name,
    check_prefix,
    check_root,
    parsed_name,
)


class S3Store:
    """The store below `prefix` of a bucket. Owns the bucket's idle connections, until `close`."""

    keeps_bytes = True

    def __init__(
        self,
        endpoint: str,
        bucket: str,
        prefix: str,
        credentials: Credentials,
        region: str = "us-east-1",
        *,
        patience: Patience | None = None,
    ) -> None:
        """Connects to nothing yet.

        Args:
            endpoint: empty: AWS's own of this region.
            prefix: of all keys; empty, or with a slash at its end."""
        if prefix and not prefix.endswith("/"):
            prefix += "/"
        self.name = f"s3://{bucket}/{prefix}"
        self._path = "/" + quote(f"{bucket}/{prefix}", safe="/~")
        self._prefix = prefix
        connections = S3Connections(
            self.name,
            endpoint or f"https://s3.{region}.amazonaws.com",
            credentials,
            region=region,
            patience=patience or Patience(),
        )
        self._bucket = S3Bucket(self.name, bucket, connections)

    @property
    def requests(self) -> int:
        """HTTP requests made so far."""
        return self._bucket.connections.requests

    @property
    def heard_s(self) -> float:
        return self._bucket.connections.heard_s

    # ---- chunks ----

    def put(self, root: str, name: bytes, data: bytes, *, replace: bool = False) -> bool:
        target = self._chunk(root, name)
        if not replace:
            size = self._bucket.size(target)  # most chunks of most uploads are there; a HEAD is cheaper than 512 KiB
            if size == len(data):
                return False
            replace = size is not None
        answer = self._bucket.request("PUT", target, headers={} if replace else {"If-None-Match": "*"}, body=data)
        if answer.status == 501 and not replace:
            # A server without conditional writes; equal names are equal bytes anyway.
            answer = self._bucket.request("PUT", target, body=data)
        if answer.status == 412:
            return False
        self._bucket.expect(answer, 200)
        return True

    def get(self, root: str, name: bytes) -> bytes:
        for _ in range(2):  # a transfer may have failed; bytes that are wrong twice are wrong in the store
            data = self._get_chunk(root, name)
            if is_named(name, data):
                return data
        raise Tampered.chunk(self.name, name)

    def has(self, root: str, name: bytes) -> bool:
        return self._bucket.size(self._chunk(root, name)) is not None

    def names(self, root: str) -> Iterator[bytes]:
        beginning = f"{self._prefix}roots/{check_root(root)}/"
        for key in self._bucket.keys(beginning):
            if (name := parsed_name(key.removeprefix(beginning))) is not None:
                yield name

    def delete(self, root: str, name: bytes) -> None:
        self._bucket.expect(self._bucket.request("DELETE", self._chunk(root, name)), 200, 204, 404)

    def copy(self, source: str, target: str, name: bytes) -> bool:
        """By the server: the bytes do not pass this worker."""
        if self.has(target, name):
            return False
        answer = self._bucket.request(
            "PUT", self._chunk(target, name), headers={"X-Amz-Copy-Source": self._chunk(source, name)}
        )
        if is_missing(answer):
            raise ChunkMissing(self.name, source, name)
        if answer.status == 200 and b"<Error>" in answer.body:  # S3 answers 200 before it has copied
            raise StoreUnavailable(self.name, f"it could not copy a chunk: {error_code(answer.body)}")
        self._bucket.expect(answer, 200)
        return True

    # ---- objects ----

    def get_object(self, key: str) -> StoredObject | None:
        answer = self._bucket.request("GET", self._object(key), limit_bytes=MAX_OBJECT_BYTES)
        if is_missing(answer):
            return None
        self._bucket.expect(answer, 200)
        return StoredObject(answer.body, answer.headers.get("ETag", ""))

    def put_object(self, key: str, data: bytes) -> None:
        self._bucket.expect(self._write(key, data, {}), 200)

    def create_object(self, key: str, data: bytes) -> bool:
        return self._conditional(key, data, {"If-None-Match": "*"})

    def swap_object(self, key: str, data: bytes, version: str) -> bool:
        return self._conditional(key, data, {"If-Match": version})

    def list_objects(self, prefix: str) -> Iterator[str]:
        beginning = f"{self._prefix}objects/"
        for key in self._bucket.keys(beginning + check_prefix(prefix)):
            yield key.removeprefix(beginning)

    def delete_object(self, key: str) -> None:
        self._bucket.expect(self._bucket.request("DELETE", self._object(key)), 200, 204, 404)

    def close(self) -> None:
        self._bucket.connections.close()

    # ---- requests ----

    def _chunk(self, root: str, name: bytes) -> str:
        return f"{self._path}roots/{check_root(root)}/{check_name(name)}"

    def _object(self, key: str) -> str:
        return f"{self._path}objects/{quote(check_key(key), safe='/~')}"

    def _get_chunk(self, root: str, name: bytes) -> bytes:
        try:
            answer = self._bucket.connections.request("GET", self._chunk(root, name), limit_bytes=CHUNK_BYTES)
        except TooLong:
            raise Tampered.chunk(self.name, name, "is longer than a chunk may be") from None
        if is_missing(answer):
            raise ChunkMissing(self.name, root, name)
        self._bucket.expect(answer, 200)
        return answer.body

    def _conditional(self, key: str, data: bytes, condition: dict[str, str]) -> bool:
        answer = self._write(key, data, condition)
        if answer.status == 412 or is_missing(answer):
            # What is there may be what the same request wrote before its connection broke.
            found = self.get_object(key) if answer.is_repeated else None
            return found is not None and found.data == data
        self._bucket.expect(answer, 200)
        return True

    def _write(self, key: str, data: bytes, condition: dict[str, str]) -> Answer:
        return self._bucket.request("PUT", self._object(key), headers=condition, body=data)
