"""What a handler sandbox can reach, read back from inside and from the host (DESIGN 3)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.house import House, namespaces_of, status_of

pytestmark = pytest.mark.root

CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def read_status(event: Any) -> Any:
    lines = open("/proc/self/status").read().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_it_has_no_capability_and_can_get_none(house: House) -> None:
    running = house.start(read_status)
    for status in (running.answer(), status_of(running.pid)):
        assert {name: int(status[name], 16) for name in CAPABILITY_SETS} == dict.fromkeys(CAPABILITY_SETS, 0)
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
