"""A connection over a real socket, with whatever client, functions, budget and clock do, in any order.

After each step the states of the connection and of its requests agree with each other and with the socket, and what the client
has received are whole answers in the order of its requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sockd.base.errors import SockdError
from sockd.http.server.bounds.buffers import Buffer, BufferBudget
from sockd.http.server.connection import Connection
from sockd.http.server.exchange import BodyExchange
from sockd.http.server.listening.sockets import bind_tcp
from sockd.http.server.messages.answers import Answer
from sockd.http.server.messages.head import Head
from sockd.http.server.server import HttpServer
from sockd.http.server.states import (
    BETWEEN,
    DROP_BODY,
    IN_BODY,
    OVER,
    STREAM_BODY,
    UNBEGUN,
    UNFINISHED,
    Flow,
    Input,
    Output,
    Payload,
    Stage,
)
from sockd.linux.event_loop import EventLoop
from tests.http.raw import post
from tests.support.examples import examples

KB = 1024
BUDGET_BYTES = 1024 * KB
BODY_BYTES = 200 * KB
LITTLE_BYTES = 4 * KB
"""The size of the kernel's buffers."""
TURNS = 25
"""The turns of the loop after each step: all that can happen has happened then."""
HOUR_S = 3600.0
CHUNKED = b"POST /%d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"


class Asked(BodyExchange):
    """A request that is answered when the test says so, with its number and as many bytes as the test says."""

    max_body_bytes = BODY_BYTES

    def __init__(self, connection: Connection, head: Head) -> None:
        super().__init__(connection, head)
        self.number = int(head.target[1:].partition(b"?")[0])
        self.size: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._error: SockdError | None = None
        if head.target.endswith(b"?refused"):
            self.refuse(SockdError("refused"))
        elif head.target.endswith(b"?early"):
            self.payload = STREAM_BODY[self.payload]

    def refuse(self, error: SockdError) -> None:
        self.body, self._error = b"", error
        self.payload = DROP_BODY[self.payload]

    async def run(self) -> None:
        size, mark = await self.size, b"%d:" % self.number
        if not self.head.target.endswith(b"?early"):
            if size >= 0:
                self.answer(Answer(503 if self._error else 200, "", mark + b"x" * size))
        elif self.stage is not Stage.LOST:
            await self._stream(mark, size)

    async def _stream(self, mark: bytes, size: int) -> None:
        """Answer in two parts. Args: size: of the second; -1: it does not come."""
        self.connection.write(f"{self.begin(200, '')}content-length: {len(mark) + size}\r\n\r\n".encode(), mark)
        await self.connection.writable()
        if size >= 0 and self.stage not in OVER:
            self.connection.write(b"", b"x" * size)
            self.connection.finish(self)


