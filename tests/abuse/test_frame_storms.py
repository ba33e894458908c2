"""Group K: frames that cost the daemon more than their sender, and bodies that it would parse for long."""

from __future__ import annotations

import json
import socket
from contextlib import closing

import pytest

from sockd_zygote import protocol
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker

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

def yields(event):
    while True:
        yield b"x"

def forges(event):
    send(frame(HEAD, b"[200,[]]"))
    many = frame(CHUNK, b"x") * 3855
    while True:
        send(many)

def answers(event):
    send(frame(event["kind"], bytes(16 if event["timed"] else 0) + event["body"].encode() * event["times"]))

def raises(event):
    raise ValueError(event["body"] * event["times"])

def f(event):
    return globals()[event["do"]](event)
"""
STORM = STORM.replace("HEAD", str(protocol.HEAD)).replace("CHUNK", str(protocol.CHUNK))
PIECES_FOR_A_CALL = 2000
"""Most pieces of a storm that are handled while the neighbour has one answer: of today's 128 in a turn, 15 turns."""
LIMIT_BYTES = 6 << 20
MORE = {"kind": protocol.RESULT, "timed": True, "body": "x", "times": LIMIT_BYTES + 1}


class Chunks:
    """A streamed answer as its client reads it: the chunks that the daemon has written."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._file = self._socket.makefile("rb")
        self.count = self.bytes = 0

    def ask(self, event: object) -> None:
        """Have the function begin."""
        body = json.dumps(event).encode()
        head = b"POST /run/storm HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._socket.sendall(head + body)
        assert b" 200 " in self._file.readline()
        while self._file.readline() != b"\r\n":
            continue

    def read(self, size: int) -> None:
        """So many bytes more, or some more than that."""
        until = self.bytes + size
        while self.bytes < until:
            length = int(self._file.readline(), 16)
            self._file.read(length + 2)
            self.count += 1
            self.bytes += length

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture
def storm(worker: PrivateWorker) -> PrivateWorker:
    """The worker with the function."""
    worker.deploy("storm", STORM, timeout_s=60)
    return worker


@pytest.mark.parametrize("how", ["yields", "forges"])
@case(
    "K5",
    "yield single bytes, or forge CHUNKs of one byte, without end",
    expect="the neighbour is answered as ever; the pieces are joined",
)
def test_small_pieces_cost_others_little(storm: PrivateWorker, happened: Happened, how: str) -> None:
    with closing(Chunks(storm.daemon.port)) as chunks:
        chunks.ask({"do": how})
        chunks.read(10_000)  # past the pieces that are passed on one by one
        first = chunks.count, chunks.bytes
        with storm.watching(gap_s=0.0) as watch:
            for _ in watch.rounds():
                chunks.read(2000)
        count, size = chunks.count - first[0], chunks.bytes - first[1]
    calls = len(watch.ms)
    happened(f"{how}: {size} pieces in {count} writes, {calls} calls of the neighbour; {watch}")
    assert watch.wrong == []
    assert size / calls < PIECES_FOR_A_CALL
    assert size / count > 4


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
