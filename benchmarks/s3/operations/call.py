"""One S3 request as operations see it: which bucket, which key, which parameters, and the way to its body."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote_to_bytes

from benchmarks.s3.bucket import Bucket
from benchmarks.s3.errors import S3Error
from benchmarks.s3.store import Store
from benchmarks.s3.upload import Upload
from benchmarks.s3.wire import Head

MAX_KEY_BYTES = 1024
# What belongs to a download and comes back with it; x-amz-meta-* besides.
_KEPT = ("content-type", "content-disposition", "content-language", "cache-control", "expires")
_MAX_METADATA_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Target:
    """What the request is about."""

    bucket: str
    """Empty: the service."""
    key: str
    """Empty: the bucket."""

    @property
    def subject(self) -> str:
        """As rules of faults name it."""
        return f"{self.bucket}/{self.key}" if self.bucket else ""


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    head: Head
    target: Target
    parameters: dict[str, str]
    store: Store
    upload: Upload

    @property
    def key(self) -> str:
        return self.target.key

    def bucket(self) -> Bucket:
        """Raises S3Error (NoSuchBucket)."""
        return self.store.bucket(self.target.bucket)

    def number(self, name: str, default: int) -> int:
        """A parameter that is a number. Raises S3Error (InvalidArgument)."""
        text = self.parameters.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise S3Error("InvalidArgument", f"{name} is not a number")
        return int(text)

    def kept_headers(self) -> dict[str, str]:
        """What downloads of the uploaded object are answered with. Raises S3Error (MetadataTooLarge)."""
        headers = self.head.headers
        kept = {name: headers[name] for name in _KEPT if name in headers}
        coding = ",".join(
            part
            for part in map(str.strip, headers.get("content-encoding", "").split(","))
            if part not in ("", "aws-chunked")
        )
        if coding:
            kept["content-encoding"] = coding
        metadata = {name: value for name, value in headers.items() if name.startswith("x-amz-meta-")}
        if sum(len(name) + len(value) for name, value in metadata.items()) > _MAX_METADATA_BYTES:
            raise S3Error("MetadataTooLarge", "Your metadata headers exceed the maximum allowed metadata size.")
        return kept | metadata


def parse_target(path: str) -> Target:
    """The bucket and key of a path, /bucket/key. Raises S3Error (InvalidURI, KeyTooLongError)."""
    bucket, _, key = path[1:].partition("/")
    raw = unquote_to_bytes(key)
    if len(raw) > MAX_KEY_BYTES:
        raise S3Error("KeyTooLongError", "Your key is too long")
    try:
        return Target(unquote_to_bytes(bucket).decode(), raw.decode())
    except UnicodeDecodeError:
        raise S3Error("InvalidURI", "Couldn't parse the specified URI.") from None


def parse_parameters(query: str) -> dict[str, str]:
    """Raises S3Error (InvalidURI)."""
    try:
        return dict(parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=100))
    except ValueError:  # UnicodeDecodeError too
        raise S3Error("InvalidURI", "Couldn't parse the specified URI.") from None
