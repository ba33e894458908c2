"""The folder's worker: one with a key, so that AWS's API is open to clients that sign."""

from __future__ import annotations

import os
from collections.abc import Iterator

import boto3
import pytest

from tests.daemon.aws_client import KEYS
from tests.faults.api.asking import ECHO, Signer
from tests.support.cases import happened
from tests.support.private_worker import PrivateWorker, ledger, worker

__all__ = ["happened", "ledger", "worker"]


@pytest.fixture(scope="package")
def package_worker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateWorker]:
    """The folder's one worker."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    broken = request.config.getoption("broken", default="")
    worker = PrivateWorker(tmp_path_factory.mktemp("worker"), KEYS, broken=broken)
    try:
        yield worker
    finally:
        worker.close()


@pytest.fixture(scope="session")
def session() -> boto3.Session:
    """Makes clients; it parses the service's model once."""
    return boto3.Session(region_name="us-east-1")


@pytest.fixture
def signer(worker: PrivateWorker) -> Signer:
    return Signer(worker.daemon.url)


@pytest.fixture
def echo(worker: PrivateWorker) -> str:
    """A function that answers with all that it has been asked since it started."""
    worker.deploy("echo", ECHO, concurrency=1)
    return "echo"
