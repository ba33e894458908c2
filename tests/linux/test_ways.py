"""Which way of a feature is taken, and that an older kernel's can be had on any."""

from __future__ import annotations

import asyncio

import pytest

from sockd.base.config import Config, SandboxConfig
from sockd.base.errors import BadConfig
from sockd.linux import procfs
from sockd.linux.processes import pidfds
from sockd.linux.ways import OLDEST, TABLE, Ways

pytestmark = pytest.mark.root


def names(ways: Ways) -> list[str]:
    return [getattr(ways, feature).name for feature in TABLE]


@pytest.mark.parametrize("kernel", [OLDEST, (6, 1), (6, 14)])
def test_as_on_a_kernel_before_all_of_them_the_last_ways_are_taken(kernel: tuple[int, int]) -> None:
    found = Ways.find(kernel)
    assert names(found) == [feature.ways[-1].name for feature in TABLE.values()]
    assert all(words.endswith("(sandbox.kernel)") for words in found.words().values())


def test_each_way_is_tried_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    before = names(Ways.find())
    monkeypatch.setattr(pidfds, "tells_exit_status", lambda: False)
    found = Ways.find()
    assert names(found) == [*before[:2], "parent"]
    assert found.exits.words.endswith("(no exit status by PIDFD_GET_INFO)")


def test_a_kernel_between_has_some_of_them() -> None:
    if Ways.find().proc.reason:
        pytest.skip("procfs takes a namespace from Linux 6.18 on")
    found = Ways.find((6, 15))
    assert names(found) == ["detached", "child", "pidfd"]

    async def make() -> None:
        made = found.procfs()
        assert isinstance(made, procfs.ByChild)
        made.close()

    asyncio.run(make())


def test_what_was_asked_for_is_taken_or_refused() -> None:
    assert Ways.find(roots="attached").roots.name == "attached"
    with pytest.raises(BadConfig, match=r'sandbox.roots = "detached" is not to be had: sandbox.kernel'):
        Ways.find((6, 1), "detached")


def test_a_kernel_of_the_configuration_is_two_numbers() -> None:
    assert SandboxConfig(kernel="6.12").kernel_release == (6, 12)
    assert Config().sandbox.kernel_release is None
    for wrong in ("6", "6.1.2", "six", "", "6.1-rc1", "-6.1"):
        with pytest.raises(ValueError, match=r"must be two numbers"):
            SandboxConfig(kernel=wrong)
