"""Spares of templates, and what their first requests cost, counted."""

from __future__ import annotations

import pytest

from tests.daemon.running import Answer, RunningDaemon
from tests.daemon.snapshots.snapshotted import deploy, kill_template, origin, state
from tests.support.cases import case

pytestmark = pytest.mark.root

PAGES = 1000
COUNTS = f"""
import resource
DATA = bytearray({PAGES} << 12)
BEGAN = [0]
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def handler(event, context):
    began = faults()
    for page in range({PAGES}):
        DATA[page << 12] = 1
    return faults() - began
"""
"""Answers how many page faults it took to write to each page of what its init has allocated."""


@pytest.fixture(scope="module")
def config() -> str:
    return "[zygote]\nspares = 1\n"


def spares(daemon: RunningDaemon, name: str) -> int:
    """How many spares of a function's template wait."""
    (row,) = [row for row in daemon.tree()["templates"] if row["function"] == name]
    return int(row["spares"])


def start(daemon: RunningDaemon, name: str) -> Answer:
    answer = daemon.run(name)
    assert origin(answer) == "template"
    return answer


def test_a_spare_of_a_template_has_copied_what_a_first_request_writes_to(daemon: RunningDaemon) -> None:
    function, said = deploy(daemon, "counts", COUNTS)
    assert function["snapshot"] == "serving", said
    daemon.when(lambda: spares(daemon, "counts"))
    first = start(daemon, "counts").json
    assert first >= PAGES / 2  # some may be one huge page
    daemon.wait_line("spares of the template of counts .LATEST copy [0-9]+ rows of pages")
    for _ in range(2):
        daemon.when(lambda: spares(daemon, "counts"))
        assert start(daemon, "counts").json <= first / 10


@case("T12", "kill a template whose spares wait", expect="its spares end with it; no request fails")
def test_spares_of_a_killed_template_end_and_it_is_made_again(daemon: RunningDaemon) -> None:
    deploy(daemon, "orphans", COUNTS)
    daemon.when(lambda: spares(daemon, "orphans"))
    mark = daemon.mark
    kill_template(daemon, "orphans")
    daemon.wait_line("the template of orphans .LATEST is given up: its process has ended", since=mark)
    daemon.when(lambda: state(daemon, "orphans") == ("serving", "") or None)
    daemon.when(lambda: spares(daemon, "orphans"))
    start(daemon, "orphans")


def test_spares_end_with_their_template(daemon: RunningDaemon) -> None:
    deploy(daemon, "ends", COUNTS)
    daemon.when(lambda: spares(daemon, "ends"))
    deploy(daemon, "ends", COUNTS, snapshot=False)
    assert origin(daemon.run("ends")) != "template"
    assert not [row for row in daemon.tree()["templates"] if row["function"] == "ends"]
