"""Where a chunk store is, as plain data: the daemon sends it to confined processes, which open the store themselves."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from sockd.base.errors import BadConfig
from sockd.base.sigv4.canonical import Credentials
from sockd.images.chunks.directory_store import DirectoryStore
from sockd.images.chunks.s3_connections import Patience
from sockd.images.chunks.s3_store import S3Store
from sockd.images.chunks.store import ChunkStore

_S3 = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """JSON-able. `repr` does not show the secrets."""

    url: str
    """s3://BUCKET/PREFIX, or the path of a directory."""
    endpoint: str = ""
    """http:// or https:// and a host; empty: AWS's."""
    region: str = "us-east-1"
    access_key: str = ""
    secret_key: str = ""
    session_token: str | None = None
    connect_s: float = 2.0
    attempt_s: float = 10.0
    attempts: int = 3

    @property
    def is_directory(self) -> bool:
        return not self.url.startswith(_S3)

    @property
    def name(self) -> str:
        """As the store calls itself in errors."""
        return DirectoryStore.name if self.is_directory else self.url

    def __repr__(self) -> str:
        return f"StoreSettings({self.url!r}, endpoint={self.endpoint!r}, region={self.region!r})"


def open_store(settings: StoreSettings, *, directory_fd: int | None = None) -> ChunkStore:
    """The store, whose directory must be there; the caller closes it.

    Args: directory_fd: of the directory, for a process whose root does not have the path; the store closes it.

    Raises: BadConfig; StoreUnavailable; StoreFull."""
    if settings.is_directory:
        return DirectoryStore.open(Path(settings.url)) if directory_fd is None else DirectoryStore(directory_fd)
    bucket, prefix = s3_place(settings.url)
    if not settings.access_key or not settings.secret_key:
        raise BadConfig("a chunk store in S3 needs s3://BUCKET/PREFIX, an access key and a secret key")
    credentials = Credentials(settings.access_key, settings.secret_key, settings.session_token)
    patience = Patience(settings.connect_s, settings.attempt_s, settings.attempts)
    try:
        return S3Store(settings.endpoint, bucket, prefix, credentials, settings.region, patience=patience)
    except ValueError as error:
        raise BadConfig(f"images.endpoint: {error}") from None


def s3_place(url: str) -> tuple[str, str]:
    """Bucket and prefix of s3://BUCKET/PREFIX. Raises: BadConfig."""
    bucket, _, prefix = url.removeprefix(_S3).partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise BadConfig(
            f"images.store = {url[:200]!r}: must be s3://BUCKET/PREFIX, with a bucket's name of 3 to 63 of a-z 0-9 . -, "
            "whose first and last is a letter or a digit"
        )
    return bucket, prefix
