"""Two workers of one group: what is deployed to one is served by the other, and what was acknowledged survives any death."""

from __future__ import annotations

import functools
import http.client
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemon.images.test_images import CONFIG, app, deploy, upload
from tests.daemon.kernel_view import cgroup_directories, mounts_under
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.initscripts.guests import module
from tests.support.images.image_layouts import python_files, write_layout
from tests.support.ledger import Ledger
from tests.support.servers.package_index import PackageIndex, sdist
from tests.support.servers.postgres_server import PostgresServer, postgres_server, programs

pytestmark = pytest.mark.root
StartWorker = Callable[[str], RunningDaemon]
SOON_S, POLLED_S = 1.0, 2.0
QUIET = "ALTER TABLE functions DISABLE TRIGGER notify_of_functions"


@pytest.fixture
def server(ledger: Ledger) -> Iterator[PostgresServer]:
    with postgres_server(programs()) as server:
        yield server


class Group:
    """What the workers of a group share."""

    def __init__(self, path: Path, server: PostgresServer, index_url: str) -> None:
        self.server = server
        self._index_url = index_url
        for name in ("chunks", "images.key", "secret.key"):
            (path / name).mkdir() if name == "chunks" else (path / name).write_bytes(os.urandom(32))
            (path / name).chmod(0o755 if name == "chunks" else 0o600)
        self._path = path

    def config(self, name: str) -> str:
        path, dsn = self._path, self.server.dsn("public")
        return (
            f'[packages]\nindex_url = "{self._index_url}"\n[group]\nname = "g"\n[postgres]\ndsn = "{dsn}"\nworker = "{name}"\n'
            f'[images]\nstore = "{path}/chunks"\nkey_file = "{path}/images.key"\n[secrets]\nkey_file = "{path}/secret.key"\n'
        )


@pytest.fixture
def start(tmp_path: Path, group: Group) -> Iterator[StartWorker]:
    """Starts workers of the group, each with a state directory of its name; at the end nothing of any of them is left."""
    daemons: list[RunningDaemon] = []

    def start(name: str) -> RunningDaemon:
        daemons.append(RunningDaemon.start(tmp_path / name, group.config(name)))
        return daemons[-1]

    yield start
    for daemon in daemons:
        daemon.close()
        assert cgroup_directories(daemon.cgroup) == [] and not daemon.pids()
    assert mounts_under(tmp_path) == []


@pytest.fixture
def group(tmp_path: Path, server: PostgresServer, index: PackageIndex) -> Group:
    return Group(tmp_path, server, index.url)


def answers(daemon: RunningDaemon, name: str, value: object) -> Callable[[], bool]:
    def is_answered() -> bool:
        answer = daemon.run(name)
        return answer.status == 200 and answer.json == value

    return is_answered


def returning(value: object) -> str:
    return f"def f(event): return {value!r}"


def test_what_is_deployed_to_one_worker_answers_through_the_other_within_a_second(
    start: StartWorker, server: PostgresServer
) -> None:
    workers = [start(name) for name in ("a", "b")]
    for number in range(12):
        here, there = workers[number % 2], workers[1 - number % 2]
        here.deploy("f", returning(number), env={"A": "b"})
        there.when(answers(there, "f", number), deadline_s=SOON_S)
    server.run(QUIET)
    for number in range(12, 16):
        here, there = workers[number % 2], workers[1 - number % 2]
        here.deploy("f", returning(number))
        there.when(answers(there, "f", number), deadline_s=POLLED_S)
    workers[0].remove("f")
    workers[1].when(lambda: workers[1].run("f").status == 404, deadline_s=POLLED_S)


def test_an_acknowledged_deploy_survives_the_death_of_its_worker_and_of_the_database(
    start: StartWorker, server: PostgresServer
) -> None:
    one, other = start("a"), start("b")
    for number in range(5):
        one.deploy(f"f{number}", returning(number))
    one.kill()
    for number in range(5):
        other.when(answers(other, f"f{number}", number))
    server.crash()
    assert other.call("f1") == 1
    failed, refused = failure_of(other, "f9", 9), other.remove("f1")
    assert (failed.status, failed.type) == (refused.status, refused.json["errorType"]) == (503, "Database.Unavailable")
    assert refused.headers["retry-after"]
    assert other.call("f1") == 1
    server.start()
    other.when(lambda: not deploy_fails(other, "f9", 9))
    other.kill()
    third = start("c")
    for number in (0, 1, 2, 3, 4, 9):
        assert third.call(f"f{number}") == number


def deploy_fails(daemon: RunningDaemon, name: str, value: object) -> bool:
    try:
        daemon.deploy(name, returning(value))
    except DeployFailed as error:
        assert error.status == 503
        return True
    return False


