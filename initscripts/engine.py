"""The engine: which functions have initscripts, which runs there are, and whether there may be one more.

Owns: definitions with their modules, runs, guest threads, the pool of connections. Lives on one asyncio loop; the only
other threads are the guests'. Everything that can go wrong with a run is an outcome in its report.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from initscripts.connections import Connector
from initscripts.guest import Machine, Mould
from initscripts.limits import Budget, EngineLimits
from initscripts.modules import ModuleFile
from initscripts.rpc import ConnectionPool, Dialer, EndpointPolicy, RpcLimits
from initscripts.run import Run, RunRequest
from initscripts.signals import LoopCalls
from initscripts.threads import GuestThreads

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


class _Function:
    """A definition at work."""

    def __init__(self, definition: Definition, dialer: Connector, machine: Machine) -> None:
        self.definition = definition
        self.dialer = dialer
        self.mould: Mould | None = None
        """None: runs are record-only."""
        if definition.module is not None:
            self.mould = Mould(machine, ModuleFile(definition.module), definition.budget)
        self.addresses: Sequence[str] = ()
        """What its last guest connected to first."""

    def close(self) -> None:
        if self.mould is not None:
            self.mould.close()


class Engine:
    """The engine. `async with` it on the loop that it is to live on.

    Args:
        on_abort: called on the loop when a guest aborts the launch, before its run is over: run id, status, message.
        dialer: makes what connects a function's guests; the RPC stacks' own by default.
        tls: for all connections; by default what the system trusts, read at the first."""

    def __init__(
        self,
        limits: EngineLimits,
        *,
        on_abort: Callable[[int, int, str], None] | None = None,
        dialer: Callable[[Definition], Connector] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.limits = limits
        self._on_abort = on_abort
        self._make_dialer = dialer or self._dial
        self._tls = tls
        self._machine = Machine()
        self._functions: dict[int, _Function] = {}
        self._loaded: OrderedDict[int, Mould] = OrderedDict()
        """By function, least recently used first."""
        self._runs: dict[int, Run] = {}
        self._threads: GuestThreads | None = None
        self._calls: LoopCalls | None = None
        self._pool: ConnectionPool | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._calls = LoopCalls(self._loop)
        self._threads = GuestThreads(self.limits.runs, self.limits.ready_threads)
        self._pool = ConnectionPool(
            RpcLimits(idle=self.limits.idle_connections, idle_s=self.limits.idle_s), tls=self._tls
        )
        return self

    async def __aexit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        runs = list(self._runs.values())
        for run in runs:
            run.cancel()
        await asyncio.gather(*(run.done for run in runs))
        assert self._threads is not None and self._pool is not None
        self._threads.close()
        await self._pool.aclose()
        for function in self._functions.values():
            function.close()
        self._functions.clear()

    @property
    def busy(self) -> int:
        """Guests that run."""
        return 0 if self._threads is None else self._threads.busy

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
        assert self._calls is not None and self._threads is not None
        function = self._functions.get(request.function)
        definition = None if function is None else function.definition
        run = Run(
            request,
            Budget() if definition is None else definition.budget,
            self._calls,
            None if definition is None else definition.static_args,
        )
        if run.id in self._runs:
            run.refuse("busy", f"run {run.id} is there already")
            return run
        has_place = self._make_place()
        self._runs[run.id] = run
        run.done.add_done_callback(lambda _: self._runs.pop(run.id, None))
        if function is None:
            run.refuse("bad_module", f"function {request.function} is not defined")
        elif not has_place:
            run.refuse("busy", f"{len(self._runs) - 1} app links are open")
        elif function.mould is None:
            run.begin_record()
        elif self._threads.is_full:
            run.refuse("busy", f"{self._threads.busy} initscripts are running")
        else:
            guest = run.begin(
                function.mould,
                function.dialer,
                function.addresses,
                on_abort=self._abort,
                on_guest_end=functools.partial(self._guest_ended, function),
            )
            self._threads.give(guest)
            # The guest is on its way. The rest can happen while its thread wakes up, or later.
            run.watch()
            self._loop.call_soon(self._look_ahead, request.function, function.mould)
        return run

    def cancel(self, run_id: int) -> None:
        """End a run; its report follows. An unknown one is nothing: it has ended meanwhile."""
        if (run := self._runs.get(run_id)) is not None:
            run.cancel()

    def _make_place(self) -> bool:
        """Whether one link more may be open; the oldest that only waits for an app's last word goes for it."""
        if len(self._runs) < self.limits.links:
            return True
        oldest = next((run for run in self._runs.values() if run.is_lingering), None)
        if oldest is None:
            return False
        self._runs.pop(oldest.id)
        oldest.cancel()
        return True

    def _look_ahead(self, function: int, mould: Mould) -> None:
        """What the next run will be glad of: a thread that is ready; and memory for the modules in use."""
        assert self._threads is not None
        self._threads.prepare()
        self._loaded[function] = mould
        self._loaded.move_to_end(function)
        while len(self._loaded) > self.limits.modules:
            self._loaded.popitem(last=False)[1].unload()

    def _guest_ended(self, function: _Function, addresses: Sequence[str]) -> None:
        assert self._threads is not None
        self._threads.done()
        function.addresses = addresses[:AHEAD]

    def _abort(self, run: Run) -> None:
        if self._on_abort is not None:
            self._on_abort(run.id, run.verdict.status, run.verdict.message)

    def _dial(self, definition: Definition) -> Connector:
        assert self._pool is not None
        policy = EndpointPolicy(definition.budget.endpoints, self.limits.denied_ports)
        return Dialer(definition.env, policy, self._pool)


def set_switch_interval() -> None:
    """Let the loop and the guests' threads give way to each other sooner than after Python's 5 ms."""
    sys.setswitchinterval(0.0005)
