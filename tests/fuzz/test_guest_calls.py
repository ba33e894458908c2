"""A guest that calls every import with random arguments, in random order: an errno or a result each time, never a crash.

One module is compiled, and reads from its input which calls to make: texts that arguments can point to, then records of
a call's number and its arguments. It traps by itself only when a call gave what is neither a result nor an errno.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sockd.linux.event_loop import EventLoop
from sockd_initscripts.engine import abi
from sockd_initscripts.engine.engine import Engine
from sockd_initscripts.limits import Budget, EngineLimits
from sockd_initscripts.report import RunReport
from sockd_initscripts.wire import decode_to_daemon, encode_done
from tests.fuzz.fuzzing import fuzz
from tests.initscripts.guests import imports, wasm
from tests.initscripts.rooms import Room

PAGES = 2
PROGRAM = 16 * 1024
"""Where the records begin; texts lie before."""
OUT = 64 * 1024
RECORD = struct.Struct("<q7q")
NAMES = tuple(abi.FUNCTIONS)
WAITING = ("recv_msg", "get_conn")
"""What ends only at the deadline, as the app says nothing: called seldom."""
SOON_S = 0.1
"""The deadline of a program that may wait for nobody."""
DEADLINE_S = 10.0
"""The deadline of a program that ends by itself."""
ENDING = ("exit", "abort_launch")


def interpreter() -> bytes:
    """The guest: `while (record) result = import[record.call](record.arguments)`."""
    cases = []
    for name, (parameters, results) in abi.FUNCTIONS.items():
        load = {
            "i": "(i32.wrap_i64 (i64.load offset={at} (local.get $at)))",
            "I": "(i64.load offset={at} (local.get $at))",
        }
        arguments = " ".join(load[kind].format(at=8 + 8 * number) for number, kind in enumerate(parameters))
        call = f"(call ${name} {arguments})"
        if results == "i":
            call = (
                f"(local.set $result {call}) (if (i32.lt_s (local.get $result) (i32.const -4095)) (then (unreachable)))"
            )
        elif results == "I":
            call = f"(drop {call})"
        cases.append(f"(if (i64.eq (local.get $call) (i64.const {NAMES.index(name)})) (then {call}))")
    return wasm(f"""(module
        {imports(abi.FUNCTIONS)}
        (memory (export "memory") {PAGES})
        (func (export "boot") (local $at i32) (local $end i32) (local $call i64) (local $result i32)
            (drop (call $input_read (i32.const 0) (i32.const 0) (call $input_len)))
            (local.set $end (call $input_len))
            (local.set $at (i32.const {PROGRAM}))
            (block $done (loop $next
                (br_if $done (i32.gt_u (i32.add (local.get $at) (i32.const {RECORD.size})) (local.get $end)))
                (local.set $call (i64.load (local.get $at)))
                {" ".join(cases)}
                (local.set $at (i32.add (local.get $at) (i32.const {RECORD.size})))
                (br $next)))))""")


class Texts:
    """What arguments can point to."""

    def __init__(self, address: str) -> None:
        nested = b"[" * 3000
        json = [
            b'{"bucket":"b","key":"k"}',
            b'{"bucket":"b","key":"\\ud800"}',
            b'{"bucket":"b","key":"k","range":"bytes=0-' + b"9" * 15 + b'"}',
            b'{"bucket":' + nested,
            b'{"TableName":"t","Key":' + nested,
            b"\xff\xfe",
        ]
        words = f"GET /hello|GET /hello\nx: y\n|PUT /hello|GET /|GetObject|HeadObject|ListObjectsV2|GetItem|line|bytes:{'9' * 14}"
        port = address.rpartition(":")[2]
        addresses = f"{address}|tcp://127.0.0.1:{port}|s3:|dynamodb:|sqs:|grpc://127.0.0.1:{port}|http://[::1]:1|x://y"
        self.image = bytearray(PROGRAM)
        self.spans: list[tuple[int, int]] = []
        at = 0
        for text in [*(words + "|" + addresses).encode().split(b"|"), *json]:
            self.image[at : at + len(text)] = text
            self.spans.append((at, len(text)))
            at += len(text)
        assert at < PROGRAM


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers whatever ends with an empty line."""
    try:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nhello, guest")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
        writer.close()


