"""Keys of remote clients in a group: made and revoked on one worker, they hold on each."""

from __future__ import annotations

import json

import pytest

from tests.daemon.groups.workers import Workers
from tests.daemon.running import RunningDaemon
from tests.daemon.test_events import soon

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]


def status(daemon: RunningDaemon, key: str) -> int:
    return daemon.run("echo", 1, Authorization=f"Bearer {key}").status


def test_a_key_opens_functions_on_each_worker_until_one_of_them_revokes_it(workers: Workers) -> None:
    first, second = (workers.start(name) for name in ("w1", "w2"))
    workers.deploy("echo", "def f(event): return event", run="keys")
    key = first.manage("POST", "/keys", json.dumps({"name": "web", "may": ["invoke"]})).json["key"]
    soon(lambda: status(second, key) == 200)
    assert status(first, key) == 200
    assert second.manage("DELETE", "/keys/web").status == 200
    assert status(second, key) == 401
    soon(lambda: status(first, key) == 401)
    again = workers.start("w3")
    assert again.manage("GET", "/keys").json == []
