"""The daemon's side of the engine: functions defined once, runs started without waiting, reports as they come.

Owns the wire to the engine, and what must survive its process: the definitions, sent again to the next one. The engine is
started when the first function with an initscript asks for it. When it dies its runs end as `engine_died`, and until the
next one is ready nothing is prefetched: no request ever waits for the engine.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import Sequence

from sockd.base.extras import installing
from sockd.linux.confined.confined_process import Jail
from sockd_initscripts import wire
from sockd_initscripts.client.daemon_run import Definition, Ending, Run
from sockd_initscripts.client.engine_software import missing
from sockd_initscripts.client.engine_wire import EngineWire
from sockd_initscripts.client.keeper import START_DEADLINE_S, EngineKeeper, EngineSettings
from sockd_initscripts.errors import WireError
from sockd_initscripts.limits import EngineLimits

LINKS_AHEAD = 4
"""App links made before they are needed: making one takes 60 us, which a cold start would wait for."""
DIED = "engine_died"
"""How its runs end when the engine does."""
NOT_READY, BUSY, NO_MEMORY = "not_ready", "busy", "no_memory"
"""Why a cold start had no run: there is no engine now; too many runs; no memory for the region."""

_log = logging.getLogger(__name__)


class EngineDown(Exception):
    """There is no engine, and the message says why."""


class EngineClient:
    """One per worker. `open` allows it to start; `close` ends it."""

    def __init__(self, jail: Jail, settings: EngineSettings) -> None:
        self._most_runs = settings.runs
        self._loop = asyncio.get_running_loop()
        self._limits: EngineLimits | None = None
        self._keeper = EngineKeeper(jail, settings, on_start=self._attach, on_end=self._detach)
        self._definitions: dict[int, Definition] = {}
        self._runs: dict[int, Run] = {}
        """Until their reports have come, which is when the app has gone, too. The engine bounds them (EngineLimits.links)."""
        self._under_way: set[int] = set()
        """Ids of the runs whose scripts have not ended."""
        self._numbers = itertools.count(1)
        self._ready = asyncio.Event()
        self._wire: EngineWire | None = None
        self._links: list[tuple[socket.socket, socket.socket]] = []
        self.outcomes: dict[str, int] = {}
        """Runs by how they ended, and cold starts without one by the reason."""
        self.prefetched_bytes = 0

    # -- its life

    def open(self, limits: EngineLimits) -> None:
        """From now on the engine may start, and does if a function waits for it."""
        self._limits = limits
        if self._definitions:
            self.want()

    def want(self) -> None:
        """Have the engine started, unless it is. Never waits."""
        if self._limits is not None and not missing():
            self._keeper.keep(self._limits)

    async def ready(self, deadline_s: float = START_DEADLINE_S) -> None:
        """Have it started and wait until it serves. Raises: EngineDown."""
        self.want()
        if lacking := missing():
            raise EngineDown(f"{', '.join(lacking)} not installed: {installing('initscripts')}")
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
        return self._keeper.pid

    @property
    def starts(self) -> int:
        """How often one was started."""
        return self._keeper.starts

    @property
    def why_down(self) -> str:
        """Why there is no engine now, for people."""
        return self._keeper.why_down

    @property
    def running(self) -> int:
        """Scripts under way."""
        return len(self._under_way)

    @property
    def defined(self) -> int:
        """Functions that it knows."""
        return len(self._definitions)

    def memory_bytes(self) -> int:
        """What its cgroup is charged for, regions included."""
        return self._keeper.memory_bytes()

    async def close(self) -> None:
        """End it, and let go of all definitions."""
        self._limits = None
        await self._keeper.close()
        for number in list(self._definitions):
            self.forget(number)
        for link in self._links:
            close_pair(link)
        self._links.clear()

    # -- calls of its owner

    def define(self, definition: Definition) -> None:
        """Make a function known, to this engine and to those after it; the client owns its descriptors from now on."""
        self._definitions[definition.id] = definition
        self._tell(definition.message(), definition.fds)
        self.want()

    def forget(self, number: int) -> None:
        """Take a definition back; runs of it go on. An unknown one is fine."""
        definition = self._definitions.pop(number, None)
        if definition is None:
            return
        self._tell(wire.Forget(id=number))
        definition.close()

    def start(
        self, function: int, request_id: bytes, event: bytes, arrived_ns: int, known: tuple[tuple[str, ...], ...] = ()
    ) -> Run | None:
        """Start a run, at once or not at all: what is not done now would come too late. Never waits, never raises.

        Args: function: a Definition's id; event: its input; arrived_ns: of the request, CLOCK_MONOTONIC; known: what the
            function has read already (`wire.Start`)."""
        if self._wire is None or not self.serving or function not in self._definitions:
            return self._none(NOT_READY)
        if len(self._under_way) >= self._most_runs:
            return self._none(BUSY)
        try:
            link, theirs = self._links.pop() if self._links else new_link()
        except OSError:
            return self._none(BUSY)  # out of descriptors
        number = next(self._numbers)
        message = wire.Start(
            run=number, function=function, request=request_id.hex(), arrived_ns=arrived_ns, known=known
        )
        if not self._send(self._wire, message, event, theirs):
            link.close()
            return self._none(BUSY)
        # After it was sent: what the engine does takes longer than all that is done here.
        run = self._runs[number] = Run(number, link, self.cancel)
        self._under_way.add(number)
        return run

    def _send(self, engine: EngineWire, message: wire.Start, event: bytes, link: socket.socket) -> bool:
        """Send a run to the engine, and close the daemon's copy of the link's end; False: it cannot be sent now."""
        fds = [link.fileno()]
        try:
            if len(event) > wire.EVENT_LIMIT_BYTES:
                fds.append(memory_file(event))
                event = b""
            return engine.start_now(message, event, fds)
        except (OSError, WireError):
            return False
        finally:
            self._loop.call_soon(link.close)
            for fd in fds[1:]:
                os.close(fd)

    def refuse(self, reason: str) -> None:
        """Count a cold start that has no run."""
        self.outcomes[reason] = self.outcomes.get(reason, 0) + 1

    def _none(self, reason: str) -> Run | None:
        self.refuse(reason)
        return None

    def cancel(self, run: Run) -> None:
        """Stop a run; its report still comes."""
        self._tell(wire.Cancel(run=run.id))

    def _tell(self, message: wire.ToEngine, fds: Sequence[int] = ()) -> None:
        """Send a message to the engine. Without an engine it is not needed: the next one gets all that it must know."""
        if self._wire is not None:
            self._wire.tell(message, fds)

    # -- what it tells

    def _attach(self, control: socket.socket, starts: socket.socket) -> None:
        self._wire = EngineWire(control, starts, on_message=self._take, on_end=self._keeper.kill)
        for definition in self._definitions.values():
            self._wire.tell(definition.message(), definition.fds)

    def _detach(self) -> None:
        self._ready.clear()
        engine, self._wire = self._wire, None
        if engine is not None:
            engine.close()
        for run in list(self._runs.values()):
            self._end(run, Ending(DIED))

    def _take(self, message: wire.ToDaemon, data: bytes) -> None:
        if isinstance(message, wire.Ready):
            self._keeper.serves()
            self._ready.set()
            self._make_links()
            _log.info("the initscript engine is ready (wasmtime %s)", message.wasmtime)
            return
        run = self._runs.get(message.report.run if isinstance(message, wire.Done) else message.run)
        if run is None:
            raise WireError("the end of a run that was not started")
        if isinstance(message, wire.Done):
            run.encoded, report = data, message.report
            fetched = sum(rpc.bytes for rpc in report.rpcs)
            self._end(run, Ending(report.outcome, report.status, report.message, report.region_bytes, fetched))
        elif isinstance(message, wire.Ended):
            self._under_way.discard(run.id)
        else:
            run.abort = message
            for listener in run.abort_listeners:
                listener()

    def _end(self, run: Run, ending: Ending) -> None:
        del self._runs[run.id]
        self._under_way.discard(run.id)
        self.outcomes[ending.outcome] = self.outcomes.get(ending.outcome, 0) + 1
        self.prefetched_bytes += ending.fetched_bytes
        run.done.set_result(ending)
        self._make_links()

    def _make_links(self) -> None:
        """Have some for the next runs."""
        try:
            while len(self._links) < LINKS_AHEAD and self._limits is not None:
                self._links.append(new_link())
        except OSError:
            return  # out of descriptors; a run that needs one makes it, and gets the error


def new_link() -> tuple[socket.socket, socket.socket]:
    """Both ends of an app link: the sandbox's and the engine's. Raises: OSError."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def close_pair(link: tuple[socket.socket, socket.socket]) -> None:
    """Let go of a link that was not used."""
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