class Fuzzed:
    """An engine, a server, and the interpreter, on a loop that runs only while an example does."""

    def __init__(self, directory: Path) -> None:
        self.loop = EventLoop()
        self.raised: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.raised.append(context))
        self._server = self.loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
        authority = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self.engine = Engine(EngineLimits())
        self.loop.run_until_complete(self.engine.__aenter__())
        self.texts = Texts(f"http://{authority}")
        self._room = Room(self.engine, directory)
        budget = Budget(
            deadline_s=SOON_S, memory_bytes=PAGES << 16, region_bytes=1 << 20, connections=4, rpcs=20, messages=20,
            endpoints=[authority],
        )  # fmt: skip
        env = {"AWS_ENDPOINT_URL": f"http://{authority}", "AWS_REGION": "r"}
        self._function = self._room.define(interpreter(), budget=budget, env=env)
        self._patient = self._room.define(
            interpreter(), budget=msgspec.structs.replace(budget, deadline_s=DEADLINE_S), env=env
        )

    def run(self, program: bytes, *, ends: bool = False) -> RunReport:
        """Args: ends: by itself, so that it need not be ended soon."""

        async def run() -> RunReport:
            async with asyncio.timeout(2 * DEADLINE_S):
                function = self._patient if ends else self._function
                return (await self._room.finish(*self._room.start(function, program))).report

        return self.loop.run_until_complete(run())

    def close(self) -> None:
        self.loop.run_until_complete(self.engine.__aexit__(None, None, None))
        self._server.close()
        self.loop.run_until_complete(self._server.wait_closed())
        self.loop.close()


@pytest.fixture
def fuzzed(tmp_path: Path) -> Iterator[Fuzzed]:
    fuzzed = Fuzzed(tmp_path)
    yield fuzzed
    fuzzed.close()


Record = tuple[str, list[int | str]]
"""A call and its arguments; "p3" and "l3" are the pointer and the length of the third text."""
END = PAGES << 16
EDGES = (0, 1, -1, 7, PROGRAM, OUT, END - 16, END - 1, END, 0x7FFFFFFF, -0x80000000, 1 << 32, 2**63 - 1, -(2**63))
TEXTS = len(Texts("http://127.0.0.1:1").spans)
numbers = st.sampled_from(EDGES) | st.integers(0, 4) | st.integers(-(2**63), 2**63 - 1)


def call(name: str) -> st.SearchStrategy[Record]:
    """A call of this import: each argument by itself, or pointers and lengths of texts where the ABI has such."""
    kinds = abi.FUNCTIONS[name][0]
    arguments: dict[str, str] = {
        "connect": "t",
        "send_rpc": "citt",
        "send_rpc_buf": "citccc",
        "send_bytes": "it",
        "transfer_conn": "itc",
        "get_conn": "it",
        "log": "ct",
        "abort_launch": "ct",
        "recv_rpc_reply": "cio",
        "buf_read": "ccoc",
        "recv_msg": "io",
        "send_msg": "iccc",
        "send_file": "ic",
    }
    meant = {
        "t": st.integers(0, TEXTS - 1).map(lambda n: [f"p{n}", f"l{n}"]),
        "c": st.integers(0, 3).map(lambda n: [n]),
        "i": st.integers(0, 3).map(lambda n: [n]),
        "o": st.just([OUT]),
    }
    wild: st.SearchStrategy[list[int | str]] = st.tuples(*[numbers for _ in kinds]).map(list)
    if name in arguments:
        parts = [meant[kind] for kind in arguments[name]]
        tame = st.tuples(*parts).map(lambda found: list(itertools.chain.from_iterable(found)))
        wild = tame | tame | wild
    return wild.map(lambda args: (name, args))


often = st.sampled_from([name for name in NAMES if name not in (*WAITING, *ENDING)]).flatmap(call)
seldom = st.sampled_from([*WAITING, *ENDING]).flatmap(call)
CONNECT: list[Record] = [("connect", [f"p{number}", f"l{number}"]) for number in (10, 11, 12, 13)]
"""To the server by HTTP and by TCP, to S3, to DynamoDB."""
METHODS = {0: (0, 1, 2, 3), 1: (8, 9), 2: (4, 5, 6), 3: (7,)}
"""For each of these, what it may be asked."""


@st.composite
def exchange(draw: st.DrawFn) -> list[Record]:
    """An RPC that may well succeed, and mostly the wait for its end."""
    connection, rpc = draw(st.integers(0, 3)), draw(st.integers(0, 9))
    method, body = draw(st.sampled_from(METHODS[connection])), draw(st.sampled_from([18, 18, 19, 20, 21, 22, 23]))
    sent: Record = ("send_rpc", [connection, rpc, f"p{method}", f"l{method}", f"p{body}", f"l{body}"])
    received: Record = ("recv_rpc_reply", [connection, rpc, OUT])
    return [sent, received][: draw(st.sampled_from([1, 2, 2, 2]))]


