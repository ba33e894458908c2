"""Stores of every kind: a directory, a bucket of our S3 server, one of moto's, and the one in memory."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.s3.client import Client
from benchmarks.s3.process import S3Process
from benchmarks.sebs_runner.stores.dynamodb import SERVE
from sockd.base.sigv4.canonical import Credentials
from sockd.images.chunks.directory_store import DirectoryStore
from sockd.images.chunks.s3_connections import Patience
from sockd.images.chunks.s3_store import S3Store
from sockd.images.chunks.store import ChunkStore
from tests.support.images.chunk_memory import MemoryStore

QUICK = Patience(connect_s=5.0, attempt_s=20.0, attempts=3, pause_s=0.001)


@pytest.fixture(scope="package")
def s3() -> Iterator[S3Process]:
    with S3Process() as process:
        yield process


@pytest.fixture(scope="package")
def moto_url() -> Iterator[str]:
    """moto's S3 in a process that ends with its standard input."""
    pytest.importorskip("moto")
    with subprocess.Popen(
        [sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        assert process.stdout
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        assert process.stdin
        process.stdin.close()


@pytest.fixture
def s3_client(s3: S3Process) -> Iterator[Client]:
    """Without faults, and with an empty log."""
    with s3.client() as client:
        client.remove_faults()
        client.forget_requests()
        yield client


@pytest.fixture
def s3_bucket(s3_client: Client) -> str:
    name = f"chunks-{uuid.uuid4().hex[:12]}"
    s3_client.make_bucket(name)
    return name


@pytest.fixture
def s3_store(s3: S3Process, s3_bucket: str) -> Iterator[S3Store]:
    store = S3Store(s3.url, s3_bucket, "images", s3.credentials, patience=QUICK)
    yield store
    store.close()


@pytest.fixture(scope="module", params=["directory", "s3", "moto", "memory"])
def service(request: pytest.FixtureRequest) -> tuple[str, Credentials]:
    """Where buckets are, or the word for a store without. Made before the test's ledger, for all tests of a module."""
    if request.param in ("directory", "memory"):
        return request.param, Credentials("", "")
    if request.param == "s3":
        process: S3Process = request.getfixturevalue("s3")
        return process.url, process.credentials
    return request.getfixturevalue("moto_url"), Credentials("key", "secret")


@pytest.fixture
def store(service: tuple[str, Credentials], tmp_path: Path) -> Iterator[ChunkStore]:
    """An empty one."""
    url, credentials = service
    made: ChunkStore
    if url == "memory":
        made = MemoryStore()
    elif url == "directory":
        made = DirectoryStore.create(tmp_path / "chunks")
    else:
        bucket = f"chunks-{uuid.uuid4().hex[:12]}"
        with Client(url, credentials) as client:
            client.make_bucket(bucket)
        made = S3Store(url, bucket, "some/prefix", credentials, patience=QUICK)
    yield made
    made.close()
