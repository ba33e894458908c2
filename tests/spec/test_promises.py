"""Promises of SPECIFICATION.md that no other test proves, as cases of the suite (group S)."""

from __future__ import annotations

import re
import sys
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sockd.base.config import MB, FunctionDefaults, HttpConfig
from sockd.isolation.networks import egress
from sockd_initscripts.limits import Budget
from tests.daemon.kernel_view import cpu_s, open_fds
from tests.daemon.running import RunningDaemon
from tests.spec.promises import ROOT
from tests.support.cases import Happened, case
from tests.support.emulated import not_in_uml
from tests.support.private_worker import PrivateWorker

pytestmark = pytest.mark.root

SANDBOXES = 20
SPARES = 2
"""The most spares of the suite's worker: they come and go."""
DESCRIPTORS = 10
"""The most descriptors of the daemon for each sandbox."""
RESTARTS = 3
RESTART_S = 2.0
FRESH = (sys.executable, "-P", "-m", "sockd", "up", "--listen", "127.0.0.1:0")
"""Python's own start included, so not from the template of tests' workers."""


def mounts(pid: int | str) -> int:
    return len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())


def at_rest(worker: PrivateWorker) -> int:
    """Idle sandboxes once each sandbox is one process, spares included. Raises: AssertionError, when that never comes."""
    tick = threading.Event()
    for _ in range(2000):
        counts = worker.daemon.status()["sandboxes"]
        if counts["busy"] == 0 and len(worker.processes("sandbox")) == sum(counts.values()):
            return int(counts["idle"] + counts["paused"])
        tick.wait(0.01)
    raise AssertionError(f"{len(worker.processes('sandbox'))} processes of sandboxes where {counts} are told of")


@case(
    "S1",
    f"keep {SANDBOXES} idle sandboxes of as many functions",
    expect=f"each is one process, no mount in anybody's table, at most {DESCRIPTORS} descriptors of the daemon",
)
def test_what_a_sandbox_takes_of_the_host(worker: PrivateWorker, happened: Happened) -> None:
    worker.call("neighbour", 0)

    def look() -> tuple[int, ...]:
        idle, pid = at_rest(worker), worker.daemon.pid
        return idle, mounts("self"), mounts(pid), len(open_fds(pid))

    before = look()
    for number in range(SANDBOXES):
        worker.deploy(f"idle{number}", f"def f(event): return {number}", memory_mb=32)
        assert worker.call(f"idle{number}") == number
    after = look()
    more = [now - then for now, then in zip(after, before, strict=True)]
    happened(f"{more[0]} more sandboxes: {more[1]} mounts here, {more[2]} of the daemon's, {more[3]} descriptors")
    assert more[0] == SANDBOXES
    assert more[1:3] == [0, 0]
    assert more[3] <= DESCRIPTORS * (SANDBOXES + SPARES)


LIMITS = """
import os, resource
def f(event):
    tmp = os.statvfs("/tmp")
    return {
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "tmp_mb": tmp.f_blocks * tmp.f_frsize >> 20,
        "tmp_inodes": tmp.f_files,
    }
"""


def documented() -> dict[str, Any]:
    """The first sockd.toml of the guide to functions: every key with its default."""
    block = re.search(r"```toml\n(.*?)```", (ROOT / "docs/guide/functions.md").read_text(), re.DOTALL)
    assert block is not None
    return tomllib.loads(block[1])


@case(
    "S2",
    "compare the limits in SPECIFICATION.md, the guide, code, and a sandbox whose function sets none",
    expect="they are the same",
)
def test_limits_are_those_that_are_written_down(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy("plain", LIMITS)
    seen = worker.call("plain")
    happened(f"inside: {seen}")
    assert worker.json("/functions/plain")["memory_mb"] == documented()["memory_mb"]
    assert seen.items() <= documented().items()
    defaults = FunctionDefaults()
    names = [name for name in defaults.__struct_fields__ if name in documented()]
    assert {"memory_mb", "timeout_s", "concurrency", "pids", "cpus", "tmp_mb", "log_bytes"} <= set(names)
    written = {**documented(), "egress": egress.parse(documented()["egress"], most=1)}
    built_in = {**msgspec.structs.asdict(defaults), "egress": egress.parse(defaults.egress, most=1)}
    assert {name: written[name] for name in names} == {name: built_in[name] for name in names}
    script, budget = documented()["initscript"], Budget()
    assert (script["deadline_s"], script["rpcs"], script["connections"]) == (
        budget.deadline_s,
        budget.rpcs,
        budget.connections,
    )
    assert (script["memory_mb"] * MB, script["region_mb"] * MB) == (budget.memory_bytes, budget.region_bytes)

    page = " ".join((ROOT / "SPECIFICATION.md").read_text().split())
    reported = {name: int(number) << 10 * bool(kb) for name, number, kb in re.findall(r"`(\w+)` \((\d+)( KB)?\)", page)}
    assert reported.keys() >= {"memory_mb", "pids", "open_files", "cpus", "tmp_mb", "tmp_inodes", "log_bytes"}
    assert {name: getattr(defaults, name) for name in reported} == reported
    assert f"at most {HttpConfig().max_payload_bytes // MB} MB in each direction" in page
    assert f"time ({budget.deadline_s:.0f} s), memory ({budget.memory_bytes // MB} MB and" in page
    assert f"{budget.region_bytes // MB} MB of region), RPCs ({budget.rpcs})" in page


@not_in_uml("takes many times the processor time of hardware")
@case(
    "S3",
    "SIGKILL of a daemon with idle sandboxes, spares and a deploy behind it; start the next one, three times",
    expect="the best of three serves the function again with 2 s of processor time, Python's own start included, and within 2 s,"
    " or within twice the time of the first start where the host is busy",
)
def test_a_killed_worker_serves_again_soon(tmp_path: Path, happened: Happened) -> None:
    took: list[float] = []
    used: list[float] = []
    lives = [RunningDaemon.start(tmp_path / "state", command=FRESH)]
    try:
        first_s = lives[0].start_s
        lives[0].deploy("kept", "def f(event): return event")
        for number in range(RESTARTS):
            assert lives[-1].call("kept", number) == number
            lives[-1].kill()
            began = time.monotonic()
            lives.append(RunningDaemon.start(tmp_path / "state", command=FRESH))
            assert lives[-1].call("kept", number) == number
            took.append(time.monotonic() - began)
            used.append(cpu_s({lives[-1].pid, *lives[-1].pids()}))
    finally:
        for life in reversed(lives):  # the living one first: they share their cgroups' name
            life.close()
    seconds = [", ".join(f"{each:.2f}" for each in measured) for measured in (took, used)]
    happened(f"answered after {seconds[0]} s, with {seconds[1]} s of processors; the first start took {first_s:.2f} s")
    assert min(used) <= RESTART_S
    assert min(took) <= max(RESTART_S, 2 * first_s)
