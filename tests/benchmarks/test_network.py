"""The driver of `bench network`, for real."""

from __future__ import annotations

import json
import os

import pytest

from benchmarks.network import WAYS, driver
from tests.support.ledger import Ledger

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_each_way_makes_endpoints_and_removes_them(ledger: Ledger) -> None:
    with driver() as kernel:
        for way in WAYS:
            answer = kernel.ask(json.dumps(["make", way, 3]))
            assert len(answer["ms"]) == 3 and min(answer["ms"]) > 0, way
            assert answer["gone_ms"] >= answer["call_ms"] > 0, way
        assert kernel.ask(json.dumps(["memory", "raw netlink", 50]))["kb"] > 0
    ledger.check()
