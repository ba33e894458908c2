"""The storage library in real sandboxes: files that child processes read, and packages that bring their own library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.s3.process import S3Process
from tests.daemon.prefetching import fetching, patient, reading, sources
from tests.daemon.running import RunningDaemon
from tests.initscripts.guests import module
from tests.support.web_server import BODY, web_server

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


REQUESTS = {
    "requests/__init__.py": "",
    "requests/adapters.py": """
class HTTPAdapter:
    def send(self, request, stream=False, timeout=None, verify=True, cert=None, proxies=None):
        return "from the network"
    def build_response(self, request, response):
        return [response.status, response.headers["x-own"], response.body.read().decode()]
""",
    "urllib3/__init__.py": "",
    "urllib3/response.py": """
class HTTPResponse:
    def __init__(self, body, headers, status, **_):
        self.body, self.headers, self.status = body, headers, status
""",
    "f.py": """
import types
from requests import adapters
def f(event):
    request = types.SimpleNamespace(method="GET", url=event["url"], body=None, headers={"Accept": "*/*"})
    return [adapters.HTTPAdapter().send(request) for _ in range(2)]
""",
}
"""A stand-in of `requests`, of which the library needs no more."""


@pytest.mark.parametrize("is_wanted", [False, True])
def test_a_get_of_requests_is_served_to_a_function_that_asks_for_it(daemon: RunningDaemon, is_wanted: bool) -> None:
    send = """(local.set $a (call $connect @url)) (drop (call $send_rpc (local.get $a) (i64.const 0) @request @none))
        (drop (call $recv_rpc_reply (local.get $a) (i64.const 0) (i32.const 1024)))
        (drop (call $send_msg (i64.const 0) (i32.load (i32.const 1024)) (i64.const 0) (i64.load (i32.const 1032))))"""
    with web_server() as web:
        script = module(send, notes=False, url=web.url, request="GET /a?b=c", none="")
        env = {"SOCKD_STORAGE_GRACE_S": "5", **({"SOCKD_STORAGE_REQUESTS": "1"} if is_wanted else {})}
        daemon.deploy(
            "asking", {**REQUESTS, "init.wasm": script}, initscript={"wasm": "init.wasm"}, env=env, timeout_s=15
        )
        answer = daemon.run("asking", {"url": f"{web.url}/a?b=c"})
    first = [200, "a", BODY.decode()] if is_wanted else "from the network"
    assert answer.json == [first, "from the network"]
    assert served(daemon, answer) == (["region", "network"] if is_wanted else [])
