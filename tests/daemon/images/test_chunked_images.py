"""Images of a daemon whose chunk store is in S3: what is there, who is asked, and what goes when an image is not needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.s3.client import Client
from benchmarks.s3.process import S3Process
from tests.daemon.images.conftest import BUCKET
from tests.daemon.images.test_images import CONFIG, app, deploy, small, upload
from tests.daemon.running import RunningDaemon
from tests.support.images.image_layouts import Files, python_files, write_layout

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def config(store: str) -> str:
    return f"{store}gc_grace_s = 0\n"


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("layout")
    write_layout(path, [python_files().tar(), app("1")], CONFIG)
    return path


def keys(bucket: Client, kind: str) -> list[str]:
    return list(bucket.list(BUCKET, f"worker/{kind}/"))


def test_an_image_runs_from_encrypted_chunks(daemon: RunningDaemon, bucket: Client, layout: Path) -> None:
    digest = upload(daemon, layout)
    deploy(daemon, "chunked", digest)
    assert daemon.call("chunked")["version"] == "1"
    directory = daemon.state / "images" / digest.removeprefix("sha256:")
    assert {file.name for file in directory.iterdir()} <= {"record.json", "manifest", "profile"}
    assert len(keys(bucket, "objects/manifests")) == len(keys(bucket, "objects/references")) == 1
    stored = [bucket.get(BUCKET, key) for key in keys(bucket, "roots")]
    assert len(stored) > 10 and not any(b"import http.client" in data for data in stored)


def test_an_image_that_was_removed_comes_back_without_its_layers(
    daemon: RunningDaemon, bucket: Client, layout: Path
) -> None:
    digest = upload(daemon, layout)
    daemon.remove("chunked")
    assert daemon.manage("DELETE", f"/images/{digest}").status == 200, "its sandboxes are waited for"
    assert keys(bucket, "objects/references") == [] and len(keys(bucket, "objects/manifests")) == 1
    bucket.forget_requests()
    assert upload(daemon, layout) == digest
    assert not [each for each in bucket.requests() if each["method"] == "PUT" and "/roots/" in each["path"]]
    deploy(daemon, "chunked", digest)
    assert daemon.call("chunked")["version"] == "1"


def test_garbage_is_deleted_and_a_function_goes_on_from_the_new_root(
    daemon: RunningDaemon, bucket: Client, layout: Path, tmp_path: Path
) -> None:
    digest = upload(daemon, layout)
    deploy(daemon, "stays", digest)
    assert daemon.call("stays")["version"] == "1"
    unused = small(daemon, tmp_path, Files(plain={"only": b"here" * 100_000}), {"Cmd": ["/only"]})
    (old,) = {key.split("/")[2] for key in keys(bucket, "roots")}
    before = len(keys(bucket, "roots"))
    found = daemon.manage("POST", "/images/gc").json
    assert [row["digest"] for row in found["removed"]] == [unused]
    assert [(root["state"], root["images"]) for root in found["store"]["roots"]] == [("active", 1)]
    assert found["store"]["copied"] >= before - 3 and found["store"]["problems"] == found["store"]["waits"] == []
    assert len(keys(bucket, "roots")) < before and old not in str(keys(bucket, "roots"))
    assert daemon.call("stays", {"what": "list", "path": "/opt/python/lib"})
    again = daemon.manage("POST", "/images/gc").json["store"]
    assert again["copied"] == again["deleted"] == 0, "nothing is garbage, so nothing is copied"


def test_the_credentials_of_the_store_are_in_no_log_and_no_process(daemon: RunningDaemon, s3: S3Process) -> None:
    assert not any(s3.secret_key in line for line in daemon.lines)
    for pid in daemon.pids():
        for file in ("cmdline", "environ"):
            assert s3.secret_key.encode() not in Path(f"/proc/{pid}/{file}").read_bytes()
