"""Snapshots of functions in images, of another Python, provisioned, behind aliases, and with an initscript."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.s3.process import S3Process
from tests.daemon.aws_client import KEYS, create
from tests.daemon.gate import Gate
from tests.daemon.images.test_image_zygotes import CONFIG as IMAGE_CONFIG
from tests.daemon.images.test_images import upload
from tests.daemon.prefetching import READY, digest, fetching, patient, reading, sources, trace
from tests.daemon.running import RunningDaemon, zipped
from tests.daemon.snapshots.snapshotted import TOKEN, deploy, origin
from tests.daemon.test_python_versions import OTHERS
from tests.daemon.versions.numbered import ready, until
from tests.support.images.image_layouts import Files, python_files, write_layout
from tests.support.threads import in_background

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

DIFFERS = {
    "AWS_LAMBDA_INITIALIZATION_TYPE",
    "AWS_LAMBDA_FUNCTION_NAME",
    "AWS_LAMBDA_LOG_GROUP_NAME",
    "AWS_LAMBDA_LOG_STREAM_NAME",
}
"""Variables of two functions that are not the same."""
OBJECTS = {"weights": b"w" * 200_000, "input": b"i" * 100_000}


@pytest.fixture(scope="module")
def config() -> str:
    return f"{KEYS}[sandbox]\nmemory_mb = 2048\n"


def test_a_handler_in_an_image_has_one(daemon: RunningDaemon, tmp_path: Path) -> None:
    app = (
        "import os, sys, snapshot_restore_py\nfrom pathlib import Path\n"
        + TOKEN.replace("handler(event, context)", "answer()")
        + (
            "def handler(event, context):\n"
            "    return {**answer(), 'prefix': sys.prefix, 'cwd': os.getcwd(), 'path': sys.path, 'env': dict(os.environ),\n"
            "            'listed': sorted(os.listdir('.')), 'tmp': os.listdir('/tmp'), 'uid': os.getuid()}\n"
        )
    )
    write_layout(tmp_path, [python_files().tar(), Files(plain={"app/app.py": app})], IMAGE_CONFIG)
    image = upload(daemon, tmp_path)
    settings = {"image": image, "timeout_s": 10, "memory_mb": 128}
    function, said = deploy(daemon, "in-image", {}, **settings)
    assert function["snapshot"] == "serving", said
    answers = [daemon.run("in-image") for _ in range(3)]
    assert {origin(answer) for answer in answers} == {"template"}
    assert len({answer.json["token"] for answer in answers}) == 1
    assert len({answer.json["random"] for answer in answers}) == 3
    deploy(daemon, "in-image-own", {}, **settings, snapshot=False)
    ours, own = answers[0].json, daemon.call("in-image-own")
    for both in (ours, own):
        for each in ("token", "random", "type"):
            del both[each]
        both["env"] = {name: value for name, value in both["env"].items() if name not in DIFFERS}
    assert ours == own


@pytest.mark.parametrize("python", OTHERS)
def test_a_function_of_another_python_has_one(daemon: RunningDaemon, python: str) -> None:
    source = "import sys, snapshot_restore_py\n" + TOKEN.replace(
        '"count"', '"python": list(sys.version_info[:2]), "count"'
    )
    name = f"python-{python[2:]}"
    function, said = deploy(daemon, name, source, python=python)
    assert function["snapshot"] == "serving", said
    answers = [daemon.run(name) for _ in range(3)]
    assert {origin(answer) for answer in answers} == {"template"}
    assert len({answer.json["token"] for answer in answers}) == 1
    assert len({answer.json["random"] for answer in answers}) == 3
    assert answers[0].json["python"] == [int(each) for each in python.split(".")]


def test_provisioned_sandboxes_are_forked_from_it(daemon: RunningDaemon, client: Any) -> None:
    create(client, "provisioned", TOKEN, SnapStart={"ApplyOn": "PublishedVersions"})
    client.publish_version(FunctionName="provisioned")
    client.get_waiter("published_version_active").wait(FunctionName="provisioned", Qualifier="1")
    token = daemon.call("provisioned:1")["token"]
    client.put_provisioned_concurrency_config(
        FunctionName="provisioned", Qualifier="1", ProvisionedConcurrentExecutions=2
    )
    until(lambda: ready(client, "provisioned", "1"))
    answer = daemon.run("provisioned:1")
    assert answer.headers["x-sockd-cold"] == "0"
    assert (answer.json["token"], answer.json["type"]) == (token, "provisioned-concurrency")


def test_an_alias_leads_to_the_snapshot_of_its_version(daemon: RunningDaemon, client: Any) -> None:
    create(client, "moved", TOKEN, SnapStart={"ApplyOn": "PublishedVersions"})
    tokens = []
    for number in ("1", "2"):
        if number == "2":
            client.update_function_code(
                FunctionName="moved", ZipFile=zipped({"app.py": f"{TOKEN}# {number}\n", "gate.py": ""})
            )
        client.publish_version(FunctionName="moved")
        client.get_waiter("published_version_active").wait(FunctionName="moved", Qualifier=number)
        if number == "1":
            client.create_alias(FunctionName="moved", Name="prod", FunctionVersion="1")
        else:
            client.update_alias(FunctionName="moved", Name="prod", FunctionVersion="2")
        answer = daemon.run("moved:prod", x_sockd_fresh="1")
        assert origin(answer) == "template"
        tokens.append(answer.json["token"])
        assert daemon.call(f"moved:{number}")["token"] == tokens[-1]
    assert len(set(tokens)) == 2


@pytest.fixture(scope="module")
def server(ledger_of_module: None) -> Iterator[S3Process]:
    with S3Process() as server, server.client() as client:
        client.make_bucket("data")
        for key, data in OBJECTS.items():
            client.put("data", key, data)
        yield server


def test_next_to_an_initscript_only_what_differs_per_start_is_fetched(
    daemon: RunningDaemon, server: S3Process, gate: Gate
) -> None:
    text = (
        "import hashlib, os, storage\n"
        "from gate import wait\n"
        "def read(key): return hashlib.sha256(storage.download_stream('data', key)).hexdigest()\n"
        "WEIGHTS = read('weights')\n"
        "def handler(event, context):\n"
        "    wait(event['gate'])\n"
        "    return WEIGHTS, read('input')\n"
    )
    files = reading(text, init_wasm=fetching("weights", "input"))
    files["handler.py"] = files.pop("f.py")
    function, said = deploy(
        daemon, "beside", files, initscript={"wasm": "init.wasm"}, storage="sockd", env=patient(server), timeout_s=15
    )
    assert function["snapshot"] == "serving", said
    daemon.wait_line(READY)
    with server.client() as s3:
        s3.forget_requests()
        for _ in range(2):
            with in_background(lambda: daemon.run("beside", {"gate": gate.port})) as answered:
                gate.arrived()
                while daemon.status()["initscripts"]["running"]:
                    pass
                gate.open()
                answer = answered()
            assert origin(answer) == "template"
            assert answer.json == [digest(OBJECTS["weights"]), digest(OBJECTS["input"])]
            shown = trace(daemon, answer)
            assert shown["initscript"] == "exit"
            assert sources(shown) == ["region"]
        gets = [record["path"] for record in s3.requests() if record["method"] == "GET"]
    assert gets == ["/data/input"] * 2
