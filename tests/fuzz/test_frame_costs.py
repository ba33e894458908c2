"""What a sandbox, a Zygote or the engine may make the daemon's loop do at one time: a bounded number of frames, of bytes and
of Python's calls, and a bounded amount of memory, whatever they send.

Counted, not timed: a call takes 30 to 100 ns, so that MOST_CALLS are 1 to 4 ms, and what is one call of C (parsing JSON,
copying) is bounded by its bytes.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sockd.isolation.farm.control import ControlWire, ZygoteGone
from sockd.isolation.farm.imported import read_report
from sockd.isolation.sandbox.channel import Channel
from sockd.isolation.sandbox.conversation import Conversation
from sockd.isolation.sandbox.frames import take
from sockd.isolation.sandbox.read_turns import FRAMES_PER_TURN, READ_BYTES
from sockd.isolation.sandbox.stream import HELD_BYTES, Joined
from sockd_initscripts.client.engine_wire import SO_SNDBUFFORCE, EngineWire
from sockd_initscripts.report import AppRead, RpcRecord, RunReport
from sockd_initscripts.wire import Done, encode_done
from sockd_zygote.protocol import CHUNK, FAILED, HEAD, MODULES, PRIMED, READY, RESULT
from tests.fuzz.fuzzing import fuzz
from tests.support.harness import MAX_ANSWER_BYTES, Harness
from tests.support.ledger import Ledger

MOST_CALLS = 40_000
MOST_PARSED = 512 * 1024 + 16
"""Bytes of a body that is parsed on the loop."""
MOST_KEPT = 3 * MAX_ANSWER_BYTES + 2 * HELD_BYTES
"""Memory for one sandbox: an answer as it comes, as it goes, and the copy between the two."""

pytestmark = pytest.mark.root

HANDLER = """
import os, sys

def handler(event):
    frame = sys._getframe()
    while "number" not in frame.f_locals:
        frame = frame.f_back
    number = frame.f_locals["number"].to_bytes(8, "little")
    for kind, before, part, times, after, repeat in event:
        body = b"".join((bytes.fromhex(before), part.encode() * times, bytes.fromhex(after)))
        data = memoryview((len(body).to_bytes(4, "little") + bytes((kind, 0, 0, 0)) + number + body) * repeat)
        while data:
            data = data[os.write(3, data):]
    return "plain"
"""
Frame = tuple[int, str, str, int, str, int]
"""Kind; the body: what comes before in hex, a text so many times, what comes after in hex; how many such frames."""
TIMES = bytes(16)


def framed(kind: int, before: bytes, part: str, times: int, after: bytes = b"", repeat: int = 1) -> Frame:
    return kind, before.hex(), part, times, after.hex(), repeat


class Costs:
    """What each turn that a sandbox had of the loop took."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget what has been counted."""
        self.frames = self.bytes = self.calls = self.parsed = 0
        """The most in one turn; parsed: the longest body but of answers and pieces."""

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count Python's calls, its own and those into C."""
        calls = 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            yield
        finally:
            sys.setprofile(before)
            self.calls = max(self.calls, calls)


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Costs:
    """Count the costs of all channels from now on."""
    costs = Costs()
    handle = Channel._handle

    def counted_handle(channel: Channel, size: int) -> int:
        with costs.counted():
            count = handle(channel, size)
        costs.frames, costs.bytes = max(costs.frames, count), max(costs.bytes, size)
        return count

    def counted_take(conversation: Conversation, kind: int, number: int, body: bytes) -> None:
        if kind not in (RESULT, CHUNK):
            costs.parsed = max(costs.parsed, len(body))
        take(conversation, kind, number, body)

    monkeypatch.setattr(Channel, "_handle", counted_handle)
    monkeypatch.setattr("sockd.isolation.sandbox.sandbox.take", counted_take)
    return costs


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    harness = Harness(tmp_path_factory.mktemp("harness"))
    try:
        yield harness
    finally:
        harness.close()


@pytest.fixture(autouse=True)
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    """The count before and after each test, the harness there already."""
    if "harness" in request.fixturenames:
        request.getfixturevalue("harness")
    ledger = Ledger()
    yield ledger
    if "harness" in request.fixturenames:
        request.getfixturevalue("harness").settle()
    ledger.check()


times = st.sampled_from([0, 1, 10, 1000, 5000, 11_000, 20_000, 100_000, 600_000])
parts = st.sampled_from(["x", "[", '"a",', '["k","m",1],', '["a","b"],', "9", "1e9,", '{"a":1},', "\\u0000", "é", "\0"])
befores = st.sampled_from(
    [
        b"",
        TIMES,
        b"[",
        b"[200,[",
        b'[200,[["a","',
        TIMES + b'{"errorType":"E","errorMessage":"m","stackTrace":[',
        TIMES + b'{"stackTrace":[],"errorType":"E","errorMessage":"',
    ]
)
afters = st.sampled_from([b"", b"0]", b"]]", b'["a","b"]]]', b'"]]]', b'"b"]}', b'"}'])
kinds = st.sampled_from([PRIMED, READY, RESULT, FAILED, MODULES, HEAD, CHUNK, CHUNK])
sent = st.builds(framed, kinds, befores, parts, times, afters, st.sampled_from([1, 1, 2, 100, 5000]))
few = st.lists(sent, max_size=4).filter(
    lambda frames: sum((times * len(part) + 100) * repeat for _, _, part, times, _, repeat in frames) < 40 << 20
)
OK = framed(HEAD, b"[200,[]]", "", 0)


