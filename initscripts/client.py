"""The daemon's side of the engine: functions defined once, runs started without waiting, reports as they come.

Owns the engine's process, the wire to it, and what must survive the process: the definitions, sent again to the next
one. The engine is started when the first function with an initscript asks for it. When it dies its runs end as
`engine_died`, it is started anew after a pause that grows from failure to failure, and meanwhile nothing is prefetched:
no request ever waits for the engine.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from initscripts import wire
from initscripts.errors import WireError
from initscripts.limits import Budget, EngineLimits
from initscripts.process import ConfinedProcess, Ground, missing
from initscripts.report import RunReport

START_DEADLINE_S = 30.0
"""From exec to `ready`: half a second of imports on an idle machine."""
FIRST_PAUSE_S, LONGEST_PAUSE_S, STEADY_S = 0.1, 30.0, 60.0
"""Pauses before a restart; an engine that lived for so long is forgiven its earlier deaths."""
SEND_BUFFER_BYTES = 4 << 20
SO_SNDBUFFORCE = 32
LINKS_AHEAD = 4
"""App links made before they are needed: making one takes 60 us, which a cold start would wait for."""
MAX_PIDS = 512
"""Threads: one for each run, and those of grpc and wasmtime."""
OPEN_FILES = 16384

DIED, CANCELLED = "engine_died", "cancelled"
NOT_READY, BUSY, NO_MEMORY = "not_ready", "busy", "no_memory"
"""Why a cold start had no run beside it: there is no engine now; too many runs; no memory for the region."""

_log = logging.getLogger(__name__)


class EngineDown(Exception):
    """There is no engine, and the message says why."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What one engine process is held to."""

    uid: int
    memory_bytes: int
    """Of its cgroup, regions included."""
    region_bytes: int
    """Of all regions together: the size of its tmpfs."""
    runs: int
    """Most at a time."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A function as the engine knows it. Owns `module_fd` once the client has it."""

    id: int
    name: str
    module_fd: int
    """Its compiled module; -1: none, its sandboxes are only listened to (a recording)."""
    env: dict[str, str]
    budget: Budget
    static_args: bytes | None = None

    @property
    def fds(self) -> tuple[int, ...]:
        return (self.module_fd,) if self.module_fd >= 0 else ()

    def message(self) -> wire.Define:
        return wire.Define(id=self.id, name=self.name, env=self.env, budget=self.budget, static_args=self.static_args)


class Ending(msgspec.Struct, frozen=True):
    """What the daemon itself needs of a run's report; the whole is kept as it came."""

    outcome: str
    """One of `initscripts.report.Outcome`, or `engine_died`."""
    status: int = 0
    message: str = ""
    region_bytes: int = 0


class Run:
    """One run of an initscript, beside the start of one sandbox."""

    def __init__(self, client: EngineClient, number: int, link: socket.socket) -> None:
        self.id = number
        self.link = link
        """The sandbox's end of the app link; ours to close once the sandbox was sent a copy."""
        self.done: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self.abort: wire.Abort | None = None
        """What its script said when it called the launch off."""
        self.on_abort: Callable[[], None] = lambda: None
        """Called once, when it does."""
        self.told = b""
        """The engine's report as it came; empty until the run is over, and for good if the engine died."""
        self._client = client

    @property
    def ending(self) -> Ending | None:
        """How it ended; None while it goes on."""
        return self.done.result() if self.done.done() else None

    def report(self) -> RunReport | None:
        """The engine's report; None while the run goes on, and if the engine died."""
        if not self.told:
            return None
        message, _ = wire.decode_to_daemon(self.told, 0)
        return message.report if isinstance(message, wire.Done) else None

    def close_link(self) -> None:
        """Let go of our copy of the sandbox's end. Safe to call twice."""
        self.link.close()

    def cancel(self) -> None:
        """Nobody needs it any more: the engine stops it, and its report still comes. Safe at any time."""
        self.link.close()
        if not self.done.done():
            self._client.cancel(self)


