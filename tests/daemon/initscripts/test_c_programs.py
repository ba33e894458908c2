"""A program in C, behind the Runtime API and in an image without Python, is handed what its initscript has fetched."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.s3.process import S3Process
from sockd_initscripts.authoring import toolchain
from tests.daemon.images.test_images import deploy, upload
from tests.daemon.prefetching import fetching, sources, trace
from tests.daemon.running import RunningDaemon
from tests.daemon.test_runtime_api import archive
from tests.support.images.image_layouts import Files, write_layout

pytestmark = pytest.mark.root

DATA = bytes(range(256)) * 4000
GONE = {"bytes": None, "why": "Broken pipe"}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Process]:
    with S3Process() as server, server.client() as client:
        client.make_bucket("data")
        client.put("data", "a", DATA)
        yield server


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The example, which needs no file of an image."""
    binary = tmp_path_factory.mktemp("program") / "bootstrap"
    sources = toolchain.SDK / "c/program/bootstrap.c"
    command = ("cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-I", str(toolchain.SDK / "c"))
    subprocess.run([*command, str(sources), "-o", str(binary)], check=True)
    return binary.read_bytes()


@pytest.mark.parametrize("kind", ["provided", "image"])
def test_a_program_in_c_has_a_view_of_the_region(
    daemon: RunningDaemon, server: S3Process, program: bytes, kind: str, tmp_path: Path
) -> None:
    name = f"in-c-{kind}"
    if kind == "provided":
        daemon.deploy(name, archive(program), runtime="provided", env=server.env())
    else:
        write_layout(tmp_path, [Files(executable={"bootstrap": program}).tar()], {"Entrypoint": ["/bootstrap"]})
        deploy(daemon, name, upload(daemon, tmp_path), env=server.env())
    daemon.deploy_initscript(name, fetching("a"))
    answer = daemon.run(name, {})
    assert answer.json == {"bytes": len(DATA), "sum": sum(DATA), "type": "binary/octet-stream"}
    assert sources(trace(daemon, answer)) == ["region"]
    assert daemon.call(name, {}) == GONE, "the first answer is out"
