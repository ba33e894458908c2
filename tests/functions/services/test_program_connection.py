"""Connections to programs of services that answer before they have read all, that are slow, or that break off."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sockd.base.errors import ServiceAnswerLost
from sockd.base.invoke_request import Sink
from sockd.functions.services.byte_streams import pass_on
from sockd.functions.services.http_relay import relay
from sockd.functions.services.program_connection import MOST_UNSENT_BYTES, ProgramConnection

pytestmark = pytest.mark.anyio
DEADLINE_S = 20
BODY = bytes(range(256)) * (1 << 14)
"""4 MiB: more than the kernel takes of a program that reads none of it."""
ANSWER = bytes(range(255, -1, -1)) * 400
"""100 KB: more than one read, and less than the kernel takes of a client that reads none of it."""
Program = Callable[[socket.socket], object]


class Served:
    """A program that serves one connection in a thread."""

    def __init__(self, program: Program) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._program = program
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    async def connect(self) -> ProgramConnection:
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, self._listener.getsockname())
        return ProgramConnection(sock)

    def wait(self) -> None:
        """Until the program has ended, the caller's event loop standing still."""
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.wait()

    def _serve(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(DEADLINE_S)
            self._program(connection)


@contextmanager
def served(program: Program) -> Iterator[Served]:
    made = Served(program)
    try:
        yield made
    finally:
        made.close()


def answers_early(connection: socket.socket) -> None:
    """Answer at the first bytes, and close with bytes unread: the kernel resets the connection."""
    connection.recv(1)
    connection.sendall(ANSWER)


def refuses_early(connection: socket.socket) -> None:
    connection.recv(1)
    connection.sendall(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: %d\r\n\r\n" % len(ANSWER) + ANSWER)


class Upload:
    """A client that sends without end, and reads."""

    def __init__(self, before_second: Callable[[], None]) -> None:
        self.got = bytearray()
        self.has_ended = False
        self._before_second = before_second
        self._pieces = 0

    async def read(self, _: int, /) -> bytes:
        self._pieces += 1
        if self._pieces == 2:
            self._before_second()
        await asyncio.sleep(0)
        return BODY[: 1 << 16]

    def write(self, data: bytes, /) -> None:
        self.got += data

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def write_eof(self) -> None:
        self.has_ended = True


class Answer(Sink):
    """The answer to a request."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""

    async def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status

    async def chunk(self, data: bytes) -> None:
        self.body += data


async def ask(program: ProgramConnection, body: bytes = BODY) -> Answer:
    answer = Answer()
    http = {
        "method": "POST",
        "raw_path": "/",
        "query": "",
        "root_path": "",
        "headers": [["content-length", str(len(body))]],
    }
    await relay(program, http, body, answer, timeout_s=DEADLINE_S)
    return answer


async def test_an_early_answer_reaches_a_client_that_still_sends() -> None:
    with served(answers_early) as program:
        connection = await program.connect()
        client = Upload(before_second=program.wait)
        async with asyncio.timeout(DEADLINE_S):
            await pass_on(client, client, connection)
        connection.close()
    assert bytes(client.got) == ANSWER


async def test_an_early_answer_to_a_request_is_its_answer() -> None:
    with served(refuses_early) as program:
        connection = await program.connect()
        asking = asyncio.create_task(ask(connection))
        await asyncio.sleep(0)
        program.wait()
        answer = await asking
        connection.close()
    assert (answer.status, answer.body) == (413, ANSWER)


async def test_a_program_that_breaks_off_without_an_answer_is_reported() -> None:
    with served(lambda connection: connection.recv(1)) as program:
        connection = await program.connect()
        with pytest.raises(ServiceAnswerLost, match="broke the connection off") as lost:
            await ask(connection)
        connection.close()
    assert lost.value.is_reset


async def test_what_a_slow_program_reads_is_whole_and_ended() -> None:
    read = bytearray()
    may_read = threading.Event()

    def reads_late(connection: socket.socket) -> None:
        may_read.wait(DEADLINE_S)
        while data := connection.recv(1 << 20):
            read.extend(data)
        connection.sendall(b"all of it")

    with served(reads_late) as program:
        connection = await program.connect()
        connection.write(BODY)
        connection.write(ANSWER)
        connection.write_eof()
        draining = asyncio.create_task(connection.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        may_read.set()
        await asyncio.wait_for(draining, DEADLINE_S)
        assert connection._unsent_bytes <= MOST_UNSENT_BYTES
        assert await connection.read(100) == b"all of it"
        assert await connection.read(100) == b""
        connection.close()
    assert bytes(read) == BODY + ANSWER


async def test_a_read_that_waits_ends_when_it_is_broken_off() -> None:
    with served(lambda connection: connection.recv(1)) as program:
        connection = await program.connect()
        reading = asyncio.create_task(connection.read(100))
        await asyncio.sleep(0)
        connection.break_off()
        assert await asyncio.wait_for(reading, DEADLINE_S) == b""
        connection.close()
        connection.break_off()
