"""The storage library in real sandboxes: files that child processes read, and packages that bring their own library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.s3.process import S3Process
from tests.daemon.prefetching import fetching, patient, reading, sources
from tests.daemon.running import RunningDaemon

pytestmark = pytest.mark.root

LARGE = b"c" * 3_000_000

CHILD = """
import os, subprocess
import storage

def f(event):
    storage.download("data", event["key"], "/tmp/copy")
    read = subprocess.run(["tail", "-c", "3", "/tmp/copy"], capture_output=True)
    refused = subprocess.run(["sh", "-c", "echo x >> /tmp/copy"], capture_output=True).returncode != 0
    return [read.stdout.decode(), os.path.islink("/tmp/copy"), refused, os.stat("/tmp/copy").st_size]
"""

SEBS = {
    "function/function.py": """
from . import storage
client = storage.storage.get_instance()

def handler(event):
    view = client.download_stream(event["bucket"], event["key"])
    return [len(view), type(view).__name__, storage.__file__]
""",
    "function/storage.py": "raise AssertionError('it has its own')\n",
}


@pytest.fixture(scope="module")
def server(ledger_of_module: None) -> Iterator[S3Process]:
    with S3Process() as server, server.client() as client:
        client.make_bucket("data")
        client.put("data", "large", LARGE)
        yield server


def served(daemon: RunningDaemon, answer: Any) -> list[str]:
    shown = daemon.manage("GET", f"/traces/{answer.headers['x-amzn-requestid']}").json
    return sources(shown)


@pytest.mark.parametrize("linked", [False, True])
def test_a_child_process_reads_what_was_fetched(daemon: RunningDaemon, server: S3Process, linked: bool) -> None:
    env = {**patient(server), "PATH": "/usr/bin:/bin", **({"SOCKD_STORAGE_LINK": "1"} if linked else {})}
    files: dict[str, str | bytes] = {**reading(CHILD), "init.wasm": fetching("large")}
    name = f"child-{linked}".lower()
    daemon.deploy(name, files, initscript={"wasm": "init.wasm"}, storage="sockd", env=env, timeout_s=15)
    for _ in range(2):  # the second request has no initscript, and no link
        answer = daemon.run(name, {"key": "large"})
        cold = answer.headers["x-sockd-cold"] == "1"
        grown = 0 if linked and cold else 2
        assert answer.json == ["ccc", linked and cold, linked and cold, len(LARGE) + grown]
        assert served(daemon, answer) == (["region"] if cold else [])


def test_a_package_that_has_its_own_storage_gets_ours(daemon: RunningDaemon, server: S3Process) -> None:
    files: dict[str, str | bytes] = {**reading(""), **SEBS, "init.wasm": fetching("large")}
    daemon.deploy(
        "sebs",
        files,
        handler="function.function:handler",
        initscript={"wasm": "init.wasm"},
        storage="sockd",
        env=patient(server),
        timeout_s=15,
    )
    answer = daemon.run("sebs", {"bucket": "data", "key": "large"})
    assert answer.json == [len(LARGE), "memoryview", "/opt/sockd/storage_lib/storage.py"]
    assert served(daemon, answer) == ["region"]