class EngineClient:
    """One per worker. `open` allows it to start; `close` ends it."""

    def __init__(self, ground: Ground, settings: EngineSettings) -> None:
        self._ground = ground
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._limits = EngineLimits()
        self._definitions: dict[int, Definition] = {}
        self._runs: dict[int, Run] = {}
        self._numbers = itertools.count(1)
        self._opened = False
        self._closing = asyncio.Event()
        self._ready = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._sock: socket.socket | None = None
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._process: ConfinedProcess | None = None
        self._links: list[tuple[socket.socket, socket.socket]] = []
        self.why_down = "not needed yet"
        """Why there is no engine now, for people."""
        self.starts = 0
        self.outcomes: dict[str, int] = {}
        """Runs by how they ended, and cold starts without one by the reason."""
        self.prefetched_bytes = 0

    # -- its life

    def open(self, limits: EngineLimits) -> None:
        """From now on the engine may start, and does if a function waits for it."""
        self._limits = limits
        self._opened = True
        if self._definitions:
            self.want()

    def want(self) -> None:
        """Have the engine started, unless it is. Never waits."""
        if self._opened and self._keeping is None and not self._closing.is_set() and not missing():
            self._keeping = self._loop.create_task(self._keep(), name="initscript engine")

    async def ready(self, deadline_s: float = START_DEADLINE_S) -> None:
        """Have it started and wait until it serves. Raises: EngineDown."""
        self.want()
        if lacking := missing():
            raise EngineDown(f"{', '.join(lacking)} not installed: pip install 'sockd[initscripts]'")
        try:
            async with asyncio.timeout(deadline_s):
                await self._ready.wait()
        except TimeoutError:
            raise EngineDown(f"the engine does not start: {self.why_down}") from None

    @property
    def serving(self) -> bool:
        """Whether runs can be started now."""
        return self._ready.is_set()

    @property
    def pid(self) -> int:
        """The launcher's process; 0: there is none."""
        return self._process.launcher.pid if self._process else 0

    @property
    def running(self) -> int:
        """Runs under way."""
        return len(self._runs)

    @property
    def defined(self) -> int:
        """Functions that it knows."""
        return len(self._definitions)

    def memory_bytes(self) -> int:
        """What its cgroup is charged for, regions included."""
        return self._process.cgroup.memory_bytes() if self._process else 0

    async def close(self) -> None:
        """End it, and let go of all definitions."""
        self._closing.set()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        for number in list(self._definitions):
            self.forget(number)
        for link in self._links:
            close_pair(link)
        self._links.clear()

    async def _keep(self) -> None:
        """Start it, again and again, with a growing pause between."""
        pause_s = FIRST_PAUSE_S
        while True:
            started_s = time.monotonic()
            try:
                self.why_down = await self._live()
            except OSError as error:
                self.why_down = str(error)
            if time.monotonic() - started_s > STEADY_S:
                pause_s = FIRST_PAUSE_S
            _log.warning("the initscript engine ended (%s); it is started again in %.1f s", self.why_down, pause_s)
            try:
                async with asyncio.timeout(pause_s):
                    await self._closing.wait()
            except TimeoutError:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _live(self) -> str:
        """One process from its start to its end; how it ended. Raises: OSError."""
        settings, self.why_down = self._settings, "starting"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self._process = await ConfinedProcess.start(
                    self._ground,
                    *("-m", "initscripts", str(theirs.fileno()), msgspec.json.encode(self._limits).decode()),
                    uid=settings.uid,
                    memory_bytes=settings.memory_bytes,
                    tmp_bytes=settings.region_bytes,
                    pids=MAX_PIDS,
                    network="host",
                    keep=(theirs.fileno(),),
                    limits={"RLIMIT_NOFILE": OPEN_FILES},
                )
            self.starts += 1
            self._attach(ours)
            slow = self._loop.call_later(START_DEADLINE_S, self._give_up_starting)
            try:
                return await self._process.wait()
            finally:
                slow.cancel()
        finally:
            self._detach()
            ours.close()
            process, self._process = self._process, None
            if process is not None:
                await process.close()

    def _give_up_starting(self) -> None:
        if not self.serving:
            self._kill()

    def _kill(self) -> None:
        if self._process is not None and self._process.launcher.returncode is None:
            self._process.launcher.kill()

    # -- what it is told

    def define(self, definition: Definition) -> None:
        """Make a function known, to this engine and to those after it; the client owns the module's fd from now on."""
        self._definitions[definition.id] = definition
        if self._sock is not None:
            self._tell_definition(definition)
        else:
            self.want()

    def forget(self, number: int) -> None:
        """Take a definition back; runs of it go on. An unknown one is fine."""
        definition = self._definitions.pop(number, None)
        if definition is None:
            return
        self._tell(wire.Forget(id=number))
        if definition.module_fd >= 0:
            os.close(definition.module_fd)

    def start(self, function: int, request_id: bytes, event: bytes, arrived_ns: int) -> Run | None:
        """Start a run, at once or not at all: what is not done now would come too late. Never waits, never raises.

        Args:
            function: a Definition's id; event: its input; arrived_ns: of the request, CLOCK_MONOTONIC."""
        if not self.serving or self._unsent or function not in self._definitions:
            return self._none(NOT_READY)
        if len(self._runs) >= self._settings.runs:
            return self._none(BUSY)
        try:
            link, theirs = self._links.pop() if self._links else new_link()
        except OSError:
            return self._none(BUSY)  # out of descriptors
        run = Run(self, next(self._numbers), link)
        message = wire.Start(run=run.id, function=function, request=request_id.hex(), arrived_ns=arrived_ns)
        fds = [theirs.fileno()]
        try:
            if len(event) > wire.EVENT_LIMIT_BYTES:
                fds.append(memory_file(event))
                event = b""
            sent = self._send(wire.encode(message, event), fds)
        except OSError:
            sent = False
        finally:
            self._loop.call_soon(theirs.close)
            for fd in fds[1:]:
                os.close(fd)
        if not sent:
            link.close()
            return self._none(BUSY)
        self._runs[run.id] = run
        return run

    def refuse(self, reason: str) -> None:
        """Count a cold start that has no run beside it."""
        self.outcomes[reason] = self.outcomes.get(reason, 0) + 1

    def _none(self, reason: str) -> Run | None:
        self.refuse(reason)
        return None

    def cancel(self, run: Run) -> None:
        """Stop a run; its report still comes."""
        self._tell(wire.Cancel(run=run.id))

    def _tell_definition(self, definition: Definition) -> None:
        self._tell(definition.message(), definition.fds)

    def _tell(self, message: wire.ToEngine, fds: tuple[int, ...] = ()) -> None:
        """Send what must arrive: now, or as the engine reads. Without an engine it is not needed."""
        if self._sock is None:
            return
        try:
            data = wire.encode(message)
            if not self._unsent and self._send(data, fds):
                return
        except (OSError, WireError) as error:
            _log.error("the initscript engine cannot be told: %s", error)
            self._kill()
            return
        if not self._unsent:
            self._loop.add_writer(self._sock.fileno(), self._writable)
        self._unsent.append((data, tuple(os.dup(fd) for fd in fds)))

    def _send(self, data: bytes, fds: Sequence[int]) -> bool:
        """False: it does not fit now. Raises: OSError other than the end of the wire, which the reader sees."""
        assert self._sock is not None
        try:
            wire.send(self._sock, data, fds)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        return True

    def _writable(self) -> None:
        assert self._sock is not None
        while self._unsent:
            data, fds = self._unsent[0]
            if not self._send(data, fds):
                return
            self._unsent.popleft()
            wire.close_all(fds)
        self._loop.remove_writer(self._sock.fileno())

    # -- what it tells

    def _attach(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, SEND_BUFFER_BYTES)
        self._sock = sock
        self._loop.add_reader(sock.fileno(), self._readable)
        for definition in self._definitions.values():
            self._tell_definition(definition)

    def _detach(self) -> None:
        self._ready.clear()
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.remove_reader(sock.fileno())
            self._loop.remove_writer(sock.fileno())
        while self._unsent:
            wire.close_all(self._unsent.popleft()[1])
        for run in list(self._runs.values()):
            self._end(run, Ending(DIED))

    def _readable(self) -> None:
        assert self._sock is not None
        try:
            data, fds = wire.receive(self._sock)
            if data:
                self._take(data, fds)
        except BlockingIOError:
            return
        except WireError as error:
            _log.error("the initscript engine broke its protocol: %s", error)
            data = b""
        if not data:
            self._loop.remove_reader(self._sock.fileno())
            self._kill()  # it has ended, or is of no use

    def _take(self, data: bytes, fds: Sequence[int]) -> None:
        wire.close_all(fds)
        message, _ = wire.decode_to_daemon(data, len(fds))
        if isinstance(message, wire.Ready):
            self.why_down = ""
            self._ready.set()
            self._make_links()
            _log.info("the initscript engine is ready (wasmtime %s)", message.wasmtime)
            return
        run = self._runs.get(message.report.run if isinstance(message, wire.Done) else message.run)
        if run is None:
            raise WireError("the end of a run that nobody started")
        if isinstance(message, wire.Done):
            run.told, report = data, message.report
            self._end(run, Ending(report.outcome, report.status, report.message, report.region_bytes))
        else:
            run.abort = message
            run.on_abort()

    def _end(self, run: Run, ending: Ending) -> None:
        del self._runs[run.id]
        self.outcomes[ending.outcome] = self.outcomes.get(ending.outcome, 0) + 1
        self.prefetched_bytes += ending.region_bytes
        run.done.set_result(ending)
        self._make_links()

    def _make_links(self) -> None:
        """Have some for the next runs."""
        try:
            while len(self._links) < LINKS_AHEAD and not self._closing.is_set():
                self._links.append(new_link())
        except OSError:
            return  # out of descriptors; who needs one makes it, and is told


def new_link() -> tuple[socket.socket, socket.socket]:
    """Both ends of an app link: the sandbox's and the engine's. Raises: OSError."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def close_pair(link: tuple[socket.socket, socket.socket]) -> None:
    """Let go of a link that nobody has used."""
    for end in link:
        end.close()


def memory_file(data: bytes) -> int:
    """A memfd with these bytes, at its beginning. Raises: OSError."""
    fd = os.memfd_create("input", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd
