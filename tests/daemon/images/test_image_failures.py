"""Functions in images whose chunks cannot be had, or whose agent is killed: what their callers get, and what goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.s3.client import Client
from benchmarks.s3.process import S3Process
from tests.daemon.images.conftest import BUCKET
from tests.daemon.images.test_images import CONFIG, app, deploy, upload
from tests.daemon.running import RunningDaemon
from tests.support.cases import case
from tests.support.images.image_layouts import Files, python_files, write_layout

pytestmark = pytest.mark.root
KILLS = 4
"""Fewer than the keeper takes in a minute."""


@pytest.fixture(scope="module")
def config(store: str) -> str:
    return f"{store}cache_mb = 256\nstore_attempt_s = 1.0\n"


def function_in_an_image(daemon: RunningDaemon, name: str, tmp_path: Path) -> None:
    """A function in an image that has chunks of its own: the metadata, and /large and /other, of 2 MB each."""
    layout = tmp_path / name
    layout.mkdir()
    files = app("1")
    own = {each: os.urandom(1 << 20).hex() for each in ("large", "other")}
    write_layout(
        layout, [python_files().tar(), Files(plain={**files.plain, **own}, executable=files.executable)], CONFIG
    )
    deploy(daemon, name, upload(daemon, layout), init_timeout_s=30, timeout_s=60)


def agents_of(daemon: RunningDaemon) -> set[int]:
    """Its agents of images, without their launchers; one of them stands by."""
    found = set()
    for pid in daemon.pids():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"sockd.images.agent" in command:
                found.add(pid)
    return found


@case(
    "I20", "start a function in a cold image while the store answers 503", expect="503 with the cause; later it starts"
)
def test_a_start_without_the_store_learns_why_and_works_once_the_store_is_back(
    daemon: RunningDaemon, bucket: Client, tmp_path: Path
) -> None:
    function_in_an_image(daemon, "cold", tmp_path)
    bucket.inject(status=503)
    begun_s = time.monotonic()
    answer = daemon.run("cold")
    assert (answer.status, answer.json["errorType"]) == (503, "Images.StoreUnavailable"), answer.json
    assert time.monotonic() - begun_s < 30
    bucket.remove_faults()
    assert daemon.call("cold")["version"] == "1"


@case(
    "I21", "the store hangs while warm functions read files", expect="cached files are read; others fail with the cause"
)
def test_a_warm_function_reads_cached_files_on_and_fails_with_the_cause_for_others(
    daemon: RunningDaemon, bucket: Client, tmp_path: Path
) -> None:
    function_in_an_image(daemon, "warm", tmp_path)
    assert daemon.call("warm", {"what": "read", "path": "/version"}) == "1"
    bucket.inject(delay_s=600)
    answer = daemon.run("warm", {"what": "read", "path": "/large"})
    assert (answer.status, answer.json["errorType"]) == (503, "Images.StoreUnavailable"), answer.json
    assert daemon.call("warm", {"what": "read", "path": "/version"}) == "1"
    bucket.remove_faults()
    read = {"what": "read", "path": "/large"}
    daemon.when(lambda: daemon.run("warm", read).status == 200)  # it is called again, as its answer says
    assert len(daemon.call("warm", read)) == 2 << 20


@case(
    "I51",
    "change chunks of an image in S3 by one bit, or delete them, and deploy the image again",
    expect="503 with image, store and what to do; then it serves",
)
@pytest.mark.parametrize(("kind", "error"), [("changed", "Images.Tampered"), ("deleted", "Images.ChunkMissing")])
def test_a_deploy_mends_what_a_failed_read_has_found(
    daemon: RunningDaemon, bucket: Client, tmp_path: Path, kind: str, error: str
) -> None:
    known = set(bucket.list(BUCKET, "worker/roots/"))
    function_in_an_image(daemon, kind, tmp_path)
    for key in set(bucket.list(BUCKET, "worker/roots/")) - known:
        data = bucket.get(BUCKET, key)
        if kind == "changed":
            bucket.put(BUCKET, key, bytes([data[0] ^ 1]) + data[1:])
        else:
            bucket.delete(BUCKET, key)
    event = {"what": "read", "path": "/large"}  # which no start has read
    answer = daemon.run(kind, event)
    digest = daemon.manage("GET", f"/functions/{kind}").json["image"]
    assert (answer.status, answer.json["errorType"]) == (503, error), answer.json
    for words in (f"s3://{BUCKET}/worker/", f"of the image {digest[:19]}", "deploy that again"):
        assert words in answer.json["errorMessage"]
    assert upload(daemon, tmp_path / kind) == digest
    assert len(daemon.call(kind, event)) == 2 << 20

    def is_trusted() -> bool:
        bucket.forget_requests()
        assert upload(daemon, tmp_path / kind) == digest
        return not [each for each in bucket.requests() if "/roots/" in each["path"]]

    daemon.when(is_trusted)  # not at once: chunks are read ahead, and another of these reads may fail behind the deploy


def test_an_image_is_not_sent_in_vain(config: str, s3: S3Process, tmp_path: Path) -> None:
    daemon = RunningDaemon.start(tmp_path / "state", config.replace(f"s3://{BUCKET}/", "s3://no-such-bucket/"))
    try:
        with contextlib.closing(daemon.management()) as connection:
            connection.putrequest("POST", "/images?reference=large")
            connection.putheader("content-length", str(1 << 30))
            connection.endheaders()
            answer = connection.getresponse()
            assert answer.status == 503
            assert b"s3://no-such-bucket/worker/ is unavailable: it answers 404 NoSuchBucket" in answer.read()
    finally:
        daemon.close()


@pytest.mark.usefixtures("worker_resends")
@case("I22", "SIGKILL agents while functions in images start and read", expect="every answer is right")
def test_functions_are_answered_while_agents_are_killed(daemon: RunningDaemon, bucket: Client, tmp_path: Path) -> None:
    function_in_an_image(daemon, "killed", tmp_path)
    bucket.inject(delay_s=0.05, method="GET")
    with ThreadPoolExecutor(4) as pool:
        events = [{"what": "read", "path": path} for path in ("/large", "/other", "/version")] * 4
        answers = [pool.submit(daemon.call, "killed", event) for event in events]
        killed: set[int] = set()
        while len(killed) < KILLS:
            for pid in agents_of(daemon) - killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        assert [len(answer.result()) for answer in answers] == [2 << 20, 2 << 20, 1] * 4


@pytest.mark.usefixtures("worker_resends")
@case(
    "I59",
    "SIGSTOP the agent while functions in images start and read",
    expect="it is replaced, and every answer is right",
)
def test_functions_are_answered_when_the_agent_is_stopped(
    daemon: RunningDaemon, bucket: Client, tmp_path: Path
) -> None:
    function_in_an_image(daemon, "stopped", tmp_path)
    assert daemon.call("stopped", {"what": "read", "path": "/version"}) == "1"
    os.kill(serving_agent(daemon), signal.SIGSTOP)
    assert len(daemon.call("stopped", {"what": "read", "path": "/large"})) == 2 << 20
    digest = daemon.manage("GET", "/functions/stopped").json["image"]
    daemon.remove("stopped")
    daemon.when(lambda: not daemon.manage("GET", f"/images/{digest}").json["mounted"])
    deploy(daemon, "stopped", digest, init_timeout_s=60, timeout_s=60)
    os.kill(serving_agent(daemon), signal.SIGSTOP)
    assert daemon.call("stopped", {"what": "read", "path": "/version"}) == "1"


def serving_agent(daemon: RunningDaemon) -> int:
    """The agent that has the connection."""

    def found() -> int | None:
        for pid in agents_of(daemon):
            with contextlib.suppress(OSError):
                if any(os.readlink(file) == "/dev/fuse" for file in Path(f"/proc/{pid}/fd").iterdir()):
                    return pid
        return None

    return daemon.when(found)
