"""A package from the real world: numpy, with its C extensions, its BLAS and its global random state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.s3.process import S3Process
from tests.daemon.prefetching import READY, digest, fetching, patient, sources, trace
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.support.threads import at_once

CODE = """
import numpy as np
def f(event):
    a = np.random.rand(64, 64)
    return [float(a[0, 0]), bool(np.allclose(a @ np.linalg.inv(a), np.eye(64), atol=1e-4))]
"""


def deploy(real: RunningDaemon, name: str, files: Mapping[str, str] | str, **settings: Any) -> None:
    """Deploy a function with packages of an index; the test is skipped if none can be reached."""
    try:
        real.deploy(name, files, **settings)
    except DeployFailed as error:
        if error.type == "Packages.Failed":
            pytest.skip(f"no package index can be reached: {error.message}")
        raise


@pytest.mark.timeout(120)
def test_numpy_is_imported_once_for_all_and_its_forks_are_as_good_as_new(real: RunningDaemon) -> None:
    files = {"f.py": CODE, "requirements.txt": "numpy"}
    deploy(real, "first", files, memory_mb=256, timeout_s=20)
    first = real.run("first")
    assert first.json[1] is True
    (numpy,) = real.packages()
    node = real.when(lambda: real.node(numpy))
    assert node["modules"] > 50 and real.tree()["refused"] == []
    second = real.run_learned("first")
    assert second.json[1] is True and second.timing["init"] < first.timing["init"] / 4
    answers = at_once(6, lambda n: real.run_learned("first").json)
    assert all(right for _, right in answers)
    samples = {first.json[0], second.json[0], *(sample for sample, _ in answers)}
    assert len(samples) == 8  # numpy's generator is seeded anew in each fork


@pytest.mark.timeout(120)
def test_numpy_is_imported_once_for_functions_without_network_too(real: RunningDaemon) -> None:
    files = {"f.py": CODE, "requirements.txt": "numpy"}
    deploy(real, "alone", files, memory_mb=256, timeout_s=20, network="none", reuse_sandbox=False)
    first = real.run("alone")
    (numpy,) = real.packages()
    real.when(lambda: real.node(numpy, network="none"))
    real.wait_verified()
    answers = [real.run("alone") for _ in range(4)]
    assert all(answer.json[1] is True for answer in (first, *answers))
    assert min(answer.timing["init"] for answer in answers) < first.timing["init"] / 4
    assert len({answer.json[0] for answer in (first, *answers)}) == 5


@pytest.mark.timeout(120)
def test_a_fork_shows_no_class_of_what_watched_a_packages_copy_of_variables(real: RunningDaemon) -> None:
    code = "import prometheus_client\ndef f(event): return sorted(each.__qualname__ for each in str.__subclasses__())"
    deploy(real, "copies", {"f.py": code, "requirements.txt": "prometheus-client"}, memory_mb=256, timeout_s=20)
    own = real.run("copies").json
    assert real.run_learned("copies").json == own


GUNICORN = """
import os, subprocess, sys, urllib.request

SERVER = [sys.executable, "-m", "gunicorn", "--bind", "127.0.0.1:0", "--worker-tmp-dir", "/tmp", "--pid", "/tmp/pid", "app:app"]

def f(event):
    command = SERVER + ["--user", str(event.get("user", os.getuid())), "--group", str(event.get("group", os.getgid()))]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True) as server:
        log = []
        for line in server.stderr:
            log.append(line)
            if "Listening at: " in line:
                address = line.split("Listening at: ")[1].split()[0]
            if "Booting worker" in line or "rror" in line:
                break
        try:
            if "Booting worker" in line:
                return urllib.request.urlopen(address, timeout=5).read().decode()
            return "".join(log + server.stderr.readlines())
        except OSError:
            server.terminate()
            return "".join(log + server.stderr.readlines())
        finally:
            server.terminate()
