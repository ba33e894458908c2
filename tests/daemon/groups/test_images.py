"""Functions in container images in a group of workers: what one worker got runs on all, and starts as fast there."""

from __future__ import annotations

import http.client
import json
import random
import socket
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sockd.images.chunks.image_keys import ImageKeys
from tests.daemon.groups.workers import Workers
from tests.daemon.images.test_images import CONFIG, app, deploy, upload
from tests.daemon.running import RunningDaemon
from tests.daemon.test_events import soon
from tests.support.images.image_layouts import Files, python_files, write_layout

DATA_CHUNKS = 4
DATA = random.Random(1).randbytes(DATA_CHUNKS << 18).hex()
"""As long as so many chunks of 512 KiB."""

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an image whose program answers."""
    path = tmp_path_factory.mktemp("layout")
    write_layout(path, [python_files().tar(), app("1"), Files(plain={"data": DATA})], CONFIG)
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


def test_chunks_come_from_the_nodes_of_the_group_whose_workers_may_die_and_join(workers: Workers, layout: Path) -> None:
    first, second, third = (workers.start(name) for name in ("w1", "w2", "w3"))
    nodes = node_addresses(workers, "w3", {"w1", "w2", "w3"})
    for worker in (first, second, third):
        assert len(set(node_addresses(workers, worker_name(workers, worker), nodes.keys()).values())) == 3
    digest = upload(first, layout)
    deploy(first, "app", digest)
    workers.wait_for("app", lambda function: "version_number" in function)
    assert first.call("app")["version"] == "1"
    soon(lambda: any((workers.store / "objects" / "profiles").rglob("*default/*")))
    assert read_data(first) == DATA
    soon(lambda: counted(workers, nodes, "puts") >= 5 * DATA_CHUNKS)
    before = counted(workers, nodes, "memory_hits")
    assert read_data(second) == DATA
    assert counted(workers, nodes, "memory_hits") - before >= 4 * (DATA_CHUNKS - 1)
    workers.kill("w1")
    soon(lambda: refuses(nodes["w1"]))
    assert read_data(third) == DATA
    joined = workers.start("w4")
    assert read_data(joined) == DATA
    now = node_addresses(workers, "w2", {"w2", "w3", "w4"})
    assert (now["w2"], now["w3"]) == (nodes["w2"], nodes["w3"])


def node_addresses(workers: Workers, of: str, names: Collection[str]) -> dict[str, str]:
    """Wait until one worker shows the cache nodes of these workers, and return where they are."""

    def shown() -> dict[str, str] | None:
        members = workers.members(of)
        found = {name: members.get(name, {}).get("cache_node", "") for name in names}
        return found if all(found.values()) else None

    found: dict[str, str] = soon(shown)
    return found


def worker_name(workers: Workers, worker: RunningDaemon) -> str:
    return next(name for name, each in workers.by_name.items() if each is worker)


def read_data(worker: RunningDaemon) -> str:
    """Have the function read a file of its image that its start does not read."""
    data: str = worker.call("app", {"what": "read", "path": "/data"})
    return data


def counted(workers: Workers, nodes: Mapping[str, str], what: str) -> int:
    """Return the sum of a counter of cache nodes."""
    token = node_token(workers)
    total = 0
    for address in nodes.values():
        with closing(http.client.HTTPConnection(address)) as connection:
            connection.request("GET", "/status", headers={"Authorization": f"Bearer {token}"})
            status: dict[str, Any] = json.loads(connection.getresponse().read())
        total += status[what]
    return total


def node_token(workers: Workers) -> str:
    """Return what each request to a cache node of the group must have."""
    return ImageKeys.at(workers.store.parent.parent / "images.key").node_token()


def refuses(address: str) -> bool:
    """Return whether nothing listens at an address."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


def profile(worker: RunningDaemon, digest: str) -> Path:
    """Where a worker keeps the startup profile of an image."""
    return worker.state / "images" / digest.removeprefix("sha256:") / "profile"
