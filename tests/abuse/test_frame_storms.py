"""Group K: frames whose bodies the daemon would parse for long, and answers over their limit."""

from __future__ import annotations

import pytest

from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker
from zygote import protocol

STORM = """
import os, sys

def frame(kind, body):
    scope = sys._getframe()
    while "number" not in scope.f_locals:
        scope = scope.f_back
    number = scope.f_locals["number"]
    return len(body).to_bytes(4, "little") + bytes((kind, 0, 0, 0)) + number.to_bytes(8, "little") + body

def send(data):
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(3, rest):]

def answers(event):
    send(frame(event["kind"], bytes(16 if event["timed"] else 0) + event["body"].encode() * event["times"]))

def raises(event):
    raise ValueError(event["body"] * event["times"])

def f(event):
    return globals()[event["do"]](event)
"""
LIMIT_BYTES = 6 << 20
MORE = {"kind": protocol.RESULT, "timed": True, "body": "x", "times": LIMIT_BYTES + 1}


@pytest.fixture
def storm(house: PrivateWorker) -> PrivateWorker:
    """The worker with the function."""
    house.deploy("storm", STORM, timeout_s=60)
    return house


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        ("FAILED", {"kind": protocol.FAILED, "timed": True, "body": '"a",', "times": 1_700_000}),
        ("MODULES", {"kind": protocol.MODULES, "timed": False, "body": '["k","m",1],', "times": 80_000}),
        ("HEAD", {"kind": protocol.HEAD, "timed": False, "body": '["a","b"],', "times": 7000}),
        ("READY", {"kind": protocol.READY, "timed": True, "body": "x", "times": 1000}),
        ("RESULT", MORE),
    ],
)
@case(
    "K5",
    "forge a FAILED, MODULES, HEAD or RESULT of megabytes",
    expect="refused by its header; the neighbour is answered",
)
def test_a_frame_over_its_limit_is_refused_by_its_header(
    storm: PrivateWorker, happened: Happened, kind: str, event: dict[str, object]
) -> None:
    with storm.watching() as watch:
        answer = storm.invoke("storm", {"do": "answers", **event})
    happened(f"{kind}: {answer.status} {answer.json['errorMessage']}; {watch}")
    assert answer.status == 502
    assert f"{kind} of " in answer.json["errorMessage"] and "limit" in answer.json["errorMessage"]
    assert len(answer.body) < 1000
    assert watch.wrong == []


@case("K5", "answer with all that a RESULT may have; raise an error of 10 MB", expect="neither is over its limit")
def test_no_answer_comes_out_larger_than_answers_may_be(storm: PrivateWorker, happened: Happened) -> None:
    large = storm.invoke("storm", {"do": "answers", **MORE, "times": LIMIT_BYTES})
    failed = storm.invoke("storm", {"do": "raises", "body": "\0é", "times": 5_000_000})
    assert (large.status, len(large.body)) == (200, LIMIT_BYTES)
    assert (failed.status, failed.json["errorType"]) == (500, "ValueError")
    assert len(failed.body) <= protocol.FAILED_MAX_BYTES + 1000
    assert failed.json["errorMessage"].endswith(" more characters]")
    happened(f"an answer of {len(large.body)} bytes, an error of {len(failed.body)}")
