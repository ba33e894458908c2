"""A server per module, and clients of it: boto3 as anybody uses it, ours, and a bare socket."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from benchmarks.s3.client import Client
from benchmarks.s3.process import S3Process
from tests.benchmarks.s3.boto import boto_client
from tests.benchmarks.s3.raw import Raw


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Process]:
    with S3Process() as process:
        yield process


@pytest.fixture(scope="session")
def session() -> boto3.Session:
    """What of boto3 takes long to make."""
    session = boto3.Session(aws_access_key_id="sockd", aws_secret_access_key="wrong", region_name="us-east-1")
    session.client("s3", endpoint_url="http://127.0.0.1:1").close()
    return session


@pytest.fixture
def boto(s3: S3Process, session: boto3.Session) -> Iterator[Any]:
    """An unmodified boto3 client. One per test: it keeps its connections."""
    with contextlib.closing(boto_client(session, s3)) as client:
        yield client


@pytest.fixture(scope="module")
def _kept_client(s3: S3Process) -> Iterator[Client]:
    with s3.client() as client:
        client.requests()
        yield client


@pytest.fixture
def client(_kept_client: Client) -> Client:
    """Ours, with no faults and an empty log."""
    _kept_client.remove_faults()
    _kept_client.forget_requests()
    return _kept_client


@pytest.fixture
def bucket(client: Client) -> str:
    """The name of a new bucket."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    client.make_bucket(name)
    return name


@pytest.fixture
def raw(s3: S3Process) -> Iterator[Raw]:
    """A connection on which the test says every byte."""
    with Raw(s3) as connection:
        yield connection
