"""Functions in images where the kernel does not send the reads of an ended agent to the next one (before Linux 6.9)."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.daemon.images.test_image_failures import serving_agent
from tests.daemon.images.test_images import deploy
from tests.daemon.images.test_lost_images import END, handler_image, is_told_why, until_served
from tests.daemon.running import RunningDaemon
from tests.support.cases import case

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def config() -> str:
    return '[sandbox]\nkernel = "6.1"\n'


@case(
    "I62",
    "SIGKILL the agent under a request and an idle sandbox, where the kernel sends no reads again",
    expect="503 with the cause; new sandboxes serve",
)
def test_what_runs_in_images_ends_with_the_agent_and_starts_anew(daemon: RunningDaemon, tmp_path: Path) -> None:
    deploy(daemon, "mapped", handler_image(daemon, tmp_path), handler="mapped:handler", runtime="python", concurrency=2)
    daemon.call("mapped", {"at": 0})
    with ThreadPoolExecutor(1) as pool, socket.create_server(("127.0.0.1", 0)) as server:
        under_way = pool.submit(daemon.run, "mapped", {"at": END, "port": server.getsockname()[1]})
        connection, _ = server.accept()
        mark = daemon.mark
        os.kill(serving_agent(daemon), signal.SIGKILL)
        daemon.when(lambda: any("cannot be read any more" in line for line in daemon.lines[mark:]))
        with connection:
            connection.send(b"1")
        assert is_told_why(under_way.result()), under_way.result().body
    answer, before = until_served(daemon, lambda: daemon.run("mapped", {"at": END}))
    assert answer.headers["x-sockd-cold"] == "1"
    assert all(map(is_told_why, before)), [each.body for each in before]
