"""`sockd events`, `sockd schedule` and `sockd invoke --async`, as processes, against real events over made-up functions."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from sockd.base.config import Config, EventsConfig, HttpConfig
from sockd.events.destinations import Directories
from sockd.events.dispatcher import Functions
from sockd.events.events import Events
from sockd.events.schedules.schedules import Schedules
from sockd.events.sqlite_events import SqliteEvents
from sockd.http.front import Front
from sockd.http.management import events as management_events
from sockd.http.management import schedules as management_schedules
from sockd.http.management.api import LIMITS, Management
from sockd.http.server.listening.sockets import bind_tcp, bind_unix
from sockd.http.server.messages.answers import error_body
from sockd.http.server.server import HttpServer
from tests.http.fake_worker import FakeWorker
from tests.support import sockd_template
from tests.support.fake_clock import FakeClock

REPOSITORY = Path(__file__).resolve().parents[3]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


class Worker(FakeWorker):
    """A fake worker with real events."""

    events: Events


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state directory of a worker that serves."""
    path = tmp_path_factory.mktemp("state")
    (path / "tmp").mkdir()
    ready, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        worker = Worker()
        functions = Functions(
            worker.calls.invoke,
            lambda name, _: worker.functions.info(name),
            lambda name: 1,
            error_body,
            lambda name: "",
        )
        config = EventsConfig(retries=0)
        backend = SqliteEvents.open(path / "e", config)
        recovered = await backend.recover(0.0)
        worker.events = Events(backend, recovered, functions, Directories(path / "d", {}), config)
        worker.events.start()
        schedules = Schedules(worker.events, [], functions.check)
        schedules.start(FakeClock().alarm)
        more = [*management_events.routes(worker.events), *management_schedules.routes(schedules, 1 << 20)]
        front = HttpServer(Front(worker, HttpConfig()), [*bind_tcp("127.0.0.1:0"), bind_unix(path / "run.sock", 0o666)])
        app = Management(worker, Config(), path / "tmp", more).app
        management = HttpServer(app, [bind_unix(path / "sockd.sock")], limits=LIMITS)
        await front.start()
        await management.start()
        worker.url = f"http://127.0.0.1:{front.port}"
        loops.append(asyncio.get_running_loop())
        ready.set()
        await stop.wait()
        await management.aclose(0)
        await front.aclose(0)
        await schedules.aclose()
        await worker.events.aclose()

    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    assert ready.wait(10)
    yield path
    loops[0].call_soon_threadsafe(stop.set)
    thread.join()


@pytest.fixture
def run(state_dir: Path) -> Run:
    known = {key: value for key, value in os.environ.items() if not key.startswith("SOCKD_")}
    environment = {**known, "NO_COLOR": "1", "TZ": "UTC"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sockd", *arguments, "--state-dir", str(state_dir)]
        return sockd_template.run(command, env=environment, timeout=30)

    return run


def test_a_failed_event_from_its_invocation_to_its_deletion(run: Run) -> None:
    done = run("invoke", "raises", "-d", '{"n": 1}', "--async")
    assert done.returncode == 0, done.stderr
    event_id = done.stdout.strip()

    def listed_as_dead() -> str:
        """Wait for the end of the event, and return the list of dead letters."""
        while event_id not in (listed := run("events", "ls", "--state", "dead", "--function", "raises")).stdout:
            assert listed.returncode == 0, listed.stderr
        return listed.stdout

    assert "RetriesExhausted ValueError" in listed_as_dead()
    shown = json.loads(run("events", "show", event_id).stdout)
    assert (shown["payload"], shown["source"], shown["attempts"]) == ({"n": 1}, "run", 1)
    assert run("events", "retry", event_id).stderr.startswith("1 queued again")
    listed_as_dead()
    assert run("events", "rm", "--function", "raises").stderr == "1 are deleted\n"
    gone = run("events", "show", event_id)
    assert gone.returncode == 3 and "no dead letter" in gone.stderr
    assert "no events" in run("events", "ls").stderr


def test_which_dead_letters_must_be_said(run: Run) -> None:
    for command in ("retry", "rm"):
        assert run("events", command).returncode == 2
        assert run("events", command, "x", "--all").returncode == 2


def test_how_events_end_can_be_said(run: Run) -> None:
    assert "defaults" in run("events", "config", "echo").stderr
    done = run("events", "config", "echo", "--retries", "1", "--on-success", "directory:done")
    assert done.stdout.splitlines()[1].split() == ["$LATEST", "1", "default", "directory:done", "dead", "letters"]
    refused = run("events", "config", "echo", "--on-success", "file:///etc")
    assert refused.returncode == 1 and "directory:NAME" in refused.stderr
    assert "defaults" in run("events", "config", "echo", "--reset").stderr


def test_a_schedule_from_its_beginning_to_its_end(run: Run) -> None:
    assert "no schedules" in run("schedule", "ls").stderr
    done = run("schedule", "add", "echo", "0 9 * * 1-5", "--timezone", "Europe/Berlin", "-d", '{"a": 1}')
    assert done.returncode == 0 and done.stderr.startswith("echo: next 20"), done.stderr
    (listed,) = json.loads(run("schedule", "ls", "--json").stdout)
    assert (listed["function"], listed["event"], listed["enabled"]) == ("echo", {"a": 1}, True)
    assert run("schedule", "disable", "echo").stderr == "echo is disabled\n"
    assert "Europe/Berlin  disabled  never" in run("schedule", "ls").stdout
    assert run("schedule", "enable", "echo").returncode == 0
    assert run("schedule", "rm", "echo").returncode == 0
    assert run("schedule", "rm", "echo").returncode == 3


def test_a_schedule_that_cannot_be_says_why(run: Run) -> None:
    unknown = run("schedule", "add", "none", "rate(1 minute)")
    assert (unknown.returncode, unknown.stderr.splitlines()[-1].split()[-1]) == (3, "ls"), unknown.stderr
    assert "schedule ls" not in unknown.stderr
    assert "rate(5 minutes)" in run("schedule", "add", "echo", "now and then").stderr
    assert run("schedule", "add", "echo", "rate(1 minute)", "-d", "{").returncode == 2
