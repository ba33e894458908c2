"""Asynchronous invocation in a real daemon: bursts, kills, retries and destinations, by HTTP and by boto3."""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tests.daemon.gate import Gate
from tests.daemon.running import DEADLINE_S, Answer, RunningDaemon
from tests.support.threads import at_once, in_background

pytestmark = pytest.mark.root
KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
CODE = "def f(event):\n    return event['id']\n"
FUNCTIONS = 10
BURST = 1000
SOON = "[events]\ndeath_delay_s = 0.1\n"
"""The settings of a daemon after one that was killed."""


@pytest.fixture(scope="module")
def config() -> str:
    return f'[lambda_api.keys]\n{KEY} = "{SECRET}"\n[events]\nretry_delays_s = [0.1, 0.1]\nthrottle_delay_s = 0.1\n'


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[Any]:
    client = boto3.Session(region_name="eu-central-1").client(
        "lambda",
        endpoint_url=daemon.url,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        config=Config(retries={"total_max_attempts": 1}),
    )
    yield client
    client.close()


def later(daemon: RunningDaemon, name: str, event: object, **headers: str) -> str:
    """Have a function run later; returns the id."""
    answer: Answer = daemon.run(name, event, X_Amz_Invocation_Type="Event", **headers)
    assert answer.status == 202, answer
    event_id: str = answer.json["requestId"]
    return event_id


def soon(condition: Callable[[], Any], what: str = "") -> Any:
    """The first true value of a condition on what the daemon has written or says; each look waits for the daemon."""
    ends = time.monotonic() + DEADLINE_S * 2
    while not (value := condition()):
        assert time.monotonic() < ends, what or "it did not come to be"
    return value


def settled(daemon: RunningDaemon) -> dict[str, Any]:
    """The numbers of events, when none is left."""

    def look() -> dict[str, Any] | None:
        events: dict[str, Any] = daemon.status()["events"]
        return events if events["waiting"] + events["running"] == 0 else None

    found: dict[str, Any] = soon(look)
    return found


def records(daemon: RunningDaemon, directory: str) -> list[dict[str, Any]]:
    path = daemon.state / "destinations" / directory
    return [json.loads(file.read_bytes()) for file in path.glob("*.json")]


def configure(daemon: RunningDaemon, name: str, **settings: object) -> None:
    answer = daemon.manage("PUT", f"/functions/{name}/event-invoke-config", json.dumps(settings))
    assert answer.status == 200, answer


