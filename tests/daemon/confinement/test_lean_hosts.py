"""Workers on hosts that lack /dev/fuse, loop devices or nf_tables: they start, say what they leave out, and serve the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemon.images.test_image_zygotes import CONFIG, FILES
from tests.daemon.images.test_images import deploy, upload
from tests.daemon.running import COMMAND, DeployFailed, RunningDaemon
from tests.support.images.image_layouts import python_files, write_layout
from tests.support.lean_host import command_without
from tests.support.older_kernel import KERNEL

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

CODE = "import os\ndef f(event): return [event, os.getpid()]\n"
Start = Callable[..., RunningDaemon]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the test's daemon on a host that lacks something."""
    started: list[RunningDaemon] = []

    def start(*lacking: str, config: str = "") -> RunningDaemon:
        started.append(RunningDaemon.start(tmp_path / "state", config, command=command_without(lacking, COMMAND)))
        return started[0]

    try:
        yield start
        for each in started:
            assert each.terminate() == 0, each.lines
    finally:
        for each in started:
            each.close()


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image with a handler for Python."""
    path = tmp_path_factory.mktemp("image")
    write_layout(path, [python_files().tar(), FILES], CONFIG)
    return path


def serves(daemon: RunningDaemon, **settings: str) -> None:
    """Check that a function of the host's own Python answers."""
    daemon.deploy("usual", CODE, **settings)
    assert daemon.call("usual", "event") == ["event", 1]


@pytest.mark.parametrize("kernel", ["", "6.1"])
def test_without_fuse_images_are_written_whole(start: Start, layout: Path, kernel: str) -> None:
    daemon = start("fuse", config=f'[sandbox]\nkernel = "{kernel}"\n' if kernel else "")
    serves(daemon)
    deploy(daemon, "image", upload(daemon, layout))
    assert daemon.call("image", {"n": 1})["event"] == {"n": 1}
    assert any("written to the disk as a whole" in line and "/dev/fuse" in line for line in daemon.lines)
    assert list(daemon.state.glob("**/*.erofs")), "the file is there"


def test_without_fuse_and_loop_devices_the_newest_way_has_images(start: Start, layout: Path) -> None:
    if KERNEL:
        pytest.skip("older kernels mount images through loop devices")
    daemon = start("fuse", "loop")
    deploy(daemon, "image", upload(daemon, layout))
    assert daemon.call("image", {"n": 1})["event"] == {"n": 1}


def test_without_loop_devices_an_older_kernel_refuses_images(start: Start, layout: Path) -> None:
    daemon = start("loop", config='[sandbox]\nkernel = "6.1"\n')
    serves(daemon)
    with pytest.raises(DeployFailed) as refused:
        upload(daemon, layout)
    assert refused.value.type == "Images.Unavailable" and "loop device" in refused.value.message
    assert daemon.status()["kernel"]["images"].startswith("none: ")


def test_without_nf_tables_private_networks_are_refused(start: Start) -> None:
    daemon = start("nf_tables")
    assert any("functions with network" in line and "no nf_tables" in line for line in daemon.lines)
    for network in ("host", "none"):
        serves(daemon, network=network)
    with pytest.raises(DeployFailed) as refused:
        daemon.deploy("private", CODE, network="private")
    assert refused.value.status == 503
    assert "this worker has no private networks: this kernel has no nf_tables" in refused.value.message
