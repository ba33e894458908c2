"""A learned start answers as a first start alone would: real distributions beside each other, name by name."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.running import DeployFailed
from tests.faults.sharing.catalogue import Entry, load
from tests.faults.sharing.comparing import Worker, difference
from tests.support.cases import Happened, case

SEED = 20
FEW = {"alone-requests", "together-1", "alone-click", "together-51", "alone-jinja2", "together-56"}
ROUNDS, RESTART = 4, 2
FEW_ZYGOTES_MB = 512
"""After the restart: of the whole catalogue's Zygotes most are evicted for others."""

pytestmark = pytest.mark.root


@pytest.fixture
def entries(request: pytest.FixtureRequest) -> list[Entry]:
    """All, or those that `FEW` names where a test asks for these."""
    return [entry for entry in load() if entry.name in getattr(request, "param", FEW)]


@pytest.fixture
def worker(tmp_path: Path, entries: list[Entry]) -> Iterator[Worker]:
    worker = Worker(tmp_path, entries, zygotes_mb=4096)
    try:
        worker.deploy(random.Random(SEED))
        yield worker
    except DeployFailed as error:
        if error.type == "Packages.Failed" and "index" in error.message:
            pytest.skip(f"no package index can be reached: {error.message}")
        raise
    finally:
        worker.close()


def test_the_catalogue_is_long_enough() -> None:
    entries = load()
    assert len(entries) == len({entry.name for entry in entries})
    assert len({name for entry in entries for name in entry.requirements}) >= 120
    assert sum(len(entry.requirements) > 1 or bool(entry.env) for entry in entries) >= 60


def test_a_difference_is_seen_and_noise_is_not() -> None:
    own = {"answer": "1", "registries": {}, "modules": {"m": {"a": "x", "b": "y", "time": "1"}, "n": {}}}
    again = {**own, "modules": {"m": {"a": "x", "b": "y", "time": "2"}, "n": {}}}
    seen = {"answer": "2", "registries": {}, "modules": {"m": {"a": "z", "more": "w", "time": "3"}, "o": {}}}
    assert list(difference([own, again], own)) == list(difference([own, again], again)) == []
    assert list(difference([own, again], seen)) == [
        "answer '2' instead of '1'",
        "m.a",
        "m.b",
        "m.more",
        "n is not there",
    ]


def compare(worker: Worker, happened: Happened) -> None:
    """Rounds of fresh starts, a restart with less memory between them; no answer may differ."""
    order = random.Random(SEED)
    found: list[str] = []
    for turn in range(ROUNDS):
        if turn == RESTART:
            worker.restart(FEW_ZYGOTES_MB)
        found += [f"round {turn}: {line}" for line in worker.differences(order)]
        worker.settle()
    hits = worker.past_hits + worker.hits
    happened(f"{len(worker.entries)} functions, {ROUNDS} starts of each, {dict(hits)}, {len(found)} differ")
    assert hits["full"], "no start had all of its packages from a Zygote, so nothing was compared"
    assert not found, "\n".join(found)


@pytest.mark.timeout(600)
@case(
    "P20",
    "requests with and without socks, two versions of a dependency, learned beside each other",
    expect="no answer differs",
)
def test_a_few(worker: Worker, happened: Happened) -> None:
    compare(worker, happened)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("entries", [{entry.name for entry in load()}], indirect=True, ids=["all"])
@case("P21", "the whole catalogue, in random order, over a restart", expect="no answer, no name differs", default=False)
def test_the_catalogue(worker: Worker, happened: Happened) -> None:
    compare(worker, happened)
