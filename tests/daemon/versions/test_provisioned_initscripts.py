"""Initscripts of provisioned sandboxes, which are initialized before there is an event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.s3.client import Client
from benchmarks.s3.process import S3Process
from tests.daemon.prefetching import READY, digest, fetching, patient, reading
from tests.daemon.running import RunningDaemon
from tests.daemon.versions.numbered import ready, until

pytestmark = pytest.mark.root
OLD, NEW = b"an object", b"another one"
CODE = """
import hashlib, os
import sockd_initscript, storage

READ = hashlib.sha256(storage.download_stream("data", "a")).hexdigest()

def f(event):
    has_link = sockd_initscript.link() is not None
    now = hashlib.sha256(storage.download_stream("data", "a")).hexdigest()
    return [os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"], READ, now, has_link]
"""


@pytest.fixture
def server(ledger_of_module: None) -> Iterator[S3Process]:
    with S3Process() as server:
        yield server


@pytest.fixture
def s3(server: S3Process) -> Iterator[Client]:
    with server.client() as client:
        client.make_bucket("data")
        yield client


@pytest.mark.parametrize("args", ["{}", None])
def test_a_script_with_fixed_args_fetches_for_the_init_of_a_provisioned_sandbox(
    client: Any, daemon: RunningDaemon, server: S3Process, s3: Client, args: str | None
) -> None:
    """Later nothing of it is served: the first request may come hours later."""
    s3.put("data", "a", OLD)
    script = {"wasm": "init.wasm"} | ({} if args is None else {"args": args})
    files = reading(CODE, init_wasm=fetching("a", "a"))
    daemon.deploy("reads", files, storage="sockd", env=patient(server), initscript=script)
    daemon.wait_line(READY)
    version = client.publish_version(FunctionName="reads")["Version"]
    runs = daemon.status()["initscripts"]["runs"]
    s3.forget_requests()
    client.put_provisioned_concurrency_config(
        FunctionName="reads", Qualifier=version, ProvisionedConcurrentExecutions=1
    )
    until(lambda: ready(client, "reads", version))
    asked = [record["path"] for record in s3.requests() if record["method"] == "GET"]
    s3.put("data", "a", NEW)
    answer = daemon.call(f"reads:{version}", {})
    assert answer == ["provisioned-concurrency", digest(OLD), digest(NEW), False]
    if args is None:
        assert (daemon.status()["initscripts"]["runs"], len(asked)) == (runs, 1)
    else:
        assert len(asked) == 2, "both are the script's, of which the init has read one"
    client.delete_provisioned_concurrency_config(FunctionName="reads", Qualifier=version)
    client.delete_function(FunctionName="reads")
