"""What engine tests stand in: an engine, the app's end of a link, and an HTTP server that answers what the test sets.

Owns: sockets and files, for the time of an `async with`.
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import socket
import time
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from sockd_initscripts.engine import modules
from sockd_initscripts.engine.engine import Definition, Engine
from sockd_initscripts.engine.run import Run, RunRequest
from sockd_initscripts.limits import EngineLimits
from sockd_initscripts.report import RunReport
from sockd_storage_lib.sockd_initscript import wire
from tests.initscripts.guests import NOTES, notes_in

_ONE_FD = socket.CMSG_SPACE(array("i").itemsize)
compiled: dict[bytes, bytes] = {}


def compile_once(wasm: bytes) -> bytes:
    """modules.compile_module, for tests that use a module again."""
    if wasm not in compiled:
        compiled[wasm] = modules.compile_module(wasm)
    return compiled[wasm]


class App:
    """The function's end of an app link."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)
        self.said: list[dict[str, Any]] = []
        """All that came, in order."""
        self.fds: list[int] = []
        """Descriptors of connections, the test's to close."""
        self._segments: dict[int, mmap.mmap] = {}
        self.contents: dict[int, bytes] = {}
        """The contents of messages, by id."""

    async def next(self) -> dict[str, Any] | None:
        """The next message; None at the end of the link."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self.sock.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self.sock.fileno())
        try:
            data, beside, _, _ = self.sock.recvmsg(wire.MAX_DATAGRAM, _ONE_FD, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None
        if not data:
            return None
        message, _ = wire.decode(data)
        self.said.append(message)
        for _, _, content in beside:
            self._take(message, array("i", content)[0])
        if message["op"] == "message":
            self.contents[message["id"]] = self._content(message)
        return message

    async def until(self, op: str) -> dict[str, Any]:
        """The next message of this kind."""
        while message := await self.next():
            if message["op"] == op:
                return message
        raise AssertionError(f"the link ended without {op!r}: {self.said}")

    def say(self, message: dict[str, Any], payload: bytes = b"", fd: int | None = None) -> None:
        beside = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]))]
        self.sock.sendmsg([wire.encode(message, payload)], beside)

    @property
    def ops(self) -> list[str]:
        return [message["op"] for message in self.said]

    @property
    def notes(self) -> list[int]:
        """What the guest noted; see guests.py."""
        return notes_in(self.contents.get(NOTES, b""))

    def close(self) -> None:
        self.sock.close()
        for segment in self._segments.values():
            segment.close()
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()

    def _take(self, message: dict[str, Any], fd: int) -> None:
        if message["op"] != "message":
            self.fds.append(fd)
            if message["op"] == "file":
                self.contents[message["id"]] = os.pread(fd, message["length"] + 1, 0)
                os.ftruncate(fd, 2 * message["length"])
                os.pwrite(fd, b"own", 0)
            return
        self._segments[message["segment"]] = mmap.mmap(fd, message["size"], prot=mmap.PROT_READ)
        os.close(fd)

    def _content(self, message: dict[str, Any]) -> bytes:
        if not message["length"]:
            return b""
        offset = message["offset"]
        return self._segments[message["segment"]][offset : offset + message["length"]]


class Ran(msgspec.Struct):
    """A run that is over."""

    report: RunReport
    app: App


class Room:
    """An engine and a place for its modules."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self.engine = engine
        self._directory = directory
        self._numbers = itertools.count(1)
        self.aborts: list[tuple[int, int, str]] = []

    def define(self, wasm: bytes | None, **more: Any) -> int:
        """A function's id."""
        number = next(self._numbers)
        path = None
        if wasm is not None:
            path = self._directory / f"{number}.cwasm"
            path.write_bytes(compile_once(wasm))
        self.engine.define(Definition(id=number, name=f"f{number}", module=path, **more))
        return number

    def start(
        self, function: int, given: bytes | int = b"{}", known: tuple[tuple[str, ...], ...] = ()
    ) -> tuple[Run, App]:
        """A run and its app."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = RunRequest(
            id=next(self._numbers),
            function=function,
            input=given,
            app=theirs,
            arrived_ns=time.monotonic_ns(),
            known=known,
        )
        return self.engine.start(request), App(ours)

    async def run(self, wasm: bytes, given: bytes | int = b"{}", **more: Any) -> Ran:
        """A run to its end; the app hears everything, says nothing, and hangs up."""
        run, app = self.start(self.define(wasm, **more), given)
        return await self.finish(run, app)

    async def finish(self, run: Run, app: App) -> Ran:
        """The same for a run that goes on."""
        await app.until("end")
        app.close()
        return Ran(await run.done, app)


@asynccontextmanager
async def room(directory: Path, *, limits: EngineLimits | None = None, dialer: Any = None) -> AsyncIterator[Room]:
    """A room for a test."""
    aborts: list[tuple[int, int, str]] = []
    engine = Engine(limits or EngineLimits(), on_abort=lambda *said: aborts.append(said), dialer=dialer)
    async with engine:
        made = Room(engine, directory)
        made.aborts = aborts
        yield made


class HttpServer:
    """Answers `GET /path` with what `answers` says of it: a body, or a coroutine function that returns one."""

    def __init__(self, answers: dict[str, bytes | Callable[[], Any]]) -> None:
        self.answers = answers
        self.requests: list[str] = []
        self.peers: list[Any] = []
        """The other ends' addresses, one for each connection."""
        self.asked = asyncio.Event()
        self.address = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peers.append(writer.get_extra_info("peername"))
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split()[1].decode()
                self.requests.append(path)
                self.asked.set()
                answer = self.answers[path]
                body = answer if isinstance(answer, bytes) else await answer()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionResetError):
            writer.close()


@asynccontextmanager
async def http_server(**answers: bytes | Callable[[], Any]) -> AsyncIterator[HttpServer]:
    """A server on the loopback; `hello=b"…"` answers `GET /hello`."""
    made = HttpServer({f"/{name}": answer for name, answer in answers.items()})
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(made._serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    made.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