@fuzz(30)
@example([OK, framed(CHUNK, b"x", "", 0, repeat=50_000)])
@example([OK, framed(CHUNK, b"xy", "", 0, repeat=300_000)])
@example([OK, framed(CHUNK, b"", "x", 65536, repeat=100)])
@example([framed(FAILED, TIMES + b'{"errorType":"E","errorMessage":"m","stackTrace":[', '"a",', 1_700_000, b'"b"]}')])
@example([framed(FAILED, TIMES + b'{"errorType":"E","errorMessage":"m","stackTrace":[', '"a",', 16_000, b'"b"]}')])
@example([framed(FAILED, TIMES + b'{"errorType":"E","errorMessage":"m","stackTrace":[', "9" * 4000 + ",", 16, b"9]}")])
@example([framed(MODULES, b"[", '["k","m",1],', 87_000, b'["k","m",1]]')])
@example([framed(MODULES, b"[", '["k","m",1],', 10_900, b'["k","m",1]]')])
@example([framed(MODULES, b"[", '["k","m",1],', 1_999, b'["k","m",1]]')])
@example([framed(HEAD, b"[200,[", '["a","b"],', 6_500, b'["a","b"]]]')])
@example([framed(HEAD, b"[200,[", '["a","b"],', 255, b'["a","b"]]]')])
@example([framed(HEAD, b'[200,[["a","', "é", 32_000, b'"]]]')])
@example([framed(RESULT, TIMES, "x", MAX_ANSWER_BYTES)])
@example([framed(RESULT, TIMES, "x", MAX_ANSWER_BYTES + 1)])
@given(few)
def test_no_turn_costs_more_than_its_bound_and_no_sandbox_more_than_an_answer(
    harness: Harness, costs: Costs, frames: list[Frame]
) -> None:
    async def answer() -> bytes:
        reply = await running.send(frames)
        if reply.stream is None:
            return reply.body
        await reply.stream.passed_on(failed=reply.error is not None)
        assert isinstance(reply.stream.sink, Joined)
        return reply.stream.sink.body()

    costs.begin()
    running = harness.start(HANDLER, timeout_s=5)
    try:
        tracemalloc.start()
        try:
            body = harness.run(answer())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    finally:
        running.destroy()
    assert costs.frames <= FRAMES_PER_TURN and costs.bytes <= READ_BYTES
    assert costs.calls <= MOST_CALLS
    assert costs.parsed <= MOST_PARSED
    assert peak <= MOST_KEPT + len(json.dumps(frames))
    assert len(body) <= MAX_ANSWER_BYTES


class Wire:
    """Reads one datagram; it counts what that costs."""

    def __init__(self, open_wire: Callable[[Any], Any], read: Callable[[Any], None]) -> None:
        self._open, self._read = open_wire, read

    async def cost_of(self, data: bytes) -> int:
        costs = Costs()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            theirs.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 1 << 20)
            wire = self._open(ours)
            theirs.send(data)
            with costs.counted():
                self._read(wire)
            wire.close()
        return costs.calls


def failed_imports(size: int, name: str) -> bytes:
    failed = {f"{name}{number}": "" for number in range(size // (len(name) + 12))}
    return json.dumps({"op": "imported", "id": 1, "seconds": 1, "threads": 1, "failed": failed}).encode()


@fuzz(20)
@example(failed_imports(32_000, ""))
@example(failed_imports(120_000, ""))
@example(b"[" * 120_000)
@given(st.builds(failed_imports, st.integers(0, 140_000), st.sampled_from(["", "m", "\ud800" * 10])))
def test_an_answer_of_a_zygote_costs_the_loop_little(data: bytes) -> None:
    def read(wire: ControlWire) -> None:
        wire._readable()

    wire = Wire(lambda sock: ControlWire(sock, lambda: None), read)
    assert asyncio.run(wire.cost_of(data)) <= MOST_CALLS


@fuzz(20)
@given(st.builds(failed_imports, st.integers(0, 250_000), st.sampled_from(["", "m", "\ud800" * 10])))
def test_a_report_of_imports_costs_the_loop_little(data: bytes) -> None:
    costs = Costs()
    with costs.counted(), suppress(ZygoteGone):
        read_report(data)
    assert costs.calls <= MOST_CALLS


rpcs = st.builds(RpcRecord, id=st.integers(0, 9), descriptor=st.just(["s3.GetObject", "b", "k"]), reason=st.text())
reads = st.builds(AppRead, rpc=st.just(["a", "b"]), served=st.just("region"), start_ns=st.just(1), end_ns=st.just(2))


@fuzz(20)
@given(st.lists(rpcs, max_size=3), st.lists(reads, max_size=3), st.sampled_from([1, 100, 5000]))
def test_a_report_of_the_engine_costs_the_loop_little(
    some: list[RpcRecord], reported: list[AppRead], times: int
) -> None:
    report = RunReport(run=7, outcome="exit", status=0, rpcs=some * times, reads=reported * times, messages=[], log="")
    heard: list[Done] = []

    def open_wire(sock: Any) -> EngineWire:
        starts, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.close()
        return EngineWire(sock, starts, on_message=lambda message, _: heard.append(message), on_end=lambda: None)  # type: ignore[arg-type]

    assert asyncio.run(Wire(open_wire, EngineWire._readable).cost_of(encode_done(report))) <= MOST_CALLS
    assert len(heard) == 1 and heard[0].report.run == 7
