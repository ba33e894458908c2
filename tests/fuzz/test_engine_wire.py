"""The wire between daemon and engine: a broken peer is distinguished from a sound one, and what is a message survives the
wire."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import msgspec
import uvloop
from hypothesis import example, given
from hypothesis import strategies as st

from sockd_initscripts import wire
from sockd_initscripts.client.engine_wire import EngineWire
from sockd_initscripts.errors import WireError
from sockd_initscripts.report import AppRead, MessageRecord, RpcRecord, RunReport
from tests.fuzz.fuzzing import encoded, fuzz, integers, objects, texts, values
from tests.fuzz.test_app_link import DESCRIPTORS, push

numbers = st.integers(0, 5) | integers()
budgets = objects(
    deadline_s=st.floats() | integers(), memory_bytes=integers(), rpcs=integers(), endpoints=st.lists(texts())
)
reports = objects(
    run=numbers, outcome=st.sampled_from(["exit", "abort", "no"]), status=integers(), message=texts(), rpcs=values()
)
to_engine = st.one_of(
    objects(op=st.just("define"), id=numbers, name=texts(), budget=budgets, static_args=texts()),
    objects(op=st.just("start"), run=numbers, function=numbers, request=texts(), arrived_ns=integers()),
    objects(op=st.sampled_from(["cancel", "forget"]), run=numbers, id=numbers),
)
to_daemon = st.one_of(
    objects(op=st.just("ready"), wasmtime=texts()),
    objects(op=st.just("abort"), run=numbers, status=integers(), message=texts()),
    objects(op=st.just("done"), report=reports),
)
datagrams = st.one_of(to_engine, to_daemon, values()).map(lambda value: encoded(value) + b"\n") | st.binary(max_size=80)


@fuzz(200)
@example(b'{"op":"cancel","run":' + b"9" * 5000 + b"}\n", 0)
@example(b'{"op":"start","run":1,"function":1,"request":"\\ud800"}\n', 1)
@example(b'{"op":"define","id":1,"name":"f","budget":{"deadline_s":1e999}}\n', 0)
@given(datagrams, st.integers(0, 3))
def test_a_datagram_is_a_message_or_a_wire_error(data: bytes, fds: int) -> None:
    for decode in (wire.decode_to_engine, wire.decode_start, wire.decode_to_daemon):
        try:
            message, payload = decode(data, fds)
        except WireError:
            continue
        assert fds in message.fds
        assert decode(wire.encode(message, payload), fds) == (message, payload)


class Daemon:
    """The daemon's end of the wire to an engine that says anything."""

    def __init__(self) -> None:
        self.messages: list[wire.ToDaemon] = []
        self.ends = 0

    async def hear(self, said: list[tuple[bytes, str]]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def ended() -> None:
            self.ends += 1
            over.set()

        over = asyncio.Event()
        starts, their_starts = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reported = EngineWire(ours, starts, on_message=lambda message, _: self.messages.append(message), on_end=ended)
        with theirs, their_starts:
            for data, kind in said:
                push(theirs, data, kind)
        async with asyncio.timeout(5):
            await over.wait()
        reported.close()


@fuzz(80)
@example([(b'{"op":"ready","wasmtime":"1"}\n', "file")])
@example([(b'{"op":"ready","wasmtime":"1"}\n', "nothing"), (b"\n", "two")])
@given(
    st.lists(
        st.tuples(
            to_daemon.map(lambda value: encoded(value) + b"\n") | datagrams.filter(bool),
            st.sampled_from(sorted(DESCRIPTORS)),
        ),
        max_size=4,
    )
)
def test_an_engine_that_says_anything_is_heard_to_its_end_once(said: list[tuple[bytes, str]]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    daemon = Daemon()
    uvloop.run(daemon.hear(said))
    assert daemon.ends == 1 and len(daemon.messages) <= len(said)
    assert set(os.listdir("/proc/self/fd")) == before


plain = st.text(max_size=30) | st.text(max_size=3).map(lambda text: text * 2000)
counts = st.integers(0, 2**63 - 1)
rpcs = st.builds(
    RpcRecord,
    id=counts,
    descriptor=st.lists(plain, max_size=3),
    status=st.integers(-200, 600),
    queued_ns=counts,
    reason=plain,
)
reads = st.builds(AppRead, rpc=st.lists(plain, max_size=3), served=plain, start_ns=counts, end_ns=counts)


def repeated(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Up to thousands of few different ones."""
    return st.builds(
        lambda some, times: some * times, st.lists(strategy, max_size=3), st.sampled_from([1, 1, 40, 3000])
    )


@fuzz(40)
@given(repeated(rpcs), repeated(reads), repeated(st.builds(MessageRecord, counts, counts, counts)), plain, plain)
def test_a_report_of_any_size_arrives_with_its_outcome(
    rpcs: list[RpcRecord], reads: list[AppRead], messages: list[MessageRecord], message: str, log: str
) -> None:
    report = RunReport(
        run=7, outcome="trap", status=-1, message=message, rpcs=rpcs, reads=reads, messages=messages, log=log
    )
    data = wire.encode_done(report)
    assert len(data) <= wire.REPORT_LIMIT_BYTES <= wire.MAX_DATAGRAM
    reported, _ = wire.decode_to_daemon(data, 0)
    assert isinstance(reported, wire.Done)
    assert (reported.report.run, reported.report.outcome, reported.report.status) == (7, "trap", -1)
    assert reported.report.cut or reported.report == report
    assert msgspec.json.decode(data.partition(b"\n")[0])["op"] == "done"
