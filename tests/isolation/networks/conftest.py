"""A lab, and private networks in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sockd.base.config import NetworkConfig
from sockd.isolation.networks.networks import Networks
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from tests.support.cases import happened
from tests.support.emulated import not_in_uml
from tests.support.networks.network_lab import Lab, lab

__all__ = ["happened"]

WORKER = "5eed0001"
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what makes private networks where there can be none, by what is known of the machine and not by what sockd says."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("root"):
            item.add_marker(not_in_uml("has no nf_tables for inet"))


@pytest.fixture
def world() -> Iterator[Lab]:
    with lab() as world:
        yield world


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(1 << 30)


@pytest.fixture
async def networks(world: Lab, budget: MemoryBudget) -> AsyncIterator[Networks]:
    networks = await Networks.open(NetworkConfig(), WORKER, budget.reserve_nowait)
    yield networks
    await networks.aclose()
    assert budget.used == 0
