"""An S3 server for a module, in whose bucket its daemon keeps chunks of images."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.s3.client import Client
from benchmarks.s3.process import S3Process
from tests.support.fuse import worker_resends as worker_resends

BUCKET = "images"


@pytest.fixture(scope="module")
def s3(ledger_of_module: None) -> Iterator[S3Process]:
    with S3Process() as process:
        with process.client() as client:
            client.make_bucket(BUCKET)
        yield process


@pytest.fixture(scope="module")
def store(s3: S3Process, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The section `images` of a daemon with this store, to which a module adds settings."""
    credentials = tmp_path_factory.mktemp("credentials") / "credentials"
    s3.write_credentials(credentials)
    return f"""
[images]
store = "s3://{BUCKET}/worker"
endpoint = "{s3.url}"
credentials_file = "{credentials}"
"""


@pytest.fixture
def bucket(s3: S3Process) -> Iterator[Client]:
    """A client of the server, which has no faults and an empty log when a test begins, and no faults when it ends."""
    with s3.client() as client:
        client.remove_faults()
        client.forget_requests()
        yield client
        client.remove_faults()
