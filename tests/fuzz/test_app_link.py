"""The app link, both ways: a function that says anything to the engine, and an engine that says anything to a function.

Bytes alone are tested in tests/storage_lib/test_wire.py; here they arrive over a socket, with descriptors beside them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sockd.linux.event_loop import EventLoop
from sockd_initscripts.engine.engine import Engine
from sockd_initscripts.engine.run import RunRequest
from sockd_initscripts.limits import Budget, EngineLimits
from sockd_initscripts.wire import decode_to_daemon, encode_done
from sockd_storage_lib.sockd_initscript import NoMessage
from sockd_storage_lib.sockd_initscript.app_link import Link, TimedOut
from tests.fuzz.fuzzing import encoded, fuzz, integers, objects, texts, values
from tests.initscripts.guests import module
from tests.initscripts.rooms import Room

DESCRIPTORS = {"nothing": 0, "file": 1, "socket": 1, "datagram": 1, "two": 2}


def open_descriptors(kind: str) -> list[int]:
    """What somebody puts beside a datagram; the caller closes it."""
    match kind:
        case "file":
            fd = os.memfd_create("fuzz")
            os.truncate(fd, 4096)
            return [fd]
        case "socket" | "datagram":
            ours, theirs = socket.socketpair(
                socket.AF_UNIX, socket.SOCK_STREAM if kind == "socket" else socket.SOCK_DGRAM
            )
            ours.close()
            return [theirs.detach()]
        case "two":
            return list(os.pipe())
    return []


def push(sock: socket.socket, data: bytes, kind: str) -> bool:
    """One datagram; False when the other end has hung up, or takes no more."""
    fds = open_descriptors(kind)
    try:
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        sock.sendmsg([data], beside, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
    except (BrokenPipeError, ConnectionResetError, BlockingIOError):
        return False
    finally:
        for fd in fds:
            os.close(fd)
    return True


rpcs = st.lists(texts(), max_size=3)
ids = st.integers(0, 4) | integers()
from_app = st.one_of(
    objects(op=st.just("message"), id=ids),
    objects(op=st.just("connection"), id=ids, addr=texts() | st.sampled_from(["s3:", "tcp://127.0.0.1:9"])),
    objects(op=st.just("read"), rpc=rpcs, served=texts(), start_ns=integers(), end_ns=integers()),
    objects(op=st.sampled_from(["sent", "end", "failed"]), id=ids, rpc=rpcs, outcome=texts(), status=integers()),
    values(),
).map(lambda value: encoded(value) + b"\n")
datagrams = st.tuples(from_app | st.binary(min_size=1, max_size=60), st.sampled_from(sorted(DESCRIPTORS)))

GUEST = module(
    """
    (drop (call $recv_msg (i64.const 1) (i32.const 1024)))
    (drop (call $get_conn (i64.const 1) (i32.const 0) (i32.const 0)))
    """,
    notes=False,
)


class EngineOnLoop:
    """An engine and its loop, which runs only while an example does."""

    def __init__(self, directory: Path) -> None:
        self.loop = EventLoop()
        self.raised: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.raised.append(context))
        self.engine = Engine(EngineLimits())
        self.loop.run_until_complete(self.engine.__aenter__())
        room = Room(self.engine, directory)
        budget = Budget(deadline_s=0.05, endpoints=[])
        self.functions = [room.define(None), room.define(GUEST, budget=budget)]

    async def reported(self, function: int, said: list[tuple[bytes, str]]) -> Any:
        """A run whose app says this and hangs up; its report."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            run = self.engine.start(RunRequest(id=1, function=function, input=b"{}", app=theirs))
            for data, kind in said:
                if not push(ours, data, kind):
                    break
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            return await run.done

    def close(self) -> None:
        self.loop.run_until_complete(self.engine.__aexit__(None, None, None))
        self.loop.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineOnLoop]:
    engine = EngineOnLoop(tmp_path)
    yield engine
    engine.close()


def read(**fields: Any) -> bytes:
    whole = {"op": "read", "rpc": ["s3.GetObject", "b", "k"], "served": "region", "start_ns": 1, "end_ns": 2}
    return encoded(whole | fields) + b"\n"


