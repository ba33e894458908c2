"""The S3 that functions read from and write to: the user's, or an embedded one for the time of a run.

The user's is what AWS_ENDPOINT_URL_S3 and the keys beside it name. A run puts its inputs into a bucket of its own there
and removes what the functions wrote.
"""

from __future__ import annotations

import contextlib
import http.client
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.s3.client import Client, Refused
from benchmarks.s3.process import S3Process, ServerFailed
from benchmarks.sebs_runner.errors import NotPossible, WrongAnswer
from benchmarks.sebs_runner.inputs import BUCKET, Input
from sockd.base.sigv4.canonical import Credentials

ENDPOINT = "AWS_ENDPOINT_URL_S3"
PASSED = (
    ENDPOINT,
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
)
"""Variables of the user's S3 that functions get."""
DEFAULT_REGION = "us-east-1"


@dataclass(slots=True)
class ObjectStore:
    """An S3 with a client of its own."""

    client: Client
    env: dict[str, str]
    """For the functions."""
    embedded: bool

    def put(self, inputs: Input) -> None:
        """Upload a bench's objects. Raises: NotPossible."""
        try:
            self.client.make_bucket(BUCKET, exist_ok=True)
            for key, path in inputs.objects.items():
                self.client.put(BUCKET, key, path.read_bytes())
        except (Refused, OSError, http.client.HTTPException) as error:
            raise NotPossible(
                f"the inputs cannot be uploaded: {error}", fix=f"look at {ENDPOINT} and its keys"
            ) from None

    def take(self, key: str) -> bytes:
        """An object that a function says it wrote; it is removed. Raises: WrongAnswer when it is not there."""
        try:
            data = self.client.get(BUCKET, key)
            self.client.delete(BUCKET, key)
        except Refused as refused:
            raise WrongAnswer(f"the function says that it wrote {key!r}, but S3 says: {refused}") from None
        return data

    def shape(self, *, first_byte_ms: float = 0.0, bytes_per_s: float | None = None) -> None:
        """Answer every request like a distant S3, from now on.

        Args: bytes_per_s: of one connection.
        Raises: NotPossible for an S3 that is not ours."""
        if not self.embedded:
            raise NotPossible(
                "only the embedded S3 can play a distant one", fix=f"unset {ENDPOINT}, or leave --rtt out"
            )
        self.client.remove_faults()
        if first_byte_ms or bytes_per_s:
            self.client.inject(delay_s=first_byte_ms / 1000, bandwidth_bytes_s=bytes_per_s)


@contextlib.contextmanager
def open_store(cache: Path, environment: Mapping[str, str] = os.environ) -> Iterator[ObjectStore]:
    """The user's S3 if the environment names one, else an embedded one, which ends with the context. Raises: NotPossible."""
    if environment.get(ENDPOINT):
        with _users(environment) as client:
            yield ObjectStore(client, _passed(environment), embedded=False)
        return
    try:
        with S3Process() as server, server.client() as client:
            yield ObjectStore(client, server.env(), embedded=True)
    except ServerFailed as error:
        raise NotPossible(f"the embedded S3 does not start: {error}") from None


def _users(environment: Mapping[str, str]) -> Client:
    missing = [name for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") if not environment.get(name)]
    if missing:
        raise NotPossible(f"{ENDPOINT} is set, but not {' and '.join(missing)}")
    url = environment[ENDPOINT]
    if urlsplit(url).scheme != "http" or not urlsplit(url).netloc:
        raise NotPossible(f"{url!r} is not an address such as http://127.0.0.1:9000", fix=f"unset {ENDPOINT}")
    keys = environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"]
    return Client(url, Credentials(*keys, environment.get("AWS_SESSION_TOKEN")))


def _passed(environment: Mapping[str, str]) -> dict[str, str]:
    env = {name: environment[name] for name in PASSED if environment.get(name)}
    return {"AWS_DEFAULT_REGION": DEFAULT_REGION, "AWS_REGION": DEFAULT_REGION, **env}
