"""What was acknowledged, and the deaths of PostgreSQL: it starts again, or its standby takes over."""

from __future__ import annotations

import itertools
from urllib.parse import quote

import pytest

from tests.daemon.groups.workers import Workers
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.daemon.test_events import configure, soon
from tests.support.cases import case
from tests.support.servers.postgres_server import PostgresServer, synchronous_standby
from tests.support.threads import in_background

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]
SLOWLY = "import select\ndef f(event): select.select([], [], [], event['s'])"


@case("W12", "kill -9 of PostgreSQL while deploys and events are accepted", expect="all that was acknowledged is there")
def test_what_was_acknowledged_survives_the_death_of_the_database(workers: Workers, server: PostgresServer) -> None:
    third = started(workers)
    accepted, deployed = acknowledged_until_killed(workers, server)
    workers.kill("w1")
    server.start()
    workers.wait_until("w3", w1="gone")
    workers.settled()
    assert set(accepted) <= workers.ended()
    soon(lambda: versions(third) >= len(deployed))


@case(
    "W15",
    "kill -9 of PostgreSQL whose synchronous standby takes over",
    expect="all that was acknowledged is there, the workers go on by themselves",
)
def test_what_was_acknowledged_is_on_the_standby(workers: Workers, server: PostgresServer) -> None:
    with synchronous_standby(server) as standby:
        hosts = ",".join(quote(str(each.path), safe="") for each in (server, standby))
        workers.join(f"postgresql://sockd@/postgres?host={hosts}&target_session_attrs=read-write&search_path=public")
        third = started(workers)
        accepted, deployed = acknowledged_until_killed(workers, server)
        standby.promote()
        soon(lambda: third.run("slowly", {"s": 0}, X_Amz_Invocation_Type="Event").status == 202)
        workers.settled()
        assert set(accepted) <= workers.ended()
        soon(lambda: versions(third) >= len(deployed))
        workers.deploy("counted", "def f(event): return 'after'")
        assert [daemon.run("counted").json for daemon in workers.by_name.values()] == ["after"] * 3
        assert not any("is gone" in line for daemon in workers.by_name.values() for line in daemon.lines)
        workers.close()


def versions(daemon: RunningDaemon) -> int:
    """Return how many deploys of the function that is deployed again and again a worker knows."""
    return int(daemon.manage("GET", "/functions/counted").json["version_number"])


def started(workers: Workers) -> RunningDaemon:
    """Start three workers with a slow function; return the third."""
    *_, third = [workers.start(name) for name in ("w1", "w2", "w3")]
    workers.deploy("slowly", SLOWLY, timeout_s=60, concurrency=1)
    configure(third, "slowly", on_success="directory:done")
    path = "/functions/slowly/event-invoke-config"
    soon(lambda: all("done" in str(each.manage("GET", path).json) for each in workers.by_name.values()))
    return third


def acknowledged_until_killed(workers: Workers, server: PostgresServer) -> tuple[list[str], list[int]]:
    """Kill the server while the first worker accepts events and the second deploys; return what was acknowledged."""
    accepting, deploying, _ = workers.by_name.values()
    accepted, deployed = list[str](), list[int]()
    with in_background(lambda: accept_all(accepting, accepted)) as events_end:
        with in_background(lambda: deploy_all(deploying, deployed)) as deploys_end:
            soon(lambda: len(deployed) > 2 and len(accepted) > 100)
            server.kill()
            deploys_end()
        events_end()
    return accepted, deployed


def accept_all(daemon: RunningDaemon, accepted: list[str]) -> None:
    """Have a function run later again and again, until that is refused."""
    for number in itertools.count():
        answer = daemon.run("slowly", {"s": 0.02, "number": number}, X_Amz_Invocation_Type="Event")
        if answer.status != 202:
            return
        accepted.append(answer.json["requestId"])


def deploy_all(daemon: RunningDaemon, deployed: list[int]) -> None:
    """Deploy again and again, until that is refused."""
    for number in itertools.count(1):
        try:
            daemon.deploy("counted", f"def f(event): return {number}")
        except DeployFailed as error:
            assert error.status == 503
            return
        deployed.append(number)
