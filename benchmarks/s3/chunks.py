"""The `aws-chunked` coding of an upload: chunks that may each be signed, and trailers that hold a checksum.

Each chunk's signature covers the one before it, the first one's the signature of the request, so none can be left out,
added or moved. A chunk is passed on before its signature is known to hold: nothing may be published before the end.
"""

from __future__ import annotations

import hashlib
import hmac

from benchmarks.s3.errors import S3Error
from benchmarks.s3.lines import Lines, chunk_size
from benchmarks.s3.wire import BadRequest, Source
from sockd.base.sigv4.canonical import EMPTY_SHA256, sign
from sockd.base.sigv4.verifier import Verified

SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
CODINGS = (SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER)
_TRAILERS_LIMIT = 16


class AwsChunkedBody:
    """The decoded body. `trailers` is complete once `read` has returned b"".

    Args:
        source: the encoded body.
        verified: the signature of the request; its payload is one of CODINGS."""

    def __init__(self, source: Source, verified: Verified) -> None:
        self.trailers: dict[str, str] = {}
        self._source = source
        self._lines = Lines(source)
        self._verified = verified
        self._signs = verified.payload != UNSIGNED_TRAILER
        self._previous = verified.signature
        self._claimed = ""
        self._digest = hashlib.sha256()
        self._left = 0
        self._ended = False

    def read(self, limit: int) -> bytes:
        """Raises S3Error (SignatureDoesNotMatch), BadRequest."""
        if self._ended:
            return b""
        if not self._left and not self._next_chunk():
            return b""
        data = self._lines.read(min(limit, self._left))
        self._left -= len(data)
        if self._signs:
            self._digest.update(data)
        if not self._left:
            self._end_chunk()
            if self._lines.line():
                raise BadRequest("a chunk is longer than it said")
        return data

    def _next_chunk(self) -> bool:
        line = self._lines.line()
        self._left = chunk_size(line)
        if self._signs:
            name, _, value = line.partition(b";")[2].partition(b"=")
            if name != b"chunk-signature":
                raise S3Error("SignatureDoesNotMatch", "a chunk is not signed")
            self._claimed = value.decode("latin-1")
        if self._left:
            return True
        self._end_chunk()
        self._read_trailers()
        self._ended = True
        return False

    def _end_chunk(self) -> None:
        if self._signs:
            self._check(f"AWS4-HMAC-SHA256-PAYLOAD\n%s\n{EMPTY_SHA256}\n{self._digest.hexdigest()}")
            self._digest = hashlib.sha256()

    def _check(self, text: str) -> None:
        verified = self._verified
        signature = sign(verified.key, text % f"{verified.timestamp}\n{verified.scope}\n{self._previous}")
        if not hmac.compare_digest(signature.encode(), self._claimed.encode("latin-1", "replace")):
            raise S3Error("SignatureDoesNotMatch", "a chunk's signature does not match")
        self._previous = signature

    def _read_trailers(self) -> None:
        while line := self._lines.line():
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon or len(self.trailers) == _TRAILERS_LIMIT:
                raise BadRequest("a trailer")
            self.trailers[name.strip().lower()] = value.strip()
        if self._source.read(1):
            raise BadRequest("the body goes on after its end")
        self._claimed = self.trailers.pop("x-amz-trailer-signature", "")
        if self._verified.payload == SIGNED_TRAILER:
            text = "".join(f"{name}:{value}\n" for name, value in sorted(self.trailers.items()))
            self._check(f"AWS4-HMAC-SHA256-TRAILER\n%s\n{hashlib.sha256(text.encode('latin-1')).hexdigest()}")
