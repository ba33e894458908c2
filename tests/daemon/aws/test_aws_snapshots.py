"""SnapStart of AWS's API, by boto3 as it is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.daemon.aws_client import KEYS, create
from tests.daemon.running import RunningDaemon
from tests.daemon.snapshots.snapshotted import TOKEN, origin

pytestmark = pytest.mark.root

SNAP_START = {"ApplyOn": "PublishedVersions"}


@pytest.fixture(scope="module")
def config() -> str:
    return KEYS


def test_a_published_version_is_pending_until_its_snapshot_is_there(daemon: RunningDaemon, client: Any) -> None:
    made = create(client, "snap", TOKEN, SnapStart=SNAP_START)
    assert made["SnapStart"]["ApplyOn"] == "PublishedVersions"
    published = client.publish_version(FunctionName="snap")
    assert (published["State"], published["SnapStart"]["OptimizationStatus"]) == ("Pending", "Off")
    client.get_waiter("published_version_active").wait(FunctionName="snap", Qualifier="1")
    version = client.get_function_configuration(FunctionName="snap", Qualifier="1")
    assert version["SnapStart"] == {**SNAP_START, "OptimizationStatus": "On"}
    answer = daemon.run("snap:1")
    assert origin(answer) == "template" and answer.json["type"] == "snap-start"


def test_snap_start_is_switched_off_for_the_next_version(daemon: RunningDaemon, client: Any) -> None:
    create(client, "off", TOKEN, SnapStart=SNAP_START)
    client.update_function_configuration(FunctionName="off", SnapStart={"ApplyOn": "None"})
    changed = client.get_function_configuration(FunctionName="off")
    assert changed["SnapStart"] == {"ApplyOn": "None", "OptimizationStatus": "Off"}
    assert origin(daemon.run("off")) != "template"


def test_a_version_that_cannot_have_one_is_active_without(daemon: RunningDaemon, client: Any) -> None:
    source = "import os\nENDS = os.pipe()\ndef handler(event, context): return 1\n"
    create(client, "refused", source, SnapStart=SNAP_START)
    client.publish_version(FunctionName="refused")
    client.get_waiter("published_version_active").wait(FunctionName="refused", Qualifier="1")
    version = client.get_function_configuration(FunctionName="refused", Qualifier="1")
    assert version["SnapStart"] == {**SNAP_START, "OptimizationStatus": "Off"}
    assert daemon.call("refused:1") == 1
