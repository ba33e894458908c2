"""The checksums that clients send with uploads (`x-amz-checksum-*`) and get back with downloads if they ask.

CRC32, SHA-1 and SHA-256 are verified. CRC32C and CRC64NVME, which the standard library does not have, are taken on trust
and never given back.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from benchmarks.s3.errors import S3Error

PREFIX = "x-amz-checksum-"


class Digest(Protocol):
    """What hashlib's objects can do."""

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class Crc32:
    """zlib's CRC in the manner of hashlib."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


DIGESTS: dict[str, Callable[[], Digest]] = {"crc32": Crc32, "sha1": hashlib.sha1, "sha256": hashlib.sha256}


@dataclass(frozen=True, slots=True)
class Checksum:
    """A checksum of a whole object or part."""

    algorithm: str
    """A key of DIGESTS."""
    value: str
    """Base64."""

    @property
    def header(self) -> tuple[str, str]:
        return f"{PREFIX}{self.algorithm}", self.value

    @property
    def element(self) -> str:
        """Its name in XML."""
        return f"Checksum{self.algorithm.upper()}"


class Verification:
    """Digests a body as it comes, and compares in the end.

    Args:
        headers: of the request; they name the algorithms, if only as what a trailer will tell."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        names = {name for name in headers if name.startswith(PREFIX)}
        names |= {name.strip().lower() for name in headers.get("x-amz-trailer", "").split(",")}
        self._digests = {
            name: make() for name, make in ((PREFIX + key, make) for key, make in DIGESTS.items()) if name in names
        }
        self._headers = headers

    def update(self, data: bytes) -> None:
        for digest in self._digests.values():
            digest.update(data)

    def finish(self, md5: bytes, trailers: Mapping[str, str]) -> Checksum | None:
        """One of the checksums that the client sent. Raises S3Error (BadDigest, InvalidDigest)."""
        if (sent := self._headers.get("content-md5")) is not None and _decoded(sent, 16) != md5:
            raise S3Error("BadDigest", "The Content-MD5 you specified did not match what we received.")
        found = None
        for name, digest in self._digests.items():
            actual = base64.b64encode(digest.digest()).decode()
            claimed = self._headers.get(name) or trailers.get(name)
            if claimed != actual:
                raise S3Error("BadDigest", f"The {name} you specified did not match the calculated checksum.")
            found = Checksum(name.removeprefix(PREFIX), actual)
        return found


def _decoded(text: str, length: int) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        data = b""
    if len(data) != length:
        raise S3Error("InvalidDigest", "The Content-MD5 you specified is not valid.")
    return data
