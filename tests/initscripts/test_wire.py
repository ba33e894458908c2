"""The wire between daemon and engine: messages and their fds, and all that is none."""

from __future__ import annotations

import os
import socket

import msgspec
import pytest

from sockd_initscripts import wire
from sockd_initscripts.errors import WireError
from sockd_initscripts.limits import Budget, EngineLimits, parse_limits
from sockd_initscripts.report import AppRead, RpcRecord, RunReport

DEFINE = wire.Define(id=1, name="f", env={"A": "b"}, budget=Budget(deadline_s=1.5, endpoints=[]), static_args=b"\0\n")


@pytest.mark.parametrize(
    ("message", "fd_count", "payload"),
    [
        (DEFINE, 1, b""),
        (wire.Define(id=1, name="f"), 0, b""),
        (wire.Forget(id=1), 0, b""),
        (wire.Cancel(run=1), 0, b""),
    ],
)
def test_what_the_daemon_says(message: wire.ToEngine, fd_count: int, payload: bytes) -> None:
    assert wire.decode_to_engine(wire.encode(message, payload), fd_count) == (message, payload)


@pytest.mark.parametrize(
    ("message", "fd_count", "payload"),
    [
        (wire.Start(run=1, function=2, request="ab", arrived_ns=3), 1, b'{"event":\n"\0"}'),
        (wire.Start(run=1, function=2, known=(("s3.GetObject", "bucket", "key"),)), 2, b""),
    ],
)
def test_how_the_daemon_starts_a_run(message: wire.Start, fd_count: int, payload: bytes) -> None:
    assert wire.decode_start(wire.encode(message, payload), fd_count) == (message, payload)


@pytest.mark.parametrize(
    "message",
    [
        wire.Ready(wasmtime="50"),
        wire.Abort(run=1, status=-1, message="no"),
        wire.Ended(run=1),
        wire.Done(report=RunReport(run=1, outcome="trap", reads=[AppRead(["a"], "region", 1, 2)])),
    ],
)
def test_what_the_engine_says(message: wire.ToDaemon) -> None:
    assert wire.decode_to_daemon(wire.encode(message), 0) == (message, b"")


@pytest.mark.parametrize(
    ("data", "fd_count"),
    [
        (b"", 0),
        (b'{"op":"cancel","run":1}', 0),
        (b'{"op":"cancel","run":"1"}\n', 0),
        (b'{"op":"cancel","run":1,"x":1}\n', 0),
        (b'{"op":"dance"}\n', 0),
        (b"[" * 100_000 + b"\n", 0),
        (b'{"op":"cancel","run":1}\n', 1),
        (b'{"op":"start","run":1,"function":1}\n', 0),
        (b'{"op":"start","run":1,"function":1}\n', 3),
        (b'{"op":"define","id":1,"name":"f","budget":{"deadline_s":0}}\n', 0),
        (b'{"op":"define","id":1,"name":"f","budget":{"memory":1}}\n', 0),
        (b'{"op":"ready","wasmtime":"1"}\n', 0),
    ],
)
def test_what_is_no_message(data: bytes, fd_count: int) -> None:
    with pytest.raises(WireError):
        wire.decode_to_engine(data, fd_count)


def test_a_message_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(WireError):
        wire.encode(wire.Define(id=1, name="f", env={"A": "b" * wire.MAX_DATAGRAM}))


def test_a_report_that_is_too_long_is_cut_and_says_so() -> None:
    rpcs = [RpcRecord(id=n, descriptor=["s3.GetObject", "b", f"k{n}"], status=200, queued_ns=n) for n in range(1000)]
    reads = [AppRead(["s3.GetObject", "b", "k"], "region", n, n) for n in range(10_000)]
    report = RunReport(run=7, outcome="exit", rpcs=rpcs, reads=reads, log="x" * 16_384)
    data = wire.encode_done(report)
    assert len(data) <= wire.REPORT_LIMIT_BYTES
    message, _ = wire.decode_to_daemon(data, 0)
    assert isinstance(message, wire.Done)
    assert message.report.cut and message.report.rpcs == rpcs[: len(message.report.rpcs)]
    short = RunReport(run=7, outcome="exit", rpcs=rpcs[:3])
    assert wire.encode_done(short) == wire.encode(wire.Done(report=short))


def test_one_record_that_is_too_long_by_itself_does_not_stay() -> None:
    rpc = RpcRecord(id=1, descriptor=["dynamodb.GetItem", "x" * 500_000], status=200, queued_ns=1)
    assert len(wire.encode_done(RunReport(run=7, outcome="exit", rpcs=[rpc]))) < 1000


def test_a_report_is_plain_json() -> None:
    report = RunReport(run=7, outcome="exit", log="x")
    assert msgspec.json.decode(msgspec.json.encode(report), type=RunReport) == report


def test_limits_are_read_strictly() -> None:
    assert parse_limits('{"runs": 3}') == EngineLimits(runs=3)
    for wrong in ('{"runs": 0}', '{"run": 1}', "[]", ""):
        with pytest.raises(WireError):
            parse_limits(wrong)


def test_datagrams_and_fds_over_a_socket() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        with pytest.raises(BlockingIOError):
            wire.receive(theirs)
        reading, writing = os.pipe()
        wire.send(ours, b"hello", [reading, writing])
        wire.close_all([reading, writing])
        data, fds = wire.receive(theirs)
        assert (data, len(fds), os.get_inheritable(fds[0])) == (b"hello", 2, False)
        wire.send(ours, b"hello", [*fds, fds[0]])  # one more than any message has
        wire.close_all(fds)
        with pytest.raises(WireError):
            wire.receive(theirs)
        ours.close()
        assert wire.receive(theirs) == (b"", [])


def test_scratch_memory_serves_again_and_again() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    scratch = bytearray(wire.MAX_DATAGRAM)
    with ours, theirs:
        wire.send(ours, b"a longer one")
        wire.send(ours, b"short")
        received = [wire.receive(theirs, scratch)[0] for _ in range(2)]
    assert received == [b"a longer one", b"short"]