class Requests:
    """The application: remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []

    def open(self, connection: Connection, head: Head) -> Asked:
        self.asked.append(Asked(connection, head))
        return self.asked[-1]


class ConnectionModel(RuleBasedStateMachine):
    """One connection of a server."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = EventLoop()
        self.raised: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.raised.append(context))
        self.app, self.budget = Requests(), BufferBudget(BUDGET_BYTES)
        sockets = bind_tcp("127.0.0.1:0")
        for listening in sockets:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LITTLE_BYTES)
        self.server = HttpServer(self.app, sockets, buffers=self.budget)
        self.loop.run_until_complete(self.server.start())
        self.client = socket.socket()
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LITTLE_BYTES)
        self.client.connect(("127.0.0.1", self.server.port))
        self.client.setblocking(False)
        self.unsent, self.received, self.sent = b"", b"", 0
        self.others: list[Buffer] = []
        self.has_shut = False
        self.quiet_steps = 0
        """How many steps it takes until something may end the connection."""
        self.turn()
        self.connection: Connection | None = None

    def turn(self, step: Callable[[], object] = lambda: None) -> None:
        """Do something in the loop, and let the server do what it can."""
        self.quiet_steps -= 1

        async def turns() -> None:
            step()
            for _ in range(TURNS):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def of_connection(self) -> Connection | None:
        """The server's side: known once it has been accepted, which takes a first byte (TCP_DEFER_ACCEPT)."""
        if self.connection is None:
            self.connection = next(iter(self.server._connections), None)
        return self.connection

    @initialize(steps=st.integers(0, 40))
    def live(self, steps: int) -> None:
        self.quiet_steps = steps

    def may_end(self) -> bool:
        return self.quiet_steps <= 0

    # -- the client

    @precondition(lambda self: not self.has_shut)
    @rule(
        size=st.sampled_from([0, 10, 70 * KB, BODY_BYTES, BODY_BYTES + 1]),
        kind=st.sampled_from(["", "", "", "?early", "?refused"]),
        is_chunked=st.booleans(),
        options=st.lists(st.sampled_from(["Expect: 100-continue", "Connection: close"]), max_size=1),
    )
    def ask(self, size: int, kind: str, is_chunked: bool, options: list[str]) -> None:
        if is_chunked and not kind:
            self.unsent += CHUNKED % (self.sent, size, b"b" * size) if size else post(f"/{self.sent}", b"")
        else:
            self.unsent += post(f"/{self.sent}{kind}", b"b" * size, *options)
        self.sent += 1
        self.send(60)

    @rule(size=st.sampled_from([1, 20, 60, 66 * KB, 1 << 20]))
    def send(self, size: int) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self.unsent = self.unsent[self.client.send(self.unsent[:size]) :] if self.unsent else b""
        self.turn()

    @precondition(may_end)
    @rule(junk=st.sampled_from([b"\r\n", b"\0"]))
    def send_junk(self, junk: bytes) -> None:
        self.unsent += junk
        self.send(1 << 20)

    @rule(size=st.sampled_from([1, 10 * KB, 8 << 20]))
    def take(self, size: int) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self.received += self.client.recv(size)
        self.turn()

    @precondition(lambda self: self.may_end() and not self.has_shut)
    @rule()
    def shut(self) -> None:
        self.has_shut = True
        with contextlib.suppress(OSError):
            self.client.shutdown(socket.SHUT_WR)
        self.turn()

    @precondition(may_end)
    @rule()
    def break_off(self) -> None:
        """The request that runs ends without its answer."""
        self.answer(-1)

    # -- the application, the budget, the clock, the server

    @rule(size=st.sampled_from([0, 0, 100, 20 * KB, 100 * KB, 1 << 20]))
    def answer(self, size: int) -> None:
        """Answer the request that runs. Args: size: -1: it ends without an answer."""
        running = [each for each in self.app.asked if each.task is not None and not each.size.done()]
        for each in running:
            self.turn(partial(each.size.set_result, size))

    @rule()
    def take_room(self) -> None:
        self.others.append(self.budget.open("another", lambda: False))
        self.turn(partial(self.others[-1].set, BUDGET_BYTES))

    @rule()
    def give_room(self) -> None:
        for buffer in self.others:
            self.turn(buffer.close)
        self.others.clear()

    @precondition(lambda self: self.may_end() and self.of_connection())
    @rule()
    def be_late(self) -> None:
        connection = self.of_connection()
        assert connection is not None
        connection.since_s -= HOUR_S
        connection.taken_s -= HOUR_S
        self.turn(partial(self.server._give_up, iter([connection])))

    @precondition(lambda self: self.may_end() and self.of_connection())
    @rule(verb=st.sampled_from(["retire", "drain", "make_way"]))
    def end(self, verb: str) -> None:
        connection = self.of_connection()
        assert connection is not None
        if verb != "make_way" or connection.owed_nothing or connection.waits_for_its_peer:
            self.turn(getattr(connection, verb))

    # -- what holds after each step

    @invariant()
    def states_agree(self) -> None:
        connection = self.of_connection()
        if connection is None:
            return
        state, exchanges, reading = connection.input, connection.exchanges, connection.reading
        assert state is not Input.BODY
        assert (reading is not None) == (state in IN_BODY)
        assert bool(exchanges) or state not in (Input.SERVING, Input.DRAINING)
        assert not exchanges or state not in (Input.CONNECTED, Input.FIRST_HEAD, Input.IDLE, Input.CLOSED)
        assert (state is Input.ROOM_AWAITED) == bool(self.budget.waiting)
        assert state is not Input.ROOM_AWAITED or connection.flow is Flow.PAUSED
        waits = connection in self.server.waits._unknown or connection in set(
            self.server.waits.of(connection.known_source or "")
        )
        assert waits == (state in UNFINISHED or connection.output is not Output.TAKEN)
        begun = [each for each in exchanges if each.stage is not Stage.WAITING]
        assert begun in ([], list(exchanges)[:1])
        assert all(each.payload is Payload.WHOLE for each in exchanges if each is not reading)

    @invariant()
    def states_agree_with_the_socket(self) -> None:
        connection = self.of_connection()
        if connection is None or connection.transport.is_closing():
            return
        transport = connection.transport
        assert (connection.output is Output.TAKEN) == (not transport._unsent)
        assert (connection.output is Output.FULL) == transport._is_full
        assert transport._is_reading == (connection.flow is Flow.READ and not transport.is_at_eof)
        assert connection.deadline_s < float("inf") or connection.input in (*BETWEEN, Input.DRAINING)

    @invariant()
    def answers_are_whole_and_in_order(self) -> None:
        numbers = [number for number in numbers_in(self.received) if number is not None]
        assert numbers == list(range(len(numbers)))
        assert not self.raised

    def teardown(self) -> None:
        self.give_room()
        self.client.close()
        for each in self.app.asked:
            if not each.size.done():
                self.turn(partial(each.size.set_result, 0))
        self.loop.run_until_complete(self.server.aclose(1))
        assert not self.server.connections and not self.server.running and not self.raised
        assert (self.budget.used, self.budget.waiting) == (0, 0)
        assert self.server.waits.largest() == ("", 0) and not self.server.waits._unknown
        assert all(each.stage not in UNBEGUN for each in self.app.asked)
        self.loop.close()


def numbers_in(data: bytes) -> Iterator[int | None]:
    """The numbers of the whole answers; None for a refusal by the connection, which has none."""
    while b"\r\n\r\n" in data:
        head, _, data = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 ")
        if head.startswith(b"HTTP/1.1 100"):
            continue
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        size = int(fields[b"content-length"])
        body, data = data[:size], data[size:]
        if len(body) == size:
            yield None if body.startswith(b"{") else int(body.partition(b":")[0])


@pytest.fixture(autouse=True)
def nothing_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.ERROR)
    yield
    assert not caplog.records, "an error of ours was logged"


def test_a_body_that_waits_for_room_and_is_given_up_leaves_the_queue() -> None:
    """Found by the model: its function had begun to answer, and kept the place until it ended."""
    model = ConnectionModel()
    model.live(0)
    model.take_room()
    model.ask(70 * KB, "?early", False, [])
    model.send(20)
    model.be_late()
    model.states_agree()
    model.teardown()


def test_a_request_that_is_answered_while_its_body_waits_for_room_leaves_the_queue() -> None:
    """Found by the model: the connection read no more."""
    model = ConnectionModel()
    model.live(40)
    model.take_room()
    model.ask(70 * KB, "?early", False, [])
    model.send(20)
    model.answer(0)
    model.states_agree()
    model.states_agree_with_the_socket()
    model.teardown()


TestConnectionModel = ConnectionModel.TestCase
TestConnectionModel.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
