"""What is stored: an object's attributes, and the file on disk that describes it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from email.utils import formatdate
from typing import Any, Self

from benchmarks.s3.checksums import Checksum


@dataclass(frozen=True, slots=True)
class Staged:
    """Bytes that were received into a file of the bucket's directory and that no object refers to yet."""

    file: str
    size: int
    md5: bytes
    checksum: Checksum | None


@dataclass(frozen=True, slots=True)
class Object:
    """One object. It never changes; another one takes its key's place."""

    key: str
    file: str
    """The name of the file that holds its bytes, and nothing else."""
    size: int
    etag: str
    """With its quotes."""
    modified_s: float
    headers: dict[str, str] = field(default_factory=dict)
    """What the uploader wants downloads to be answered with: Content-Type, x-amz-meta-… and the like."""
    checksum: Checksum | None = None

    @property
    def last_modified(self) -> str:
        return formatdate(self.modified_s, usegmt=True)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises ValueError, TypeError, KeyError."""
        values: dict[str, Any] = json.loads(text)
        checksum = values.pop("checksum")
        return cls(checksum=Checksum(**checksum) if checksum else None, **values)


def description_name(key: str) -> str:
    """The name of the file that describes the object: keys hold slashes, dots and more bytes than a name may."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest() + ".json"
