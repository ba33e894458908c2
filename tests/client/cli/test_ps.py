"""`sockd ps`: the services of a worker, as a table and as JSON."""

from __future__ import annotations

import json

from sockd.client.cli.observe.ps import row_of
from tests.client.cli.serving import Run
from tests.http.worker_answers import SERVICE


def test_services_are_listed_with_their_state_and_last_failure(run: Run) -> None:
    shown = run("ps")
    assert shown.returncode == 0
    headings, row = shown.stdout.splitlines()
    assert headings.split()[:4] == ["name", "state", "v", "port"]
    assert row.split()[:4] == ["store", "running", "3", "11211"] and row.endswith("exit status 3")
    assert json.loads(run("ps", "--json").stdout) == [SERVICE]


def test_a_row_says_what_drains_when_the_next_start_is_and_where_it_is_published() -> None:
    waiting = {**SERVICE, "state": "waiting", "sandbox": "", "draining": 1, "retry_in_s": 1.6, "published": 5000}
    row = row_of(waiting)
    assert row[:5] == ("store", "waiting (+1 draining)", "3", "5000 > 11211", "-")
    assert row[-1].endswith("exit status 3; again in 1.6s")
    taken = "port 5000 of the host: Address already in use"
    assert row_of({**SERVICE, "port_reason": taken})[-1] == taken