"""
GUNICORN_APP = """
def app(environ, start_response):
    start_response("200 OK", [("content-length", "5")])
    return [b"hello"]
"""


@pytest.mark.timeout(120)
def test_gunicorn_serves_as_the_user_that_the_sandbox_is_and_as_no_other(real: RunningDaemon) -> None:
    """Debian's gunicorn is this version: its workers always set their uid, also to the one that they have."""
    files = {"f.py": GUNICORN, "app.py": GUNICORN_APP, "requirements.txt": "gunicorn==20.1.0\nsetuptools<81"}
    deploy(real, "served", files, memory_mb=256, timeout_s=20, network="none")
    assert real.call("served", {}) == "hello"
    assert "OSError" in real.call("served", {"user": 33})


CLIENTS = """
import hashlib, json, sys
import boto3
opened = []
def note(event, args):
    if event in ("open", "os.listdir") and "/botocore/data" in str(args[0]):
        opened.append(args[0])
def f(event):
    sys.addaudithook(note)
    client = boto3.client("s3", region_name="eu-west-1", aws_access_key_id="k", aws_secret_access_key="s")
    model = json.dumps(client.meta.service_model._service_description)
    return [len(opened), hashlib.sha256(model.encode()).hexdigest(), client.meta.endpoint_url, "pickle" in sys.modules]
"""


@pytest.mark.timeout(120)
def test_a_client_of_boto3_is_made_of_what_its_zygote_has_read(real: RunningDaemon) -> None:
    deploy(real, "clients", CLIENTS, memory_mb=256, timeout_s=20)
    own_reads, *own = real.call("clients")
    reads, *learned = real.call_learned("clients")
    assert learned == own
    assert own_reads > 400 and reads < 10


HEADS = """
    (drop (call $send_rpc (local.get $a) (i64.const 9) @head @key0))
    (drop (call $recv_rpc_reply (local.get $a) (i64.const 9) (i32.const 1024)))
    (drop (call $send_msg (i64.const 9) (i32.load (i32.const 1024)) (i64.const 0) (i64.load (i32.const 1032))))
"""
"""What an initscript does to fetch a head besides."""
FETCHES = """
import hashlib
import boto3

def f(event):
    client = boto3.client("s3")
    client.download_file("data", "a", "/tmp/a")
    client.download_file("data", "a", "/tmp/a")
    with open("/tmp/a", "rb") as file:
        assert file.read() == b"1"
    digests = [hashlib.sha256(client.get_object(Bucket="data", Key=key)["Body"].read()).hexdigest() for key in "ab"]
    client.put_object(Bucket="data", Key="a", Body=b"new")
    return [*digests, hashlib.sha256(client.get_object(Bucket="data", Key="a")["Body"].read()).hexdigest()]
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("storage", ["sockd", "own"])
def test_clients_of_boto3_read_what_an_initscript_has_fetched(real: RunningDaemon, storage: str) -> None:
    """In a start of the function's own, and in one from a Zygote that has imported boto3."""
    script = {"wasm": "init.wasm"}
    with S3Process() as server, server.client() as s3:
        s3.make_bucket("data")
        s3.put("data", "b", b"2")
        files: dict[str, str | bytes] = {"f.py": FETCHES, "init.wasm": fetching("a", "b", "a", "a", "a", then=HEADS)}
        settings = {"storage": storage, "env": patient(server), "initscript": script, "memory_mb": 256, "timeout_s": 30}
        s3.put("data", "a", b"1")
        try:
            real.deploy("fetches", files, **settings)
        except DeployFailed as error:
            if error.type == "Packages.Failed":
                pytest.skip(f"no package index can be reached: {error.message}")
            raise
        real.wait_line(READY)
        for start in (real.run, real.run_learned):
            s3.put("data", "a", b"1")
            answer = start("fetches")
            assert answer.json == [digest(b"1"), digest(b"2"), digest(b"new")]
            assert sources(trace(real, answer)) == [*["region"] * 6, "network"]
