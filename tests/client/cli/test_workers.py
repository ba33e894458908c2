"""`sockd workers` and `sockd drain` against a fake worker."""

from __future__ import annotations

import json

from tests.client.cli.serving import Run, Served


def test_the_workers_are_listed_and_one_that_is_gone_says_who_has_its_events(run: Run, served: Served) -> None:
    first, second = run("workers").stdout.splitlines()[1:]
    assert first.split()[:4] == ["w1", "127.0.0.1:5000", "serving", "2"]
    assert second.startswith("w2") and "gone, its events: w1" in second
    assert [row["name"] for row in json.loads(run("workers", "--json").stdout)] == ["w1", "w2"]


def test_a_worker_drains_and_comes_back(run: Run, served: Served) -> None:
    assert "503" in run("drain").stdout
    assert served.worker.calls.leaving
    assert json.loads(run("drain", "--end", "--json").stdout) == {"draining": False}
    assert not served.worker.calls.leaving
