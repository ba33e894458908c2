"""One running program of a service: its sandbox, and the connections that are open to it.

    start    a sandbox of the function's current version, whose program is ready
    connect  a connection to the program's port, made inside the sandbox's network
    stop     SIGTERM, and SIGKILL if the program has not ended in time

Owns the sandbox. One request lasts as long as the program, so that the program ends as a request does, with an exit status or out
of memory. No handler cache holds the sandbox: nothing freezes or evicts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Callable
from functools import partial

from sockd.base.errors import ServiceNotReady, SockdError, TooManyRequests
from sockd.base.request_ids import request_id_text
from sockd.functions.modules.initscripts import CompanionRun
from sockd.functions.services.health import until_unhealthy
from sockd.functions.services.program_connection import ProgramConnection
from sockd.functions.services.service_log import NoteLog, ServiceLog
from sockd.functions.serving.function import Function
from sockd.functions.serving.version import Version
from sockd.isolation.sandbox.sandbox import Sandbox

LOOPBACK = "127.0.0.1"
CONNECT_S = 5.0
"""How long the program may take to accept a connection, whose queue is full."""


class Instance:
    """Made by `start`; `ended` is done when the program has ended, for whatever reason."""

    def __init__(
        self, sandbox: Sandbox, version: Version, note: NoteLog, on_idle: Callable[[Instance], None], began_s: float
    ) -> None:
        """Args: on_idle: called when the last open connection is closed; began_s: when the start began, by the loop's clock."""
        settings = version.config.service
        assert settings is not None
        self._loop = asyncio.get_running_loop()
        self.sandbox = sandbox
        self.version = version
        self.settings = settings
        self.port = sandbox.process.port or settings.port
        """The port that its program listens on, in its network."""
        self.ready_s = self._loop.time()
        """When the program was ready, by the loop's clock."""
        self.start_s = self.ready_s - began_s
        """How long the start took."""
        self.connections = 0
        """Connections that are open."""
        self.error: SockdError | None = None
        """How the program has ended."""
        self.is_stopping = False
        self.has_refused = False
        """Whether its port has refused a connection: nothing listens there any more."""
        self._on_idle = on_idle
        self._run_id = uuid.uuid4().bytes
        self._log = ServiceLog(version.record.name, version.number, request_id_text(self._run_id), note)
        self._log.follow(sandbox.process.output)
        if isinstance(sandbox.companion, CompanionRun):
            sandbox.companion.run.done.add_done_callback(partial(self._note_script, sandbox.companion))
        self._unused = asyncio.Event()
        self._unused.set()
        self.ended: asyncio.Task[None] = self._loop.create_task(self._run())
        self._health = self._loop.create_task(self._watch_health()) if settings.health_path else None

    @classmethod
    async def start(cls, function: Function, note: NoteLog, on_idle: Callable[[Instance], None]) -> Instance:
        """Start the program of a function's current version, and wait until it is ready.

        Raises: NoCapacity, InitFailed, SandboxDied, TimedOut, and what else a start raises; OSError."""
        began_s = asyncio.get_running_loop().time()
        version = function.version
        memory_bytes = version.program.limits.memory_bytes
        reservation = await function.allowance.reserve(memory_bytes, deadline_s=version.config.init_timeout_s)
        sandbox = await function.initialize(reservation)
        return cls(sandbox, version, note, on_idle, began_s)

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[ProgramConnection]:
        """A connection to the program's port, closed at the end of the block.

        Raises: TooManyRequests; ServiceNotReady: the program does not take it."""
        if self.connections >= self.settings.connections:
            raise TooManyRequests(f"{self.connections} connections are open: service.connections", retry_after_s=1)
        self.connections += 1
        self._unused.clear()
        try:
            program = await self._connect()
            try:
                yield program
            finally:
                program.close()
        finally:
            self.connections -= 1
            if not self.connections:
                self._unused.set()
                self._on_idle(self)

    async def drain(self, within_s: float) -> None:
        """Wait until no connection is open, or the program has ended, or the time is over."""
        unused = self._loop.create_task(self._unused.wait())
        await asyncio.wait((unused, self.ended), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        unused.cancel()

    async def stop(self) -> None:
        """End the program, and wait until it has ended: by SIGTERM, or SIGKILL after `service.stop_s`."""
        self.is_stopping = True
        await self._terminate()

    async def _terminate(self) -> None:
        if self.sandbox.process.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.sandbox.process.pidfd, signal.SIGTERM)
        await asyncio.wait((self.ended,), timeout=self.settings.stop_s)
        self.sandbox.destroy()
        await asyncio.wait((self.ended,))

    def kill(self) -> None:
        """End the program at once. Safe to call twice."""
        self.is_stopping = True
        self.sandbox.destroy()

    @property
    def ran_s(self) -> float:
        """How long it has been ready, in seconds."""
        return self._loop.time() - self.ready_s

    @property
    def memory_bytes(self) -> int:
        """What it uses now, in bytes; 0: that cannot be read."""
        try:
            return self.sandbox.process.cgroup.memory_bytes()
        except OSError:
            return 0

    async def _run(self) -> None:
        """Wait for the end of the program; the log gets the last of what it printed, and why it ended if it was not stopped."""
        reply = await self.sandbox.request(self._run_id, b"{}")
        self.error = self.error or reply.error
        if self._health is not None:
            self._health.cancel()
        why = f"sockd: the service has ended: {self.error.message}\n".encode() if self.error is not None else b""
        self._log.end(reply.log + (b"" if self.is_stopping else why), reply.log_dropped)

    def _note_script(self, script_run: CompanionRun, _: object) -> None:
        """Have the log say what came of the initscript's run: there is no trace of a start without a request."""
        self._log.add("".join(f"sockd: initscript: {line}\n" for line in script_run.words()).encode())

    async def _watch_health(self) -> None:
        """End a program that is not healthy; it has failed then."""
        self.error = ServiceNotReady(await until_unhealthy(self._connect, self.settings, self.port))
        await self._terminate()

    async def _connect(self) -> ProgramConnection:
        try:
            sock = self.sandbox.process.open_socket()
        except OSError as error:
            self.has_refused = True
            raise ServiceNotReady(f"the service has ended: {error.strerror}") from None
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._loop.sock_connect(sock, (LOOPBACK, self.port))
                _check_open(sock)
                return ProgramConnection(sock)
        except OSError as error:  # TimeoutError, too
            sock.close()
            self.has_refused = isinstance(error, ConnectionRefusedError)
            why = "did not take a connection in time" if isinstance(error, TimeoutError) else error.strerror
            raise ServiceNotReady(f"port {self.port} of the service: {why}") from None
        except BaseException:
            sock.close()
            raise


def _check_open(sock: socket.socket) -> None:
    """Raises: ConnectionRefusedError: the program has ended, or closed its port, before it accepted a connection."""
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return
    except ConnectionError as error:
        raise ConnectionRefusedError(*error.args) from None
