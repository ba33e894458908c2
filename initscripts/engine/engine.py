"""The engine: which functions have initscripts, which runs there are, and whether there may be one more.

Owns: definitions with their modules, runs, guest threads, the pool of connections. Lives on one asyncio loop; the only
other threads are the guests', which wait for starts from outside themselves and begin their runs. Everything that can go
wrong with a run is an outcome in its report.
"""

from __future__ import annotations

import asyncio
import functools
import queue
import ssl
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import msgspec

from sockd_initscripts.engine.alarm import Alarm
from sockd_initscripts.engine.connections import Connector
from sockd_initscripts.engine.guest import GuestTemplate, Machine
from sockd_initscripts.engine.modules import ModuleFile
from sockd_initscripts.engine.run import Run, RunRequest
from sockd_initscripts.engine.signals import LoopCalls, Waiting
from sockd_initscripts.engine.threads import GuestThreads
from sockd_initscripts.limits import Budget, EngineLimits
from sockd_initscripts.report import Outcome, RunReport
from sockd_initscripts.rpc import DENIED, ConnectionPool, Dialer, EndpointPolicy, RpcLimits

CANCELLED = 1024
"""Runs that are remembered as cancelled though they are not known. Far fewer starts can be on their way at a time."""
AHEAD = 4
"""Connections that are made before a guest asks for them, because the one before did."""


class Definition(msgspec.Struct, kw_only=True):
    """A function's initscript, as the daemon defines it."""

    id: int
    name: str
    module: Path | int | None = None
    """A compiled file: its path, or an fd that is the engine's to close. None: runs are record-only."""
    env: dict[str, str] = {}
    """The function's environment: its endpoints and credentials, which guests never see."""
    budget: Budget = Budget()
    static_args: bytes | None = None
    """The guest's input instead of the event."""
    authorities: bytes | None = None
    """Certificates (PEM) of the only authorities that its AWS services are trusted by; None: the system's."""


class Starter(Protocol):
    """Who starts runs from outside of the engine's loop."""

    def next_start(self) -> RunRequest | None:
        """In a guest's thread: wait for one. None: there will be no more."""

    def broke(self, error: Exception) -> None:
        """In a guest's thread: one such failed, and a start may be lost. The engine is to end."""

    def catch_up(self) -> None:
        """On the loop: do what was asked for before the last start, such as defining its function."""

    def guest_ended(self, run: int) -> None:
        """On the loop, before the end of each run that was started so and has a guest."""

    def run_done(self, done: asyncio.Future[RunReport]) -> None:
        """On the loop, at the end of each run that was started so."""


class _Function:
    """A definition at work."""

    def __init__(self, definition: Definition, dialer: Connector, machine: Machine) -> None:
        self.definition = definition
        self.dialer = dialer
        self.template: GuestTemplate | None = None
        """None: runs are record-only."""
        if definition.module is not None:
            self.template = GuestTemplate(machine, ModuleFile(definition.module), definition.budget)
        self.addresses: Sequence[str] = ()
        """What its last guest connected to first."""

    def close(self) -> None:
        if self.template is not None:
            self.template.close()


