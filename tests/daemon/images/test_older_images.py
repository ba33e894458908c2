"""Functions in container images on a worker that takes the ways of an older kernel: loop devices, and attached roots."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon.images.test_image_zygotes import CONFIG, FILES, served
from tests.daemon.images.test_images import deploy, upload
from tests.daemon.running import RunningDaemon
from tests.support.images.image_layouts import python_files, write_layout

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def config() -> str:
    return '[sandbox]\nkernel = "6.1"\n'


@pytest.fixture(scope="module")
def image(daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its digest."""
    path = tmp_path_factory.mktemp("image")
    write_layout(path, [python_files().tar(), FILES], CONFIG)
    return upload(daemon, path)


def test_a_program_and_a_handler_of_an_image_answer(daemon: RunningDaemon, image: str) -> None:
    assert daemon.status()["kernel"]["images"].startswith("EROFS through loop devices")
    served(daemon, "by-zygote", image)
    deploy(daemon, "as-program", image, zygote="none")
    for name in ("by-zygote", "as-program"):
        answer = daemon.call(name, {"n": 1})
        assert (answer["event"], answer["uid"], answer["cwd"]) == ({"n": 1}, 1000, "/app")
        assert (answer["writable"], answer["host"]) == (["/tmp"], []), name


def test_a_removed_image_leaves_no_mount(daemon: RunningDaemon, image: str) -> None:
    for name in ("by-zygote", "as-program"):
        daemon.manage("DELETE", f"/functions/{name}")
    daemon.when(lambda: daemon.manage("DELETE", f"/images/{image}").status in (200, 204, 404))
    daemon.when(lambda: "/mounted/" not in Path(f"/proc/{daemon.pid}/mountinfo").read_text())