def test_a_burst_loses_and_doubles_nothing(daemon: RunningDaemon) -> None:
    for number in range(FUNCTIONS):
        daemon.deploy(f"burst{number}", CODE)
        configure(daemon, f"burst{number}", on_success="directory:burst")
    before = daemon.status()["events"]["attempts"].get("ok", 0)

    def send(client: int) -> list[str]:
        return [later(daemon, f"burst{n % FUNCTIONS}", {"id": f"{client}-{n}"}) for n in range(BURST // 8)]

    accepted = [event_id for ids in at_once(8, send) for event_id in ids]
    events = settled(daemon)
    found = records(daemon, "burst")
    assert Counter(record["requestContext"]["requestId"] for record in found) == Counter(accepted)
    wanted = {f"{client}-{n}" for client in range(8) for n in range(BURST // 8)}
    assert sorted(record["responsePayload"] for record in found) == sorted(wanted)
    assert all(record["requestContext"]["approximateInvokeCount"] == 1 for record in found)
    assert events["attempts"]["ok"] - before == BURST


def test_a_killed_daemon_loses_nothing_that_it_accepted(tmp_path: Path) -> None:
    state = tmp_path / "state"
    accepted: list[str] = []
    first = RunningDaemon.start(state)
    try:
        for number in range(3):
            first.deploy(f"f{number}", CODE)
            configure(first, f"f{number}", on_success="directory:done")

        def send(client: int) -> None:
            try:
                for n in range(1000):
                    accepted.append(later(first, f"f{n % 3}", {"id": n}))
                    if client == 0 and len(accepted) > 100:
                        first.process.kill()
            except (OSError, AssertionError, ValueError, HTTPException):
                return  # the daemon is gone, and what it had not accepted is nobody's

        at_once(4, send)
        first.kill()
    finally:
        first.close()
    assert len(accepted) > 100
    second = RunningDaemon.start(state, SOON)
    try:
        settled(second)
        done = Counter(record["requestContext"]["requestId"] for record in records(second, "done"))
        assert set(accepted) <= set(done)
        assert second.terminate() == 0
    finally:
        second.close()


COUNTED = """
import socket
def f(event):
    with socket.create_connection(("127.0.0.1", event["port"])) as counter:
        counter.sendall(event["id"].encode())
"""


class Tally:
    """Counts who connects, by what they say."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self.seen: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                word = connection.makefile().read()
            if word == "end":
                return
            self.seen[word] += 1

    def close(self) -> None:
        """Count all connections, and end. Safe to call twice."""
        if self._thread.is_alive():
            with socket.create_connection(("127.0.0.1", self.port)) as last:
                last.sendall(b"end")
            self._thread.join()
        self._listener.close()


def test_a_stop_in_the_middle_of_a_burst_runs_nothing_twice(tmp_path: Path) -> None:
    state = tmp_path / "state"
    tally = Tally()
    first = RunningDaemon.start(state)
    try:
        first.deploy("f", COUNTED)
        for n in range(200):
            later(first, "f", {"id": str(n), "port": tally.port})
        assert first.terminate() == 0
    finally:
        first.close()
    second = RunningDaemon.start(state, SOON)
    try:
        settled(second)
        tally.close()  # it takes them in turn: now it has counted all
        assert tally.seen == Counter(map(str, range(200)))
    finally:
        second.close()
        tally.close()


def test_an_event_that_runs_when_the_daemon_ends_is_run_by_the_next(tmp_path: Path, gate: Gate) -> None:
    state = tmp_path / "state"
    files = {"f.py": "from gate import wait\ndef f(event):\n    return wait(event['gate'])\n", "gate.py": Gate.CODE}
    first = RunningDaemon.start(state)
    try:
        first.deploy("slow", files, timeout_s=60)
        configure(first, "slow", on_success="directory:done")
        event_id = later(first, "slow", {"gate": gate.port})
        gate.arrived()
        first.kill()
    finally:
        first.close()
    second = RunningDaemon.start(state, SOON)
    try:
        gate.arrived()
        gate.open()
        settled(second)
        (record,) = records(second, "done")
        assert record["requestContext"]["requestId"] == event_id
        assert record["responsePayload"] == "go"
    finally:
        second.close()


def test_an_error_is_retried_and_then_a_dead_letter(daemon: RunningDaemon) -> None:
    daemon.deploy("bad", "def f(event):\n    print('trying')\n    raise ValueError('no good')\n")
    event_id = later(daemon, "bad", {"a": 1})
    settled(daemon)
    letter = daemon.manage("GET", f"/events/{event_id}").json
    assert (letter["reason"], letter["attempts"], letter["error_type"]) == ("RetriesExhausted", 3, "ValueError")
    assert (letter["payload"], letter["source"]) == ({"a": 1}, "run")
    assert (letter["error"], letter["stack"][-1]) == ("no good", "    raise ValueError('no good')")
    assert len(daemon.logs("bad", event_id)) == 3
    for record in daemon.logs("bad", event_id):
        assert record["text"].startswith("trying\n[ERROR] ValueError: no good\nTraceback (most recent call last):\n")
    assert daemon.manage("GET", f"/traces/{event_id}").json["outcome"] == "ValueError"
    assert [each["id"] for each in daemon.manage("GET", "/events?state=dead&function=bad").json] == [event_id]
    daemon.deploy("bad", "def f(event):\n    return 1\n")
    assert daemon.manage("POST", f"/events/{event_id}/retry").json == {"retried": 1}
    settled(daemon)
    assert daemon.manage("GET", "/events?function=bad").json == []
    assert b"sockd_events_dead" in daemon.request("GET", "/metrics").body


def test_a_crash_of_a_function_and_its_end(daemon: RunningDaemon) -> None:
    daemon.deploy("crash", "import os\ndef f(event):\n    os._exit(3)\n")
    event_id = later(daemon, "crash", {})
    settled(daemon)
    assert daemon.manage("GET", f"/events/{event_id}").json["error_type"] == "Runtime.ExitError"
    assert daemon.remove("crash").status == 200
    assert daemon.run("crash", {}, X_Amz_Invocation_Type="Event").status == 404


def test_what_waits_for_a_removed_function_is_kept(daemon: RunningDaemon, gate: Gate) -> None:
    files = {"f.py": "from gate import wait\ndef f(event):\n    return wait(event['gate'])\n", "gate.py": Gate.CODE}
    daemon.deploy("gone", files, concurrency=1, timeout_s=30)
    ids = [later(daemon, "gone", {"gate": gate.port}) for _ in range(3)]
    gate.arrived()
    states = [each["state"] for each in daemon.manage("GET", "/events?state=waiting&function=gone").json]
    assert states == ["running", "waiting", "waiting"]
    with in_background(lambda: daemon.remove("gone").status) as removed:
        while daemon.manage("GET", "/functions/gone").status != 404:
            pass
        gate.open()
        assert removed() == 200
    settled(daemon)
    letters = daemon.manage("GET", "/events?state=dead&function=gone").json
    assert {letter["id"] for letter in letters} == set(ids[1:])
    assert daemon.manage("DELETE", "/events?function=gone").json == {"deleted": 2}


def test_boto3_configures_and_invokes(daemon: RunningDaemon, client: Any) -> None:
    daemon.deploy("first", "def f(event):\n    if event.get('bad'):\n        raise KeyError('x')\n    return event\n")
    daemon.deploy("second", "def f(event):\n    return event['requestPayload']\n")
    exceptions = client.exceptions
    with pytest.raises(exceptions.ResourceNotFoundException):
        client.get_function_event_invoke_config(FunctionName="first")
    arn = client.get_function(FunctionName="second")["Configuration"]["FunctionArn"]
    put = client.put_function_event_invoke_config(
        FunctionName="first",
        MaximumRetryAttempts=1,
        MaximumEventAgeInSeconds=120,
        DestinationConfig={"OnSuccess": {"Destination": arn}, "OnFailure": {"Destination": "directory:failed"}},
    )
    assert put["FunctionArn"].endswith(":first:$LATEST")
    changed = client.update_function_event_invoke_config(FunctionName="first", MaximumRetryAttempts=0)
    assert (changed["MaximumRetryAttempts"], changed["MaximumEventAgeInSeconds"]) == (0, 120)
    assert changed["DestinationConfig"] == put["DestinationConfig"]
    got = client.get_function_event_invoke_config(FunctionName="first")
    assert {key: got[key] for key in changed if key != "ResponseMetadata"} == {
        key: changed[key] for key in changed if key != "ResponseMetadata"
    }
    configs = client.list_function_event_invoke_configs(FunctionName="first")["FunctionEventInvokeConfigs"]
    assert [each["MaximumRetryAttempts"] for each in configs] == [0]
    for wrong in ({"MaximumRetryAttempts": 2, "DestinationConfig": {"OnSuccess": {"Destination": "file:///etc"}}},):
        with pytest.raises(exceptions.InvalidParameterValueException):
            client.put_function_event_invoke_config(FunctionName="first", **wrong)

    configure(daemon, "second", on_success="directory:second")
    answer = client.invoke(FunctionName="first", InvocationType="Event", Payload=b'{"n": 7}')
    assert (answer["StatusCode"], answer["Payload"].read()) == (202, b"")
    assert uuid.UUID(answer["ResponseMetadata"]["RequestId"]).version == 4
    assert client.invoke_async(FunctionName="first", InvokeArgs=b'{"bad": 1}')["Status"] == 202
    settled(daemon)
    (record,) = records(daemon, "second")
    assert record["responsePayload"] == {"n": 7}
    (failed,) = records(daemon, "failed")
    assert failed["requestContext"]["approximateInvokeCount"] == 1
    assert failed["responsePayload"]["errorType"] == "KeyError"
    client.delete_function_event_invoke_config(FunctionName="first")
    with pytest.raises(exceptions.ResourceNotFoundException):
        client.delete_function_event_invoke_config(FunctionName="first")


def test_a_schedule_goes_on_in_the_next_daemon_and_ticks_once(tmp_path: Path) -> None:
    state = tmp_path / "state"
    wanted = json.dumps({"function": "f", "expression": "rate(1 second)", "event": {"id": 1}})
    first = RunningDaemon.start(state)
    try:
        first.deploy("f", "def f(event):\n    return event['time']\n")
        configure(first, "f", on_success="directory:done")
        assert first.manage("PUT", "/schedules/s", wanted).status == 200
        soon(lambda: len(records(first, "done")) >= 2)
        first.kill()
    finally:
        first.close()
    before = len(records(first, "done"))
    second = RunningDaemon.start(state, SOON)
    try:
        soon(lambda: len(records(second, "done")) >= before + 2)
        assert second.remove("f").status == 200
        assert second.manage("GET", "/schedules").json == []
        settled(second)
        times = [record["requestPayload"]["time"] for record in records(second, "done")]
        assert len(times) == len(set(times))  # each tick has its moment, and made one event
        assert second.terminate() == 0
    finally:
        second.close()


def test_an_alias_has_events_of_its_own(daemon: RunningDaemon, client: Any) -> None:
    daemon.deploy("staged", "def f(event):\n    return 'old'\n")
    client.publish_version(FunctionName="staged")
    client.create_alias(FunctionName="staged", Name="live", FunctionVersion="1")
    daemon.deploy("staged", "def f(event):\n    return 'new'\n")
    for qualifier, directory in (("live", "live"), ("$LATEST", "latest")):
        client.put_function_event_invoke_config(
            FunctionName="staged",
            Qualifier=qualifier,
            DestinationConfig={"OnSuccess": {"Destination": f"directory:{directory}"}},
        )
    client.invoke(FunctionName="staged", Qualifier="live", InvocationType="Event")
    client.invoke(FunctionName="staged", InvocationType="Event")
    wanted = {"function": "staged", "qualifier": "live", "expression": "rate(1 second)"}
    assert daemon.manage("PUT", "/schedules/staged", json.dumps(wanted)).status == 200
    soon(lambda: len(records(daemon, "live")) >= 2)
    assert daemon.manage("DELETE", "/schedules/staged").status == 200
    settled(daemon)
    (latest,) = records(daemon, "latest")
    assert (latest["responsePayload"], latest["requestContext"]["functionArn"][-7:]) == ("new", "$LATEST")
    for record in records(daemon, "live"):
        assert record["requestContext"]["functionArn"].endswith(":staged:live")
        assert (record["responsePayload"], record["responseContext"]["executedVersion"]) == ("old", "1")
    answer = daemon.manage("PUT", "/schedules/none", json.dumps({**wanted, "qualifier": "nobody"}))
    assert answer.status == 404
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.invoke(FunctionName="staged", Qualifier="nobody", InvocationType="Event")


def test_a_damaged_store_is_not_started_upon(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "events.sqlite").write_bytes(b"no database at all" * 1000)
    daemon = RunningDaemon.launch(state)
    try:
        daemon.wait_line("events.sqlite is damaged .* move events.sqlite")
        assert daemon.wait() == 1
        assert not any("Traceback" in line for line in daemon.lines)
    finally:
        daemon.close()
