"""S3 and DynamoDB over the network: boto3, imported when the first call needs it, and only then.

Objects are read by one GET, without the HEAD that boto3's own transfers begin with; what is longer than a part, by ranges
over several connections, as those do.
"""

from __future__ import annotations

import _thread
import os
import sys

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PART_BYTES = 8 << 20
CONNECTIONS = 8
CHUNK_BYTES = 256 << 10
ATTEMPTS = 5

_lock = _thread.allocate_lock()
_clients: dict[str, Any] = {}


def client(service: str) -> Any:
    """The process's boto3 client for `service`, configured by the environment as every boto3 client is."""
    with _lock:
        made = _clients.get(service)
        if made is None:
            import boto3
            from botocore.config import Config

            environ = os.environ
            own_endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
            # A server of one's own rarely has a name for each bucket.
            config = Config(s3={"addressing_style": "path"}) if service == "s3" and own_endpoint else None
            made = boto3.client(service, config=config)
            if service == "s3" and (clients := sys.modules.get("sockd_storage.clients")) is not None:
                clients.leave_out(made)  # its requests are those of reads that have looked for a reply already
            _clients[service] = made
        return made


def get(bucket: str, key: str, start: Callable[[int], Callable[[int, bytes], object]]) -> None:
    """Read a whole object.

    Args: start: called with its length, gives what is called with (offset, bytes) for each piece, in any order and from
        several threads.
    Raises: what boto3 raises; so, too, when the object is replaced meanwhile."""
    reply = client("s3").get_object(Bucket=bucket, Key=key)
    length, body, etag = reply["ContentLength"], reply["Body"], reply.get("ETag")
    put = start(length)
    if length <= PART_BYTES:
        read_part(bucket, key, etag, 0, length, put, body)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        parts = [threads.submit(read_part, bucket, key, etag, 0, PART_BYTES, put, body)]
        for offset in range(PART_BYTES, length, PART_BYTES):
            end = min(offset + PART_BYTES, length)
            parts.append(threads.submit(read_part, bucket, key, etag, offset, end, put))
        try:
            for part in parts:
                part.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def read_part(
    bucket: str,
    key: str,
    etag: str | None,
    offset: int,
    end: int,
    put: Callable[[int, bytes], object],
    body: Any = None,
) -> None:
    """Bytes of one version of an object. Args: body: the open reply of a GET that began at `offset`.

    A connection that breaks is made again, and goes on where the last one ended. Raises: what boto3 raises."""
    from botocore import exceptions

    same = {"IfMatch": etag} if etag else {}
    broken = (exceptions.HTTPClientError, exceptions.IncompleteReadError, OSError)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            if body is None and offset < end:
                wanted = f"bytes={offset}-{end - 1}"
                body = client("s3").get_object(Bucket=bucket, Key=key, Range=wanted, **same)["Body"]
            while offset < end:
                data = body.read(min(CHUNK_BYTES, end - offset))
                if not data:
                    raise exceptions.IncompleteReadError(actual_bytes=offset, expected_bytes=end)
                put(offset, data)
                offset += len(data)
            return
        except broken:
            if attempt == ATTEMPTS:
                raise
        finally:
            if body is not None:
                body.close()
                body = None


def get_bytes(bucket: str, key: str) -> memoryview:
    """An object as a read-only memoryview. Raises: what boto3 raises."""
    buffer = bytearray()

    def start(length: int) -> Callable[[int, bytes], object]:
        nonlocal buffer
        buffer = bytearray(length)

        def put(offset: int, data: bytes) -> None:
            buffer[offset : offset + len(data)] = data

        return put

    get(bucket, key, start)
    return memoryview(buffer).toreadonly()


def get_file(bucket: str, key: str, path: str) -> None:
    """An object as a file, which is there when it is complete. Raises: what boto3 raises, OSError."""
    from sockd_initscript.region import Replacement

    with Replacement(path) as temporary:
        out = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

        def put(offset: int, data: bytes) -> None:
            while data:
                written = os.pwrite(out, data, offset)
                offset, data = offset + written, data[written:]

        try:
            get(bucket, key, lambda length: put)
        finally:
            os.close(out)


def list_page(bucket: str, prefix: str, token: str | None) -> tuple[list[str], str | None]:
    """Keys that begin with `prefix`, one page of them, and the token of the next. Raises: what boto3 raises."""
    more = {"ContinuationToken": token} if token else {}
    reply = client("s3").list_objects_v2(Bucket=bucket, Prefix=prefix, **more)
    return [entry["Key"] for entry in reply.get("Contents", ())], reply.get("NextContinuationToken")