@fuzz(80)
@example([(read(rpc=["s3.GetObject", "b", "\ud800"]), "nothing")], False)
@example([(read(served="\udfff"), "nothing")], False)
@example([(read(start_ns=10**30, end_ns=-(10**30)), "nothing")], False)
@example([(read(rpc=["x" * 60_000]), "nothing")] * 50, False)
@example([(encoded({"op": "connection", "id": 1, "addr": "\ud800"}) + b"\n", "socket")], True)
@example([(encoded({"op": "connection", "id": 1, "addr": "tcp://a:1"}) + b"\n", "datagram")], True)
@given(st.lists(datagrams, max_size=6), st.booleans())
def test_whatever_a_function_says_its_run_is_reported(
    engine: EngineOnLoop, said: list[tuple[bytes, str]], guest: bool
) -> None:
    report = engine.loop.run_until_complete(engine.reported(engine.functions[guest], said))
    assert report.outcome in (("exit", "cancelled", "deadline", "cpu") if guest else ("record",))
    data = encode_done(report)  # raises for what JSON cannot hold: the daemon would never hear of this run's end
    message, _ = decode_to_daemon(data, 0)
    assert message.report.run == 1  # type: ignore[union-attr]
    assert sum(len(part) for each in report.reads for part in each.rpc) < 2 << 20, (
        "reads are kept in the engine's memory"
    )
    assert engine.engine.busy == 0 and not engine.raised


from_engine = st.one_of(
    objects(
        op=st.just("message"),
        id=ids,
        rpc=rpcs | st.none(),
        status=integers(),
        segment=st.integers(-1, 2) | integers(),
        offset=st.sampled_from([0, 1, 4095, 4096]) | integers(),
        length=st.sampled_from([0, 1, 4096]) | integers(),
        size=st.sampled_from([4096, 4097, 0, -1, 1 << 62, 10**30]) | integers(),
    ),
    objects(op=st.just("connection"), id=ids, addr=texts(), kind=texts(), tls_server_name=texts() | st.none()),
    objects(op=st.sampled_from(["sent", "failed", "read"]), id=ids, rpc=rpcs, reason=texts()),
    objects(op=st.just("end"), outcome=texts(), status=integers()),
    values(),
).map(lambda value: encoded(value) + b"\n")


def segment(size: int, offset: int = 0, length: int = 1) -> bytes:
    """The first message in a segment whose file has 4096 bytes."""
    message = {"op": "message", "id": 0, "rpc": None, "status": 0, "segment": 0}
    return encoded({**message, "offset": offset, "length": length, "size": size}) + b"\n"


@fuzz(150)
@example([(segment(1), "file")])
@example([(segment(10**30), "file")])
@example([(segment(1 << 40, offset=1 << 39), "file")])
@example([(segment(4097, offset=4096), "file")])
@example([(segment(0), "file")])
@example([(segment(4096), "socket")])
@given(
    st.lists(
        st.tuples(from_engine | st.binary(min_size=1, max_size=60), st.sampled_from(sorted(DESCRIPTORS))), max_size=6
    )
)
def test_a_function_has_its_message_or_knows_of_none_whatever_an_engine_says(
    said: list[tuple[bytes, str]],
) -> None:
    before = set(os.listdir("/proc/self/fd"))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link = Link(theirs.detach())
    with ours:
        for data, kind in said:
            push(ours, data, kind)
    for number in range(5):
        try:
            message = link.recv_msg(number, 1.0)
        except (NoMessage, TimedOut):
            continue
        assert len(bytes(message.view)) == len(message)
        del message  # it holds the mapping, and that its descriptor
    for number in range(5):
        try:
            link.get_conn(number, 1.0).sock.close()
        except (NoMessage, TimedOut):
            continue
    link.close()
    del link
    assert set(os.listdir("/proc/self/fd")) == before


def test_reads_are_kept_up_to_a_limit_and_the_report_says_so(engine: EngineOnLoop) -> None:
    async def talk() -> Any:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with ours:
            run = engine.engine.start(RunRequest(id=1, function=engine.functions[0], input=b"{}", app=theirs))
            for _ in range(100):
                await asyncio.get_running_loop().sock_sendall(ours, read(rpc=["x" * 50_000]))
        return await run.done

    started = time.monotonic()
    report = engine.loop.run_until_complete(talk())
    assert report.cut and sum(len(part) for each in report.reads for part in each.rpc) < 2 << 20
    assert time.monotonic() - started < 10
