"""The body of a request: unwrapped, verified, and if it is an object's, put into a file.

Everything that the client said of its body is held against it before anything is published: the signed SHA-256, chunk
signatures, lengths, checksums.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterator, Mapping

from benchmarks.s3.bucket import Bucket
from benchmarks.s3.checksums import Verification
from benchmarks.s3.chunks import CODINGS, AwsChunkedBody
from benchmarks.s3.errors import S3Error
from benchmarks.s3.objects import Staged
from benchmarks.s3.wire import Head, NoBody, Source
from sockd.base.sigv4.canonical import UNSIGNED_PAYLOAD
from sockd.base.sigv4.verifier import Verified

BLOCK_BYTES = 256 << 10
MAX_BYTES = 5 << 30
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Upload:
    """The body of one request.

    Args:
        source: as it is on the wire.
        on_first_read: called before anything is read (it tells the client to go on)."""

    def __init__(self, head: Head, source: Source, verified: Verified, on_first_read: Callable[[], None]) -> None:
        self.headers: Mapping[str, str] = head.headers
        self.received = 0
        self.trailers: Mapping[str, str] = {}
        self.untouched = not isinstance(source, NoBody)
        """Whether there is a body of which nothing has been read."""
        self.finished = not self.untouched
        self._payload = verified.payload
        self._on_first_read = on_first_read
        self._expected = head.content_length()
        self._source = source
        if self._payload in CODINGS:
            decoded = head.headers.get("x-amz-decoded-content-length", "")
            if not re.fullmatch("[0-9]{1,15}", decoded):
                raise S3Error("MissingContentLength", "You must provide the x-amz-decoded-content-length HTTP header.")
            self._expected = int(decoded)
            self._source = chunked = AwsChunkedBody(source, verified)
            self.trailers = chunked.trailers
        elif self._payload != UNSIGNED_PAYLOAD and not _SHA256.fullmatch(self._payload):
            raise S3Error("InvalidArgument", "x-amz-content-sha256 must be a SHA-256 in hex or a known word.")
        if (self._expected or 0) > MAX_BYTES:
            raise S3Error("EntityTooLarge", "Your proposed upload exceeds the maximum allowed object size.")

    def blocks(self) -> Iterator[bytes]:
        """The decoded body. Raises S3Error after its last byte when it is not what was signed or announced."""
        digest = hashlib.sha256() if _SHA256.fullmatch(self._payload) else None
        if self.untouched:
            self.untouched = False
            self._on_first_read()
        while block := self._source.read(BLOCK_BYTES):
            self.received += len(block)
            if self.received > MAX_BYTES:
                raise S3Error("EntityTooLarge", "Your proposed upload exceeds the maximum allowed object size.")
            if digest:
                digest.update(block)
            yield block
        self.finished = True
        if digest and not hmac.compare_digest(digest.hexdigest(), self._payload):
            raise S3Error("XAmzContentSHA256Mismatch", "The provided 'x-amz-content-sha256' header does not match.")
        if self._expected is not None and self.received != self._expected:
            raise S3Error("IncompleteBody", "The body's length is not the one that was announced.")

    def read(self, limit_bytes: int) -> bytes:
        """All of a small body. Raises S3Error."""
        data = b""
        for block in self.blocks():
            data += block
            if len(data) > limit_bytes:
                raise S3Error("EntityTooLarge", "The body is too large for this request.")
        return data

    def check_empty(self) -> None:
        """Read the body of a request that should have none. Raises S3Error."""
        if self.read(0):
            raise S3Error("InvalidRequest", "This request has no body.")

    def stage(self, bucket: Bucket) -> Staged:
        """The body in a file of the bucket. Raises S3Error; then there is no file."""
        path = bucket.new_file()
        md5 = hashlib.md5(usedforsecurity=False)
        verification = Verification(self.headers)
        with path.open("xb", buffering=0) as file:
            try:
                for block in self.blocks():
                    view = memoryview(block)
                    while view:
                        view = view[file.write(view) :]
                    md5.update(block)
                    verification.update(block)
                checksum = verification.finish(md5.digest(), self.trailers)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        return Staged(path.name, self.received, md5.digest(), checksum)
