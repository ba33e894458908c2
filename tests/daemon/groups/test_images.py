"""Functions in container images in a group of workers: what one worker got runs on all, and starts as fast there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon.groups.workers import Workers
from tests.daemon.images.test_images import CONFIG, app, deploy, upload
from tests.daemon.running import RunningDaemon
from tests.daemon.test_events import soon
from tests.support.images.image_layouts import python_files, write_layout

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an image whose program answers."""
    path = tmp_path_factory.mktemp("layout")
    write_layout(path, [python_files().tar(), app("1")], CONFIG)
    return path


def test_an_image_that_one_worker_got_is_deployed_by_another_and_runs_on_all(workers: Workers, layout: Path) -> None:
    first, second, third = (workers.start(name) for name in ("w1", "w2", "w3"))
    digest = upload(first, layout)
    deploy(second, "app", digest)
    workers.wait_for("app", lambda function: "version_number" in function)
    for worker in (first, second, third):
        assert worker.call("app")["version"] == "1"


def test_a_worker_that_joins_has_the_startup_profile_that_a_killed_one_recorded(workers: Workers, layout: Path) -> None:
    first = workers.start("w1")
    digest = upload(first, layout)
    deploy(first, "app", digest)
    assert first.call("app")["version"] == "1"
    soon(lambda: any((workers.store / "objects" / "profiles").rglob("*default/*")))
    workers.kill("w1")
    joined = workers.start("w2")
    assert joined.call("app")["version"] == "1"
    assert profile(joined, digest).is_file()


def profile(worker: RunningDaemon, digest: str) -> Path:
    """Where a worker keeps the startup profile of an image."""
    return worker.state / "images" / digest.removeprefix("sha256:") / "profile"
