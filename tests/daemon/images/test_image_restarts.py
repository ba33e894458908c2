"""Functions in images with the chunk store in the state directory: after a restart of the daemon, under any umask."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from sockd.images.registry import documents
from tests.daemon.images.test_images import CONFIG, app, deploy, upload
from tests.daemon.running import COMMAND, RunningDaemon
from tests.support.images import oci_images
from tests.support.images.image_layouts import Files, made, python_files, write_layout
from tests.support.images.scripted_registry import Script, scripted_registry

pytestmark = pytest.mark.root
PROGRAM_IMPORTS = ("http.client", "json", "mmap", "os", "socket")


@contextmanager
def running(state: Path, command: Sequence[str] = COMMAND) -> Iterator[RunningDaemon]:
    """A daemon that ends in order, unless the test fails."""
    with closing(RunningDaemon.start(state, command=command)) as daemon:
        yield daemon
        assert daemon.terminate() == 0


def program_layout(directory: Path) -> Path:
    """An image with a program."""
    write_layout(directory / "layout", [python_files(PROGRAM_IMPORTS).tar(), app("1")], CONFIG, compress=False)
    return directory / "layout"


def handler_layout(directory: Path) -> Path:
    """An image with the handler `own.handler`, which returns its event."""
    code = Files(plain={"app/own.py": "def handler(event, context): return event\n"})
    config = {"WorkingDir": "/app", "Env": ["PATH=/opt/python/bin"]}
    write_layout(directory / "layout", [python_files(), code], config, compress=False)
    return directory / "layout"


def test_an_image_is_read_from_the_store_of_an_earlier_daemon(tmp_path: Path) -> None:
    layout, state = program_layout(tmp_path), tmp_path / "state"
    with running(state, command=("sh", "-c", 'umask 077; exec "$@"', "sh", *COMMAND)) as daemon:
        daemon.deploy("masked", "import os\ndef f(event): return os.umask(0)\n")
        assert daemon.call("masked") == 0o022, "as on AWS, whatever the host's service manager says"
        deploy(daemon, "stays", upload(daemon, layout), timeout_s=30)
        assert daemon.call("stays")["version"] == "1"
    shutil.rmtree(state / "agent")  # the cache of chunks
    with running(state) as daemon:
        assert daemon.call("stays")["version"] == "1"
        assert (state / "chunks").stat().st_mode & 0o077 == 0, "no other user enters it"


def test_an_image_whose_record_is_cut_off_is_deployed_again(tmp_path: Path) -> None:
    layout, state = program_layout(tmp_path), tmp_path / "state"
    with running(state) as daemon:
        digest = upload(daemon, layout)
        deploy(daemon, "cut", digest)
        assert daemon.call("cut")["version"] == "1"
    record = state / "images" / digest.removeprefix("sha256:") / "record.json"
    record.write_bytes(record.read_bytes()[:100])
    with running(state) as daemon:
        answer = daemon.run("cut")
        assert (answer.status, answer.json["errorType"]) == (503, "Images.Lost"), answer.json
        assert answer.json["errorMessage"].startswith(f"the image {digest[:19]} of the function cannot be read")
        assert "sockd images add" in answer.json["errorMessage"]
        assert upload(daemon, layout) == digest
        deploy(daemon, "cut", digest)
        assert daemon.call("cut")["version"] == "1"


def test_a_lost_image_that_is_imported_again_serves_its_functions_as_before(tmp_path: Path) -> None:
    layout, state = handler_layout(tmp_path), tmp_path / "state"
    with running(state) as daemon:
        deploy(daemon, "lost", upload(daemon, layout), runtime="python", handler="own.handler")
        assert daemon.call("lost", 7) == 7
        before = daemon.manage("GET", "/functions/lost/imports").json["zygotes_allowed"]
        assert before
    shutil.rmtree(state / "images")
    with running(state) as daemon:
        answer = daemon.run("lost", 7)
        assert (answer.status, answer.json["errorType"]) == (503, "Images.Lost"), answer.json
        assert "sockd images add" in answer.json["errorMessage"]
        assert daemon.manage("GET", "/functions/lost").json["state"] == "image lost"
        upload(daemon, layout)
        daemon.when(lambda: daemon.manage("GET", "/functions/lost").json["state"] == "ready")
        assert daemon.call("lost", 8) == 8, "without another deploy"
        assert daemon.manage("GET", "/functions/lost/imports").json["zygotes_allowed"] == before


def test_a_lost_image_of_a_registry_is_imported_again_in_the_background(tmp_path: Path) -> None:
    state, blobs = tmp_path / "state", oci_images.Blobs()
    manifest = made(blobs, [python_files(PROGRAM_IMPORTS), app("1")], CONFIG)
    manifests = dict.fromkeys(("1", oci_images.digest(manifest)), (manifest, documents.OCI_MANIFEST))
    script = Script(manifests=manifests, blobs=blobs)
    with scripted_registry(script) as address:
        with running(state) as daemon:
            deploy(daemon, "tagged", f"{address}/team/app:1", timeout_s=30)
            assert daemon.call("tagged")["version"] == "1"
        for part in ("images", "chunks", "agent"):
            shutil.rmtree(state / part)
        del script.manifests["1"]  # by now the tag may mean another image
        with running(state) as daemon:
            assert [each["name"] for each in daemon.manage("GET", "/functions").json] == ["tagged"]
            daemon.when(lambda: daemon.manage("GET", "/functions/tagged").json["state"] == "ready")
            assert daemon.call("tagged")["version"] == "1"


def test_imports_are_shown_before_the_images_zygotes_have_started(tmp_path: Path) -> None:
    layout, state = handler_layout(tmp_path), tmp_path / "state"
    with running(state) as daemon:
        deploy(daemon, "own", upload(daemon, layout), runtime="python", handler="own.handler")
        assert daemon.call("own", 5) == 5
    with running(state) as daemon:
        assert daemon.manage("GET", "/functions/own/imports").json["packages"] == []