def test_acknowledged_deploys_survive_deaths_in_the_middle(start: StartWorker, server: PostgresServer) -> None:
    doomed, other = start("a"), start("b")
    acknowledged: dict[str, int] = {}
    ended = threading.Event()

    def deploy_all(daemon: RunningDaemon, name: str) -> None:
        for number in itertools.count():
            if ended.is_set():
                return
            try:
                daemon.deploy(f"{name}{number % 3}", returning(number))
                acknowledged[f"{name}{number % 3}"] = number
            except DeployFailed as error:
                assert error.status == 503
            except (OSError, http.client.HTTPException):
                return

    def is_at_least(name: str, number: int) -> bool:
        answer = other.run(name)
        return answer.status == 200 and int(answer.json) >= number

    threads = [threading.Thread(target=deploy_all, args=each) for each in ((doomed, "x"), (other, "y"))]
    for thread in threads:
        thread.start()
    other.when(lambda: acknowledged.get("x2", 0) and acknowledged.get("y2", 0))
    server.crash()
    server.start()
    before = dict(acknowledged)
    other.when(lambda: acknowledged["x0"] > before["x0"] and acknowledged["y0"] > before["y0"])
    doomed.kill()
    threads[0].join()
    ended.set()
    threads[1].join()
    for name, number in acknowledged.items():
        other.when(functools.partial(is_at_least, name, number), deadline_s=POLLED_S)


def test_no_warm_request_fails_while_the_database_answers_nothing(start: StartWorker, server: PostgresServer) -> None:
    one, other = start("a"), start("b")
    one.deploy("f", returning(1))
    other.when(answers(other, "f", 1))
    frozen = [server.pid, *children_of(server.pid)]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        refused: list[DeployFailed] = []
        deploying = threading.Thread(target=lambda: refused.append(failure_of(one, "f", 2)))
        deploying.start()
        while deploying.is_alive():
            assert one.call("f") == other.call("f") == 1
        deploying.join()
        assert (refused[0].status, refused[0].type) == (503, "Database.Unavailable")
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    one.deploy("f", returning(3))
    other.when(answers(other, "f", 3), deadline_s=POLLED_S)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def failure_of(daemon: RunningDaemon, name: str, value: object) -> DeployFailed:
    with pytest.raises(DeployFailed) as failed:
        daemon.deploy(name, returning(value))
    return failed.value


def test_what_is_built_or_uploaded_on_one_worker_runs_on_the_other(
    tmp_path: Path, start: StartWorker, index: PackageIndex
) -> None:
    one, other = start("a"), start("b")
    index.add(sdist("once", "1.0", "return make(directory, {'once.py': 'WHO = 7'})", index=index.url))
    files = {"f.py": "import once\ndef f(event): return once.WHO", "requirements.txt": "once"}
    one.deploy("builds", files, build=True)
    other.when(answers(other, "builds", 7))
    assert index.requests.count("/simple/said-once-built/") == 1
    write_layout(tmp_path / "layout", [python_files().tar(), app("one")], CONFIG)
    image = upload(one, tmp_path / "layout")
    deploy(one, "in-image", image)
    other.when(lambda: other.run("in-image").status == 200)
    assert other.call("in-image", {"n": 1})["event"] == {"n": 1}


def test_a_worker_brings_its_functions_along_when_it_joins(tmp_path: Path, start: StartWorker) -> None:
    state = tmp_path / "a"
    alone = RunningDaemon.start(state)
    try:
        files = {"f.py": "import data.words\ndef f(event): return data.words.WORD", "data/words.py": "WORD = 'old'"}
        alone.deploy("f", files, env={"SECRET": "4711"})
        alone.deploy_with_initscript("scripted", {"f.py": returning(7)}, module("(call $exit (i32.const 0))"))
        assert alone.terminate() == 0
    finally:
        alone.close()
    workers = start("a"), start("b")
    for worker in workers:
        assert worker.call("f") == "old" and worker.call("scripted") == 7
        assert worker.manage("GET", "/functions/f/env?values=1").json["env"] == {"SECRET": "4711"}
    assert not (state / "registry.sqlite").exists() and (state / "registry.joined.sqlite").exists()


def test_a_group_without_a_shared_store_is_refused(tmp_path: Path, server: PostgresServer) -> None:
    config = f'[postgres]\ndsn = "{server.dsn("public")}"\n[group]\nname = "g"\n'
    daemon = RunningDaemon.launch(tmp_path / "state", config)
    try:
        assert daemon.wait() == 1
        assert any("images.store and images.key_file must be set" in line for line in daemon.lines), daemon.lines
    finally:
        daemon.close()
