"""The driver of `bench isolation`, for real."""

from __future__ import annotations

import json
import os

import pytest

from benchmarks.isolation import driver
from benchmarks.peers.isolation_driver import KINDS
from tests.support.ledger import Ledger

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_each_operation_is_measured_and_leaves_nothing(ledger: Ledger) -> None:
    with driver() as kernel:
        for kind, (_, phases) in KINDS.items():
            answer = kernel.ask(json.dumps(["run", kind, 2, 0.02]))
            assert answer["rate"] > 0, kind
            assert [name for name in answer if name != "rate"] == list(phases)
            assert all(min(answer[phase]) > 0 for phase in phases), kind
    ledger.check()


def test_idle_mount_namespaces_are_made_and_closed(ledger: Ledger) -> None:
    with driver() as kernel:
        assert kernel.ask(json.dumps(["idle", 20])) == {"idle": 20}
        assert kernel.ask(json.dumps(["idle", 0])) == {"idle": 0}
    ledger.check()
