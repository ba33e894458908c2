"""Snapshots of functions whose init uses libraries that keep event loops, pools or threads of their own."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.s3.process import S3Process
from tests.daemon.prefetching import READY, fetching, patient, spans, trace
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.daemon.snapshots.snapshotted import origin
from tests.daemon.test_events import soon

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

GEVENT = """
from gevent import monkey
monkey.patch_all()
import socket, time
import gevent
from gevent.event import Event
READY = Event()
WAITS = gevent.spawn(READY.wait, None)
socket.getaddrinfo("localhost", 80)  # on a thread of the hub's pool
assert gevent.spawn(lambda: gevent.sleep(0.01) or 5).get() == 5
def handler(event, context):
    READY.set()
    ours, theirs = socket.socketpair()
    gevent.spawn_later(0.01, theirs.send, b"x")
    slept = gevent.spawn(time.sleep, 0.01)
    slept.join(5)
    return ours.recv(1).decode(), slept.successful(), WAITS.get(timeout=5), len(socket.getaddrinfo("localhost", 80)) > 0
"""
WAITING = """
import gevent
gevent.spawn(gevent.sleep, 1000)
gevent.sleep(0.01)
def handler(event, context): return 5
"""


BOTO3 = """
import boto3
S3 = boto3.client("s3")
def read(key, **more): return S3.get_object(Bucket="data", Key=key, **more)["Body"].read().decode()
WEIGHTS = read("weights", Range="bytes=0-3")
def handler(event, context): return [WEIGHTS, read("input")]
"""


def deployed(
    daemon: RunningDaemon, name: str, source: str, *requirements: str, script: bytes | None = None, **settings: Any
) -> dict[str, Any]:
    """Deploy a function with a snapshot. Args: script: its initscript. Returns: what the worker tells of it."""
    files: dict[str, str | bytes] = {"handler.py": source, "requirements.txt": "\n".join(requirements)}
    if script is not None:
        files["init.wasm"], settings["initscript"] = script, {"wasm": "init.wasm"}
    try:
        return daemon.deploy(
            name, files, **{"snapshot": True, "reuse_sandbox": False, "memory_mb": 512, "timeout_s": 30, **settings}
        )
    except DeployFailed as error:
        if error.type == "Packages.Failed":
            pytest.skip(f"no package index can be reached: {error.message}")
        raise


def test_a_hub_of_gevent_goes_on_in_each_start(real: RunningDaemon) -> None:
    function = deployed(real, "gevent", GEVENT, "gevent")
    assert function["snapshot"] == "serving", function["snapshot_reason"]
    for _ in range(3):
        answer = real.run("gevent")
        assert origin(answer) == "template"
        assert answer.json == ["x", True, True, True]


def test_a_greenlet_that_waits_for_a_time_is_refused_by_name(real: RunningDaemon) -> None:
    function = deployed(real, "gevent-waits", WAITING, "gevent")
    assert function["snapshot"] == "refused"
    assert (
        "init leaves greenlets that wait for a time or a connection in gevent's hub: start it"
        in function["snapshot_reason"]
    )
    assert real.call("gevent-waits") == 5


DASK = """
import distributed
def handler(event, context):
    with distributed.LocalCluster(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster:
        with distributed.Client(cluster) as client:
            return sum(client.gather(client.map(lambda number: number * 2, range(10))))
"""
DASK_IN_INIT = """
import distributed
CLIENT = distributed.Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None)
def handler(event, context): return CLIENT.submit(lambda: 5).result()
"""


def test_a_cluster_of_dask_is_started_in_starts_and_refused_in_init(real: RunningDaemon) -> None:
    function = deployed(real, "dask", DASK, "distributed")
    assert function["snapshot"] == "serving", function["snapshot_reason"]
    answer = real.run("dask")
    assert origin(answer) == "template" and answer.json == 90
    function = deployed(real, "dask-in-init", DASK_IN_INIT, "distributed")
    assert function["snapshot"] == "refused"
    assert "init leaves the thread 'IO loop' running" in function["snapshot_reason"], function["snapshot_reason"]
    assert real.call("dask-in-init") == 5


def test_boto3_of_a_snapshots_init_is_served_what_each_script_fetches(real: RunningDaemon) -> None:
    with S3Process() as server, server.client() as s3:
        s3.make_bucket("data")
        for key in ("weights", "input"):
            s3.put("data", key, key.encode())
        script = fetching("weights", "input")
        function = deployed(real, "boto3", BOTO3, "boto3", script=script, env=patient(server))
        assert function["snapshot"] == "serving", function["snapshot_reason"]
        real.wait_line(READY)
        s3.forget_requests()
        answer = real.run("boto3")
        assert (origin(answer), answer.json) == ("template", ["weig", "input"])
        assert [span["detail"] for span in spans(trace(real, answer), "reads")] == ["region"]
        assert [record["path"] for record in s3.requests()] == ["/data/input"]  # the init has read the other


SEEDED = """
import faker, numpy
numpy.random.seed(42)
faker.Faker.seed(42)
FAKE = faker.Faker()
BITS = numpy.random.default_rng(122807528840384100672342137672332424406)  # as numpy's documentation has it
DRAWN = numpy.random.default_rng()
def handler(event, context): return [numpy.random.random(), FAKE.name(), BITS.random(), DRAWN.random()]
"""


def test_what_an_init_seeds_below_a_zygote_goes_on_from_there(real: RunningDaemon) -> None:
    """The Zygote has the packages, and gives their generators other numbers in each fork, as none had seeded them."""
    deployed(real, "seeded", SEEDED, "faker", "numpy", snapshot=False)
    soon(lambda: "numpy" in str(trace(real, real.run("seeded"))["zygote"]))
    *own, _ = real.run("seeded").json
    function = deployed(real, "seeded", SEEDED, "faker", "numpy")
    assert function["snapshot"] == "serving", function["snapshot_reason"]
    drawn = set()
    for _ in range(3):
        answer = real.run("seeded")
        assert (origin(answer), answer.json[:-1]) == ("template", own)
        drawn.add(answer.json[-1])
    assert len(drawn) == 3
