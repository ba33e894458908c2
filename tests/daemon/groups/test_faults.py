"""Faults of a group's machines, and not only of its processes: cut wires, full disks, a database that is slow, away
or killed."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.daemon.gate import Gate
from tests.daemon.groups.machines import Machine, machines
from tests.daemon.groups.test_deaths import accept
from tests.daemon.groups.workers import SILENT_S, WAITS, Workers, front, worker_of
from tests.daemon.running import DeployFailed
from tests.daemon.test_events import configure, later, soon
from tests.support import skewed_clock, sockd_template
from tests.support.caller import Caller
from tests.support.cases import Happened, case
from tests.support.ledger import Ledger
from tests.support.servers.postgres_server import PostgresServer, postgres_server, programs
from tests.support.servers.slow_relay import SlowRelay, slow_relay
from tests.support.small_disk import small_disk
from tests.support.watch import Watch

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]
NAMES = ("w1", "w2", "w3")
DATABASE = "database"
CALLS = 50
EVENTS = 4
SLOWLY = "import select\ndef f(event): select.select([], [], [], event['s'])"
ECHO = "def f(event): return event"
LONGEST_S = 12.0
"""How long the call may take that a worker has when it is cut off: twice what HAProxy waits for a machine, and some."""
DISK_MB = 160
DELAY_S = 0.25
SKEW_S = 3600


@pytest.fixture
def wired(ledger: Ledger) -> Iterator[Mapping[str, Machine]]:
    """Machines of three workers and the database; the test is between them."""
    sockd_template.run((*sockd_template.INTERPRETER, "--version"))  # the template is to be where other tests are
    with machines((*NAMES, DATABASE)) as made:
        yield made


@pytest.fixture
def far_server(wired: Mapping[str, Machine]) -> Iterator[PostgresServer]:
    """PostgreSQL on a machine of its own."""
    with ExitStack() as stack:
        with wired[DATABASE].entered():  # the server alone, and not the test
            server = stack.enter_context(postgres_server(programs(), wired[DATABASE].address))
        yield server


@pytest.fixture
def far_workers(
    wired: Mapping[str, Machine], far_server: PostgresServer, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Workers]:
    """Three workers that have `echo` and `slowly`, each on a machine of its own."""
    broken = request.config.getoption("broken", default="")
    workers = Workers(tmp_path, far_server.dsn("public"), broken=broken, machines=wired)
    try:
        for name in NAMES:
            workers.start(name)
        workers.deploy("echo", ECHO)
        workers.deploy("slowly", SLOWLY, timeout_s=60, concurrency=1)
        configure(workers.by_name["w1"], "slowly", on_success="directory:done")
        yield workers
    finally:
        workers.close()


@pytest.fixture
def port(far_workers: Workers, tmp_path: Path) -> Iterator[int]:
    """The front of the workers on machines."""
    with front(far_workers.addresses, tmp_path) as port:
        yield port


@pytest.fixture
def watch(port: int) -> Iterator[Watch]:
    """A caller of `echo` through the front; a test begins and ends it."""
    caller = Caller.start(port, "echo")
    yield Watch(caller, [])
    caller.close()


@case("W8", "nftables cuts a worker off that is called and runs events", expect="one call fails, others run its events")
def test_a_worker_that_is_cut_off_costs_one_call_and_joins_again(
    port: int, watch: Watch, wired: Mapping[str, Machine], far_workers: Workers, happened: Happened
) -> None:
    home = worker_of(port, "/run/echo")
    other = next(name for name in NAMES if name != home)
    accepted = accept(far_workers.by_name[home], "slowly", EVENTS, s=0.5)
    watch.begin(0.002)
    watch.caller.wait_for(CALLS)
    with wired[home].cut():
        far_workers.wait_until(other, **{home: "gone"})
        watch.caller.wait_for(CALLS)
        far_workers.by_name[other].deploy("echo", ECHO, env={"A": "new"})
    watch.end()
    happened(f"{len(watch.wrong)} of {len(watch.ms)} calls failed, the longest took {max(watch.ms) / 1000:.1f} s")
    assert len(watch.wrong) <= 1 and max(watch.ms) < 1000 * LONGEST_S
    far_workers.wait_until(other, **{home: "serving"})
    far_workers.settled()
    assert far_workers.ended() == accepted
    newest = far_workers.by_name[other].manage("GET", "/functions/echo").json["version_number"]
    soon(lambda: far_workers.by_name[home].manage("GET", "/functions/echo").json["version_number"] == newest)


@case("W9", "nftables cuts a worker off from PostgreSQL alone", expect="its calls succeed, its changes get 503")
def test_a_worker_that_is_cut_off_from_the_database_serves_and_refuses_changes(
    port: int, watch: Watch, wired: Mapping[str, Machine], far_workers: Workers
) -> None:
    home = worker_of(port, "/run/echo")
    other = next(name for name in NAMES if name != home)
    lonely = far_workers.by_name[home]
    accepted = accept(lonely, "slowly", EVENTS, s=0.5)
    watch.begin(0.002)
    with wired[home].cut(wired[DATABASE]):
        far_workers.wait_until(other, **{home: "gone"})
        refused = lonely.run("echo", 1, X_Amz_Invocation_Type="Event")
        assert refused.status == 503 and refused.headers["retry-after"]
        with pytest.raises(DeployFailed) as failed:
            lonely.deploy("echo", ECHO, env={"A": "lost"})
        assert failed.value.status == 503
        watch.caller.wait_for(CALLS)
    far_workers.wait_until(other, **{home: "serving"})
    watch.end()
    assert watch.wrong == []
    far_workers.settled()
    assert far_workers.ended() == accepted


@case("W10", "PostgreSQL is away from all for long, and returns", expect="no call fails, no worker is declared dead")
def test_no_worker_is_declared_dead_because_the_database_was_away(
    port: int, watch: Watch, wired: Mapping[str, Machine], far_workers: Workers
) -> None:
    watch.begin(0.002)
    first, *others = NAMES
    with ExitStack() as later_ones:
        with wired[DATABASE].cut():
            ends = time.monotonic() + 2 * SILENT_S
            while time.monotonic() < ends:
                watch.caller.wait_for(CALLS)
            for name in others:
                later_ones.enter_context(wired[name].cut(wired[DATABASE]))
        soon(lambda: far_workers.members(first)[first]["seen_s"] < SILENT_S / 2)
    soon(lambda: all(row["seen_s"] < SILENT_S / 2 for row in far_workers.members("w1").values()))
    for daemon in far_workers.by_name.values():
        assert later(daemon, "echo", 1)
        assert not any("of the group is gone" in line for line in daemon.lines)
    watch.end()
    assert watch.wrong == []


@case("W11", "PostgreSQL is a quarter of a second away", expect="calls take as long as ever, deploys and events go on")
def test_no_call_waits_for_a_slow_database(server: PostgresServer, tmp_path: Path, happened: Happened) -> None:
    def connect() -> socket.socket:
        link = socket.socket(socket.AF_UNIX)
        link.connect(str(server.path / ".s.PGSQL.5432"))
        return link

    with slow_relay(connect) as relay:
        workers = Workers(tmp_path, f"postgresql://sockd@127.0.0.1:{relay.port}/postgres?search_path=public")
        try:
            _calls_while_slow(workers, relay, happened)
        finally:
            workers.close()


def _calls_while_slow(workers: Workers, relay: SlowRelay, happened: Happened) -> None:
    one, other = (workers.start(name) for name in ("w1", "w2"))
    workers.deploy("echo", ECHO)
    configure(one, "echo", on_success="directory:done")
    caller = Caller.start(other.port, "echo")
    try:
        relay.delay_s = DELAY_S
        watch = Watch(caller, [])
        watch.begin(0.002)
        accepted = accept(one, "echo", EVENTS)
        workers.deploy("echo", ECHO, env={"A": "new"})
        workers.settled()
        soon(lambda: workers.ended() == accepted)
        watch.end()
    finally:
        caller.close()
    happened(f"of {len(watch.ms)} calls half took {watch.p50:.1f} ms, 99 of 100 less than {watch.p99:.1f} ms")
    assert watch.wrong == [] and watch.p99 < 1000 * DELAY_S


@case(
    "W13", "one worker's clock is an hour behind, another's an hour ahead", expect="none is taken for dead, events run"
)
def test_workers_whose_clocks_differ_are_one_group(workers: Workers, tmp_path: Path, gate: Gate) -> None:
    behind, _, right = (
        workers.start(name, env=skewed_clock.environment(tmp_path, skew_s) if skew_s else None)
        for name, skew_s in (("w1", -SKEW_S), ("w2", SKEW_S), ("w3", 0))
    )
    dates = {daemon.request("GET", "/healthz").headers["date"][:-6] for daemon in (behind, right)}
    assert len(dates) == 2
    workers.deploy("waits", WAITS, timeout_s=60, concurrency=2 * len(workers.by_name))
    for daemon in workers.by_name.values():
        configure(daemon, "waits", on_success="directory:done")
    accepted = {event for daemon in workers.by_name.values() for event in accept(daemon, "waits", 2, gate=gate.port)}
    for _ in accepted:
        gate.arrived()
    workers.kill("w2")
    workers.wait_until("w3", w1="serving", w2="gone")
    gate.open()
    for _ in range(2):
        gate.arrived()
        gate.open()
    workers.settled()
    assert workers.ended() == accepted
    assert not any("worker w1 of the group is gone" in line for line in right.lines)


@case(
    "W14",
    "the disk of one worker is full",
    expect="it serves what it has, others deploy, and it follows when there is room",
)
def test_a_worker_with_a_full_disk_serves_on_and_follows_later(workers: Workers, tmp_path: Path) -> None:
    (tmp_path / "w1").mkdir()
    with small_disk(tmp_path / "w1", DISK_MB) as disk:
        full, other = (workers.start(name) for name in ("w1", "w2"))
        workers.deploy("echo", ECHO)
        configure(full, "echo", on_success="directory:done")
        _fill(disk)
        accepted = accept(full, "echo", EVENTS)
        with pytest.raises(DeployFailed) as failed:
            full.deploy("more", {"f.py": ECHO, "data": os.urandom(1 << 20)})
        assert failed.value.status == 507
        files: dict[str, str | bytes] = {"f.py": "def f(event): return 'new'", "data": os.urandom(1 << 20)}
        newest = other.deploy("echo", files)["version_number"]
        workers.settled()
        assert workers.ended() == accepted and other.call("echo", 1) == "new"
        assert full.call("echo", 1) in (1, "new")
        assert workers.members("w2")["w1"]["state"] == "serving"
        (disk / "filling").unlink()
        soon(lambda: full.manage("GET", "/functions/echo").json["version_number"] == newest)
        soon(lambda: full.call("echo", 1) == "new")
        workers.by_name.pop("w1").close()


def _fill(disk: Path) -> None:
    """Write to a disk until nothing goes on it any more."""
    with open(disk / "filling", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))


def test_a_group_goes_on_from_a_dump_of_its_database(
    workers: Workers, server: PostgresServer, tmp_path: Path, gate: Gate
) -> None:
    first = workers.start("w1")
    workers.deploy("waits", WAITS, timeout_s=60, concurrency=1)
    workers.deploy("echo", ECHO, env={"A": "b"})
    configure(first, "waits", on_success="directory:done")
    accepted = accept(first, "waits", 2, gate=gate.port)
    gate.arrived()
    server.copy("again", tmp_path / "sockd.dump")
    workers.kill("w1")
    gate.open()
    workers.join(server.dsn("public", database="again"))
    restored = workers.start("w2")
    for _ in accepted:
        gate.arrived()
        gate.open()
    workers.settled()
    assert workers.ended() == accepted
    assert restored.call("echo", 1) == 1
    assert restored.manage("GET", "/functions/echo/env?values=1").json["env"] == {"A": "b"}