some = st.lists(often.map(lambda record: [record]) | exchange(), max_size=10).map(
    lambda parts: list(itertools.chain.from_iterable(parts))
)
programs = st.builds(
    lambda connects, first, ends, last: [*(CONNECT * connects), *first, *ends, *last],
    st.sampled_from([1, 1, 1, 0]),
    some,
    st.just([]) | st.just([]) | st.lists(seldom, max_size=1),
    some,
)


def assembled(texts: Texts, program: list[Record]) -> bytes:
    """The guest's input."""

    def number(argument: int | str) -> int:
        if isinstance(argument, str):
            return texts.spans[int(argument[1:])][argument[0] == "l"]
        return argument

    records = [
        RECORD.pack(NAMES.index(name), *(list(map(number, arguments)) + [0] * 7)[:7]) for name, arguments in program
    ]
    return bytes(texts.image) + b"".join(records)


REPLY: list[Record] = [("send_rpc", [0, 1, "p0", "l0", 0, 0]), ("recv_rpc_reply", [0, 1, OUT])]
SURROGATE: list[Record] = [("send_rpc", [2, 1, "p4", "l4", "p19", "l19"]), ("recv_rpc_reply", [2, 1, OUT])]
NESTED: list[Record] = [("send_rpc", [3, 1, "p7", "l7", "p22", "l22"]), ("recv_rpc_reply", [3, 1, OUT])]


@fuzz(150)
@example([*CONNECT, *REPLY, ("buf_read", [1, 0, END - 1, 1]), ("buf_read", [1, 2**63 - 1, 0, -1])])
@example(
    [
        *CONNECT,
        *REPLY,
        ("send_msg", [1, 1, 2**63 - 1, 1]),
        ("send_msg", [1, 1, 0, 12]),
        ("send_bytes", [2, END, 0]),
    ]
)
@example([*CONNECT, *REPLY, ("send_file", [1, 1]), ("send_file", [2, 1]), ("buf_read", [1, 0, OUT, 1])])
@example([*CONNECT, *SURROGATE])
@example([*CONNECT, *NESTED, ("transfer_conn", [1, 0, 0, 3])])
@example([*CONNECT, ("transfer_conn", [1, 0, 0, 1]), ("send_rpc", [1, 1, 0, 0, 0, 0]), ("recv_rpc_reply", [1, 1, OUT])])
@example([("recv_msg", [1, OUT])])
@example([("log", [2**31 - 1, -1, -1]), ("abort_launch", [-1, -1, -1])])
@given(programs)
def test_a_guest_of_random_calls_ends_as_any_other(fuzzed: Fuzzed, program: list[Record]) -> None:
    report = fuzzed.run(assembled(fuzzed.texts, program))
    assert report.outcome in ("exit", "abort", "deadline", "cpu"), (report.outcome, report.message)
    message, _ = decode_to_daemon(encode_done(report), 0)
    assert message.report.run == report.run  # type: ignore[union-attr]
    assert not fuzzed.raised and fuzzed.engine.busy == 0


def test_the_guest_calls_what_it_is_reported_to(fuzzed: Fuzzed) -> None:
    program: list[Record] = [*CONNECT, *REPLY, ("send_msg", [7, 1, 0, 12]), ("log", [2, "p0", "l0"]), ("exit", [42])]
    report = fuzzed.run(assembled(fuzzed.texts, program), ends=True)
    assert (report.outcome, report.status, report.log) == ("exit", 42, "info: GET /hello\n")
    assert [(rpc.id, rpc.status, rpc.bytes) for rpc in report.rpcs] == [(1, 200, 12)]
    assert [(message.id, message.bytes) for message in report.messages] == [(7, 12)]


def test_what_an_rpc_asked_for_is_kept_up_to_a_limit(fuzzed: Fuzzed) -> None:
    dynamodb, get_item = 13, 7
    body = fuzzed.texts.spans[23][
        0
    ]  # all texts but the last, which is not UTF-8: a DynamoDB request's name is its body
    sends: list[Record] = [("send_rpc", [0, number, f"p{get_item}", f"l{get_item}", 0, body]) for number in range(20)]
    program: list[Record] = [("connect", [f"p{dynamodb}", f"l{dynamodb}"]), *sends, ("recv_rpc_reply", [0, 19, OUT])]
    report = fuzzed.run(assembled(fuzzed.texts, program), ends=True)
    assert len(report.rpcs) == 20 and body > 4096
    assert len(msgspec.json.encode(report.rpcs)) < 20_000
