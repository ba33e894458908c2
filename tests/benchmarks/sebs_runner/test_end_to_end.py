"""Published functions on a worker of their own, cold, with their outputs checked; and on a worker that is running.

Packages come from the worker's index, so these need one. SOCKD_SEBS_ALL=1 runs the benches with heavy packages, too.
"""

from __future__ import annotations

import csv
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.sebs_runner.benches import find
from benchmarks.sebs_runner.experiment import Kind, Outcome
from benchmarks.sebs_runner.packaging import Arm
from benchmarks.sebs_runner.reports import write_csv
from benchmarks.sebs_runner.runner import Choice, Options, Runner
from benchmarks.sebs_runner.suite import SUITE
from sockd.client.console.output import Failure
from tests.daemon.running import RunningDaemon
from tests.support.ledger import Ledger

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

PURE = ("010", "110", "501", "502", "503")
HEAVY = ("120", "130", "220", "504", "imgrec", "imgrec-wasm")
OWN, SHIM = Choice(Arm.OWN), Choice(Arm.SHIM)
INITSCRIPTS = (Choice(Arm.SHIM, initscript=True), Choice(Arm.OWN, initscript=True))


@pytest.fixture(autouse=True)
def ledger() -> Ledger:
    """Not checked after each test: the runner, its worker and its S3 live as long as the module."""
    return Ledger()


@pytest.fixture(scope="module", autouse=True)
def ledger_of_module() -> Iterator[None]:
    ledger = Ledger()
    yield
    ledger.check()


@pytest.fixture(scope="module")
def runner(cache: Path, ledger_of_module: None) -> Iterator[Runner]:
    """A private worker that keeps no sandbox."""
    with Runner(Options(cache, always_cold=True), []) as runner:
        yield runner


def run(
    runner: Runner, name: str, *choices: Choice, kinds: tuple[Kind, ...] = (Kind.COLD,), repetitions: int = 1
) -> list[Outcome]:
    try:
        return runner.run(find(name), "test", choices, kinds, repetitions=repetitions)
    except Failure as failure:
        if failure.why.startswith("Packages"):
            pytest.skip(f"no package index can be reached: {failure.message[:200]}")
        raise


@pytest.mark.parametrize("name", PURE)
def test_functions_without_inputs_answer_what_they_must(runner: Runner, name: str) -> None:
    (outcome,) = run(runner, name, SHIM)
    (sample,) = outcome.samples
    assert sample.cold and sample.times["reads"] == []


@pytest.mark.parametrize("name", ["210", "311"])
def test_functions_with_inputs_answer_the_same_with_every_storage(
    runner: Runner, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(runner.store.env, "SOCKD_STORAGE_GRACE_S", "10")  # an initscript that begins late is waited for
    own, shim, *prefetched = run(runner, name, OWN, SHIM, *with_initscripts(), repetitions=2)
    for outcome in (own, shim, *prefetched):
        assert len(outcome.samples) == 2 and all(sample.cold for sample in outcome.samples)
        assert {len(sample.times["reads"]) for sample in outcome.samples} == {1}
        assert outcome.samples[0].read_bytes > 2_000_000
    assert all(sample.prefetched_reads == 0 for sample in shim.samples)
    for sample in (sample for outcome in prefetched for sample in outcome.samples):
        assert sample.trace is not None and sample.trace["initscript"] == "exit"
        assert sample.trace["replies"]["used"] >= 1
    write_csv(tmp_path / "result.csv", [own, shim, *prefetched])
    with (tmp_path / "result.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 and {row["arm"] for row in rows} == {"own", "shim"}


def with_initscripts() -> tuple[Choice, ...]:
    if importlib.util.find_spec("wasmtime") is None or importlib.util.find_spec("ziglang") is None:
        pytest.skip("the extra `initscripts` is not installed")
    return INITSCRIPTS


def test_starts_from_a_snapshot_answer_the_same_and_fetch_the_input(cache: Path, tmp_path: Path) -> None:
    # The worker of the other tests has the state in their cache.
    (tmp_path / SUITE.directory).symlink_to(cache / SUITE.directory)
    with Runner(Options(tmp_path, always_cold=True, snapshot=True), []) as runner:
        for outcome in run(runner, "210", SHIM, *with_initscripts()[:1], repetitions=2):
            for sample in outcome.samples:
                assert sample.headers["x-sockd-origin"] == "template"
                assert sample.cold and len(sample.times["reads"]) == 1


@pytest.mark.skipif(os.environ.get("SOCKD_SEBS_ALL") != "1", reason="heavy packages: SOCKD_SEBS_ALL=1 runs it")
@pytest.mark.parametrize("name", HEAVY)
def test_functions_with_heavy_packages_answer_what_they_must(runner: Runner, name: str) -> None:
    for outcome in run(runner, name, OWN, SHIM):
        assert outcome.samples[0].cold


def test_a_running_worker_is_made_to_start_anew_and_left_without_our_functions(
    cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    daemon = RunningDaemon.start(tmp_path_factory.mktemp("running") / "state")
    try:
        with Runner(Options(cache, state_dir=daemon.state), []) as runner:
            cold, warm = run(runner, "110", OWN, kinds=(Kind.COLD, Kind.WARM), repetitions=2)
        assert [sample.cold for sample in cold.samples] == [True, True]
        assert [sample.cold for sample in warm.samples] == [False, False]
        assert daemon.manage("GET", "/functions").json == []
    finally:
        daemon.close()
