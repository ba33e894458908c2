"""`logs?follow=1`: lines come while their request runs, once, and the rest with its end."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.daemon.gate import Gate
from tests.daemon.running import RunningDaemon
from tests.support.threads import in_background

pytestmark = pytest.mark.root

CODE = """
import sys
from gate import wait
print('imported')
def f(event):
    print('first', event['n'])
    print('not a whole line', end='')
    wait(event['gate'])
    print(' until now')
    if event.get('fails'):
        raise KeyError('missing')
"""


@contextmanager
def following(daemon: RunningDaemon, name: str) -> Iterator[http.client.HTTPResponse]:
    """The lines of a follower that has been subscribed. Its first line is an old record's."""
    connection = daemon.management()
    try:
        connection.request("GET", f"/functions/{name}/logs?follow=1&limit=1")
        yield connection.getresponse()
    finally:
        connection.close()


def next_record(response: http.client.HTTPResponse) -> dict[str, Any]:
    """The next line that is no keep-alive."""
    while not (line := response.readline().strip()):
        pass
    record: dict[str, Any] = json.loads(line)
    return record


@pytest.mark.parametrize("fails", [False, True])
def test_a_line_is_shown_while_its_request_runs_and_only_once(daemon: RunningDaemon, gate: Gate, fails: bool) -> None:
    daemon.deploy("live", {"f.py": CODE, "gate.py": Gate.CODE})
    with in_background(lambda: daemon.run("live", {"gate": gate.port, "n": 1})) as earlier:
        gate.arrived()
        gate.open()
        earlier()
    with following(daemon, "live") as response:
        assert next_record(response)["ended"]  # what there was
        with in_background(lambda: daemon.run("live", {"gate": gate.port, "n": 2, "fails": fails})) as answer:
            gate.arrived()
            part = next_record(response)
            assert (part["text"], part["ended"]) == ("first 2\n", False)
            gate.open()
            request_id = answer().headers["x-amzn-requestid"]
        rest = next_record(response)
        parts = [part]
        while not rest["ended"]:
            parts.append(rest)
            rest = next_record(response)
        assert {each["request_id"] for each in (*parts, rest)} == {request_id}
    (record,) = daemon.logs("live", request_id)
    assert "".join(each["text"] for each in (*parts, rest)) == record["text"]
    assert record["text"].startswith("first 2\nnot a whole line until now\n")
    assert ("[ERROR] KeyError: 'missing'\nTraceback" in record["text"]) is fails


def test_what_a_first_request_prints_while_it_is_imported_is_shown(daemon: RunningDaemon, gate: Gate) -> None:
    daemon.deploy("early", {"f.py": "def f(event): print('old')"})
    daemon.call("early")
    with following(daemon, "early") as response:
        assert next_record(response)["text"] == "old\n"
        code = f"from gate import wait\nprint('imports')\nwait({gate.port})\ndef f(event): print('runs')"
        daemon.deploy("early", {"f.py": code, "gate.py": Gate.CODE})
        with in_background(lambda: daemon.run("early")) as answer:
            gate.arrived()
            assert next_record(response)["text"] == "imports\n"
            gate.open()
            answer()
        texts = []
        while True:
            record = next_record(response)
            texts.append(record["text"])
            if record["ended"]:
                break
        assert "".join(texts) == "runs\n"


def test_a_line_from_before_the_subscription_is_shown_at_once(daemon: RunningDaemon, gate: Gate) -> None:
    daemon.deploy("begun", {"f.py": CODE, "gate.py": Gate.CODE})
    with in_background(lambda: daemon.run("begun", {"gate": gate.port, "n": 1})) as earlier:
        gate.arrived()
        gate.open()
        earlier()
    with in_background(lambda: daemon.run("begun", {"gate": gate.port, "n": 2})) as answer:
        gate.arrived()
        daemon.manage("GET", "/status")  # the worker has read the output by the time it answers
        for _ in range(2):  # each follower has the line, however many there were
            with following(daemon, "begun") as response:
                assert next_record(response)["ended"]
                part = next_record(response)
                assert (part["text"], part["ended"]) == ("first 2\n", False)
        with following(daemon, "begun") as response:
            next_record(response), next_record(response)
            gate.open()
            rest = next_record(response)["text"]
            assert "first" not in rest and rest.startswith("not a whole line")
        answer()