class Engine:
    """The engine. `async with` it on the loop that it is to live on.

    Args:
        on_abort: called on the loop when a guest aborts the launch, before its run is over: run id, status, message.
        dialer: makes what connects a function's guests; the RPC stacks' own by default.
        starter: starts runs; None: `start` does. Its starts have to end before the engine is closed.
        tls: for all connections; by default what the system trusts, read at the first."""

    def __init__(
        self,
        limits: EngineLimits,
        *,
        on_abort: Callable[[int, int, str], None] | None = None,
        dialer: Callable[[Definition], Connector] | None = None,
        starter: Starter | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.limits = limits
        self._on_abort = on_abort
        self._make_dialer = dialer or self._dial
        self._starter = starter
        self._given: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._tls = tls
        self._machine = Machine()
        self._functions: dict[int, _Function] = {}
        self._loaded: OrderedDict[int, GuestTemplate] = OrderedDict()
        """By function, least recently used first."""
        self._runs: dict[int, Run] = {}
        """Changed by guests' threads, too, one entry at a time."""
        self._guests: set[int] = set()
        """The runs whose guests have not ended."""
        self._cancelled: OrderedDict[int, None] = OrderedDict()
        """Runs that were not known when they were cancelled: they had just ended, or their start is on its way."""
        self._is_closing = False
        self._threads: GuestThreads | None = None
        self._calls: LoopCalls | None = None
        self._pool: ConnectionPool | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._calls = LoopCalls(self._loop)
        self._threads = GuestThreads(self.limits.runs, self.limits.ready_threads, self._turn, self._calls)
        self._pool = ConnectionPool(
            RpcLimits(idle=self.limits.idle_connections, idle_s=self.limits.idle_s), tls=self._tls
        )
        return self

    async def __aexit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        assert self._threads is not None and self._pool is not None and self._calls is not None
        self._is_closing = True
        for _ in range(self._threads.count):
            self._given.put(None)
        for run in list(self._runs.values()):
            run.cancel()
        await self._threads.aclose()
        await asyncio.gather(*(run.done for run in self._runs.values()))
        await self._pool.aclose()
        self._calls.watched.close()
        for function in self._functions.values():
            function.close()
        self._functions.clear()

    @property
    def busy(self) -> int:
        """Guests that run."""
        return len(self._guests)

    def define(self, definition: Definition) -> None:
        """Know a function, in place of an earlier definition with its id. Nothing is loaded yet.

        Raises ValueError when there are too many; an fd is closed then, too."""
        self.forget(definition.id)
        if len(self._functions) >= self.limits.functions:
            if isinstance(definition.module, int):
                ModuleFile(definition.module).close()
            raise ValueError(f"more than {self.limits.functions} functions")
        self._functions[definition.id] = _Function(definition, self._make_dialer(definition), self._machine)

    def forget(self, function: int) -> None:
        """Know it no longer; its runs go on. An unknown one is nothing."""
        self._loaded.pop(function, None)
        if (known := self._functions.pop(function, None)) is not None:
            known.close()

    def start(self, request: RunRequest) -> Run:
        """Begin a run. Never fails: what is wrong is the outcome in the report."""
        run = self._open(request)
        refused = self._admit(run, request)
        if refused is not None:
            run.refuse(*refused)
        elif run.is_recording:
            run.record()
        else:
            assert self._threads is not None
            self._threads.have(len(self._guests))
            self._given.put(run)
        return run

    def cancel(self, run_id: int) -> None:
        """End a run, also one whose start is still on its way; its report follows. One that has ended is nothing."""
        if run_id not in self._runs:
            self._cancelled[run_id] = None
            if len(self._cancelled) > CANCELLED:
                self._cancelled.popitem(last=False)
        # Asked once more: a thread enters its run and then looks whether that is cancelled.
        if (run := self._runs.get(run_id)) is not None:
            self._cancelled.pop(run_id, None)
            run.cancel()

    # -- in guests' threads

    def _turn(self, alarm: Alarm) -> bool:
        """Wait for a start, and live it; False at the end of all starts."""
        if self._starter is None:
            run = self._given.get()
            if run is not None:
                run.live(alarm)
            return run is not None
        try:
            request = self._starter.next_start()
            if request is not None:
                self._serve(self._starter, request, alarm)
        except Exception as error:
            self._starter.broke(error)
            return False
        return request is not None

    def _serve(self, starter: Starter, request: RunRequest, alarm: Alarm) -> None:
        """All of a run that was started from outside: until its guest has ended, if there is one."""
        assert self._calls is not None and self._threads is not None
        if request.function not in self._functions:
            self._calls.ask(Waiting(), starter.catch_up)
        run = self._open(request)
        run.done.add_done_callback(starter.run_done)
        refused = self._admit(run, request)
        if refused is not None:
            self._calls.post(run.refuse, *refused)
        elif run.is_recording:
            self._calls.post(run.record)
        else:
            # As many that wait as there are at work: starts of a burst that are not waited for come too late to be of use.
            if self._threads.count < (wanted := min(2 * len(self._guests), self.limits.runs)):
                self._calls.post(self._threads.have, wanted)
            if self._is_closing or run.id in self._cancelled:
                self._calls.post(self.cancel, run.id)
            run.live(alarm)

    # -- in any thread

    def _open(self, request: RunRequest) -> Run:
        assert self._calls is not None
        function = self._functions.get(request.function)
        definition = None if function is None else function.definition
        budget = Budget() if definition is None else definition.budget
        return Run(request, budget, self._calls, None if definition is None else definition.static_args)

    def _admit(self, run: Run, request: RunRequest) -> tuple[Outcome, str] | None:
        """Enter a run among those that there are, and begin it if it has a guest; or say how it ends before it has begun."""
        function = self._functions.get(request.function)
        if function is None:
            return "bad_module", f"function {request.function} is not defined"
        if run.id in self._runs:
            return "busy", f"run {run.id} is there already"
        if not self._make_place():
            return "busy", f"{len(self._runs)} app links are open"
        if function.template is None:
            run.verdict.set("record")
        else:
            if len(self._guests) >= self.limits.runs:
                return "busy", f"{len(self._guests)} initscripts are running"
            run.begin(
                function.template,
                function.dialer,
                function.addresses,
                on_abort=self._abort,
                on_guest_end=functools.partial(self._guest_ended, run.id, request.function, function),
            )
            self._guests.add(run.id)
        self._runs[run.id] = run
        run.done.add_done_callback(lambda _: self._runs.pop(run.id, None))
        return None

    def _make_place(self) -> bool:
        """Whether one link more may be open; the oldest that only waits for an app's last word goes for it."""
        assert self._calls is not None
        while len(self._runs) >= self.limits.links:
            oldest = next((run for run in list(self._runs.values()) if run.is_lingering), None)
            if oldest is None:
                return False
            if self._runs.pop(oldest.id, None) is not None:
                self._calls.post(oldest.cancel)
        return True

    # -- on the loop

    def _guest_ended(self, run: int, number: int, function: _Function, addresses: Sequence[str]) -> None:
        """See what the next run will be glad of: where to connect to, a thread that is ready, memory for the modules in use."""
        assert self._threads is not None
        self._guests.discard(run)
        if self._starter is not None:
            self._starter.guest_ended(run)
        function.addresses = addresses[:AHEAD]
        if function.template is not None and number in self._functions:
            self._loaded[number] = function.template
            self._loaded.move_to_end(number)
        while len(self._loaded) > self.limits.modules:
            self._loaded.popitem(last=False)[1].unload()

    def _abort(self, run: Run) -> None:
        if self._on_abort is not None:
            self._on_abort(run.id, run.verdict.status, run.verdict.message)

    def _dial(self, definition: Definition) -> Connector:
        assert self._pool is not None
        denied = self.limits.denied_endpoints
        budget = definition.budget
        policy = EndpointPolicy(
            *(budget.endpoints, self.limits.denied_ports, DENIED if denied is None else denied, budget.private),
            host_ports=self.limits.host_ports,
        )
        return Dialer(definition.env, policy, self._pool, authorities=definition.authorities)


def set_switch_interval() -> None:
    """Let the loop and the guests' threads give way to each other sooner than after Python's 5 ms."""
    sys.setswitchinterval(0.0005)
