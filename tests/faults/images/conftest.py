"""A worker for each module, with its chunk store on an S3 server that a test makes fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from benchmarks.s3.process import S3Process
from tests.daemon.running import RunningDaemon
from tests.faults.images.image_worker import ATTEMPT_S, BUCKET, ImageWorker
from tests.support.images.image_layouts import python_files
from tests.support.private_worker import command_without


@pytest.fixture(scope="module")
def python() -> bytes:
    return python_files(("http.client", "json", "mmap", "os", "socket")).tar()


@pytest.fixture(scope="module")
def images(
    request: pytest.FixtureRequest, python: bytes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ImageWorker]:
    broken: str = request.config.getoption("broken", default="")
    directory = tmp_path_factory.mktemp("images")
    with ExitStack() as stack:
        server = stack.enter_context(S3Process(directory / "s3"))
        with server.client() as client:
            client.make_bucket(BUCKET)
        credentials = directory / "credentials"
        server.write_credentials(credentials)
        settings = f"""
[images]
store = "s3://{BUCKET}/worker"
endpoint = "{server.url}"
credentials_file = "{credentials}"
store_attempt_s = {ATTEMPT_S}
gc_grace_s = 0
"""
        daemon = RunningDaemon.start(directory / "state", settings, command=command_without(broken))
        stack.callback(daemon.close)
        worker = ImageWorker(daemon, server, server.client(), python, directory, settings, broken)
        worker.deployed("cached")
        assert worker.asked("cached").status == 200
        yield worker


@pytest.fixture
def worker(images: ImageWorker) -> Iterator[ImageWorker]:
    """The module's worker, with a connection to its store that ends with the test."""
    with images.server.client() as images.s3:
        yield images
        images.s3.remove_faults()
    assert images.daemon.process.poll() is None
