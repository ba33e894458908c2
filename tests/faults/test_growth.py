"""Promise 30: what is alive in a worker after many requests and deploys is no more than before them."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.soak import Traffic
from tests.daemon.running import COMMAND, REPO, RunningDaemon
from tests.faults.watching import ms_until
from tests.support.cases import ALL, Happened, case
from tests.support.counted import WRITTEN
from tests.support.emulated import SLOWER

pytestmark = [pytest.mark.root, pytest.mark.timeout(1800)]

FUNCTIONS = 5
BESIDES = 64
"""The number of blocks that a line has asked for, or objects of a type: what comes and goes with the moment of the count.
And the names of a function's settings, which msgspec keeps in a cache of 512, belong to the line that has asked for them
last."""
FULL, QUICK = (1000, 1000, 100_000), (60, 60 // SLOWER, 3000 // SLOWER)
"""Deploys that fill msgspec's cache, deploys between the counts, and requests beside the deploys of each."""
CONFIG = "[traces]\nkeep = 100\nkeep_each = 20\n"
"""Stores that are full after the first load."""
KEEPS_INTERNED = sys.getrefcount(sys.intern(f"a name that {object()!r} has")) > 1 << 30
"""CPython 3.12.0 to 3.12.5 never frees interned strings (gh-113993); pathlib interns each part of a path."""
MINUTE = "sockd/observe/recent.py"
"""What is counted of each second is kept for one minute: the one store that the first load does not fill."""
MINUTE_BLOCKS = 60 * FUNCTIONS * 8
MINUTE_TYPE = "sockd.observe.recent.Slot"


@dataclass(frozen=True)
class Alive:
    """What a worker holds: objects by type, and (blocks, bytes) by line."""

    types: dict[str, int]
    lines: dict[str, list[int]]
    malloc: dict[str, int]

    def grown(self, before: Alive, most: int) -> list[str]:
        """What there is more of, by more than `most`, outside of the stores."""
        found = [
            f"{more} of {name}"
            for name, count in self.types.items()
            if (more := count - before.types.get(name, 0)) > most and name != MINUTE_TYPE
        ]
        for line, (blocks, size) in self.lines.items():
            old_blocks, old_size = before.lines.get(line, (0, 0))
            limit = MINUTE_BLOCKS if place(line) == MINUTE else most
            if KEEPS_INTERNED and Path(place(line)).name == "pathlib.py":
                continue
            if blocks - old_blocks > limit:
                found.append(f"{blocks - old_blocks} blocks, {size - old_size} bytes from {line}")
        return found

    @property
    def blocks(self) -> int:
        return sum(blocks for blocks, _ in self.lines.values())

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.lines.values())


def place(line: str) -> str:
    """sockd/http/front.py"""
    return line.rpartition(":")[0].removeprefix(f"{REPO}/")


class Counted:
    """A worker that counts itself."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "alive.json"
        command = (COMMAND[0], "-m", "tests.support.counted", *COMMAND[3:])
        self.daemon = RunningDaemon.start(
            directory / "state", CONFIG, command=command, env={"SOCKD_COUNTED_FILE": str(self._file)}
        )

    def count(self) -> Alive:
        mark = self.daemon.mark
        self.daemon.signal(signal.SIGUSR1)
        self.daemon.wait_line(WRITTEN, since=mark, deadline_s=60 * SLOWER)
        counted: dict[str, Any] = json.loads(self._file.read_text())
        return Alive(**counted)

    def settle(self) -> None:
        """Wait until what the last deploys have replaced is given back."""
        ms_until(lambda: self.daemon.status()["cgroups"]["recycling"] == 0)


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[Counted]:
    worker = Counted(tmp_path)
    yield worker
    worker.daemon.close()


@case(
    "G15",
    "requests and deploys without end, on functions that change and functions that go",
    expect="no type and no line of the daemon has more alive than before, but in stores that are bounded",
)
def test_nothing_stays_of_requests_and_deploys(
    counted: Counted, happened: Happened, request: pytest.FixtureRequest
) -> None:
    fill, deploys, requests = FULL if request.config.getoption(ALL, default=False) else QUICK
    with closing(Traffic(counted.daemon.port, counted.daemon.state, FUNCTIONS)) as traffic:
        traffic.deploy_all()

        def load(deploys: int) -> None:
            for _ in range(deploys):
                traffic.change_one()
                for _ in range(requests // deploys):
                    traffic.call_one()
            counted.settle()

        load(fill)
        before = counted.count()
        load(deploys)
        after = counted.count()
    assert not traffic.failed
    happened(
        f"{deploys} deploys and {requests} requests more: {after.blocks - before.blocks:+} blocks, "
        f"{after.bytes - before.bytes:+} bytes of {after.bytes}; malloc {before.malloc} -> {after.malloc}"
    )
    assert not (grown := after.grown(before, max(BESIDES, deploys // 10))), "\n".join(grown)
