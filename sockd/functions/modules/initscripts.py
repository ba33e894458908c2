"""Initscripts of a worker: the modules of functions, and their runs during cold starts.

Owns the store and the engine's client, and each run's part of the memory budget. An initscript can only make a start
faster, or abort it: if the engine, memory or a slot for the run is missing, this is counted, and the sandbox starts without
one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sockd.base.config import MB, InitscriptsConfig
from sockd.base.errors import BadInitscript, LaunchAborted, SockdError
from sockd.base.invoke_request import InvokeRequest
from sockd.functions.code.function_config import FunctionConfig, InitscriptConfig
from sockd.functions.modules.authorities import NONE, open_authorities
from sockd.functions.modules.initscript_store import InitscriptStore
from sockd.isolation.networks import egress
from sockd.isolation.networks.egress import Egress
from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.memory_budget import MemoryBudget, Reservation
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd_initscripts.client.client import DIED, NO_MEMORY, EngineClient, EngineDown
from sockd_initscripts.client.daemon_run import Definition, Ending, Run
from sockd_initscripts.limits import Budget
from sockd_zygote import protocol

ENGINE_DEADLINE_S = 10.0
"""Time that a deploy waits for the engine before it continues without."""
NO_MODULE = -1
"""The descriptor of an initscript that only listens."""

_log = logging.getLogger(__name__)
_numbers = itertools.count(1)


@dataclass(eq=False, slots=True)
class Initscript:
    """What a version's sandboxes are started with. `id` names it to the engine."""

    name: str
    digest: str
    """The digest of the module; empty if there is none, and the engine only reads what the sandboxes send."""
    env: dict[str, str]
    budget: Budget
    static_args: bytes | None
    id: int = 0
    egress: Sequence[str] | None = None
    """What `budget` lets it reach in a private network; as in sockd.toml."""
    code: Path | None = None
    """The function's files; None: they are in an image, or are not needed."""

    @classmethod
    def of(cls, name: str, digest: str, config: FunctionConfig, code: Path | None = None) -> Initscript:
        """A version's, from its settings; without a table [initscript] the defaults hold."""
        settings = config.initscript or InitscriptConfig()
        args = settings.args.encode() if settings.args is not None else None
        nowhere: list[str] | None = [] if config.network == "none" else None
        budget = budget_of(settings, nowhere) if digest else Budget(region_bytes=0, endpoints=nowhere)
        script = cls(name, digest, config.environment, budget, args, next(_numbers), code=code)
        if config.network == "private":
            script.reach(config.egress)
        return script

    def reach(self, entries: Sequence[str] | None) -> None:
        """Have it reach what a private network with this `egress` does."""
        rules, _ = egress.recorded(entries)
        self.budget, self.egress = msgspec.structs.replace(self.budget, private=reached(rules)), entries

    @property
    def reserve_bytes(self) -> int:
        """What a run may use of the worker's memory."""
        return self.budget.region_bytes + (self.budget.memory_bytes if self.digest else 0)


def reached(rules: Egress) -> list[str]:
    """What a private network reaches over TCP, as the engine reads it (`sockd_initscripts.rpc.dialing.policy`)."""
    entries = [f"{egress.HOST}:{port}" for port in rules.host_ports]
    for rule in rules.rules:
        if rule.protocol != "udp" and not rule.is_host:
            ports = f":{rule.ports[0]}-{rule.ports[1]}" if rule.ports else ""
            entries.append(f"{rule.network or rule.name or egress.INTERNET}{ports}")
    return entries


def budget_of(settings: InitscriptConfig, endpoints: list[str] | None) -> Budget:
    """A function's settings in the engine's units; `endpoints` hold where it says nothing."""
    return Budget(
        deadline_s=settings.deadline_s,
        cpu_ms=settings.cpu_ms,
        memory_bytes=settings.memory_mb * MB,
        region_bytes=settings.region_mb * MB,
        rpcs=settings.rpcs,
        connections=settings.connections,
        messages=settings.messages,
        endpoints=settings.endpoints if settings.endpoints is not None else endpoints,
    )


class CompanionRun:
    """A run during the start of one sandbox (`sockd.isolation.sandbox.companion`).

    Owns the run's reservations, of the worker's memory and of the engine's: all of its budget while it runs, what it
    fetched until the sandbox's last process is gone, because the function may have that mapped. `give_up` when there
    will be no sandbox."""

    def __init__(self, run: Run, reservations: tuple[Reservation, Reservation]) -> None:
        self.run = run
        self._reservations = reservations
        self._gone = False
        self._sandbox: Sandbox | None = None
        run.done.add_done_callback(self._done)
        run.abort_listeners.append(self._abort)

    @property
    def link_fd(self) -> int:
        return self.run.link.fileno()

    @property
    def reserved_bytes(self) -> int:
        return self._reservations[0].size

    def aborted(self) -> LaunchAborted | None:
        """The error of the answer if the script has aborted the launch."""
        abort = self.run.abort
        return LaunchAborted(abort.status, abort.message) if abort is not None else None

    def words(self) -> list[str]:
        """What is to be said of a run that is over: its log, addresses that it could not have, and how it failed if it did."""
        report, ending = self.run.report(), self.run.ending
        lines = report.log.splitlines() if report is not None else []
        if ending is not None and (ending.outcome, ending.status) not in (("exit", 0), ("cancelled", 0)):
            lines.append(" ".join(filter(None, (ending.outcome, ending.message))))
        return lines

    def watch(self, sandbox: Sandbox) -> None:
        """The sandbox has its end of the link now; from here on an abort ends it."""
        self._sandbox = sandbox
        self.run.close_link()

    def answered(self) -> None:
        """The function has answered: the script can no longer abort."""
        self._sandbox = None

    def finish(self) -> None:
        """The first answer was sent: the run's remaining replies are not needed."""
        self.run.cancel()

    def give_up(self) -> None:
        """No sandbox will be started for this run."""
        self.sandbox_ended()
        self.sandbox_gone()

    def sandbox_ended(self) -> None:
        self._sandbox = None
        self.run.cancel()

    def sandbox_gone(self) -> None:
        self._gone = True
        if self.run.done.done():
            self._hold(0)

    def _done(self, done: asyncio.Future[Ending]) -> None:
        ending = self.run.ending
        assert ending is not None
        if self._gone:
            self._hold(0)
        elif ending.outcome != DIED:  # then what the function has mapped is not known
            self._hold(min(ending.region_bytes, self.reserved_bytes))

    def _hold(self, size: int) -> None:
        for reservation in self._reservations:
            reservation.resize_nowait(size)

    def _abort(self) -> None:
        error = self.aborted()
        if error is not None and self._sandbox is not None:
            self._sandbox.conversation.end(error)


def become_with_script(sandbox: Sandbox, program: Program, script_run: CompanionRun, init: bytes = b"") -> None:
    """`become` with an initscript run; if the run has already aborted the launch, destroy the sandbox.

    Args: init: as of `become`. Raises: OSError, as `become`."""
    if script_run.aborted() is not None:
        sandbox.destroy()
        script_run.give_up()
        return
    sandbox.become(program, script_run, init)
    script_run.watch(sandbox)


def recording_init(init: bytes) -> bytes:
    """An INIT message with our storage library in it, which tells what is read."""
    return protocol.change_init(init, storage="sockd")


class Initscripts:
    """One per worker. `adopt` a version before it is served, `release` it when it is not any more."""

    def __init__(
        self,
        config: InitscriptsConfig,
        client: EngineClient,
        store: InitscriptStore,
        budget: MemoryBudget,
        engine_budget: MemoryBudget,
    ) -> None:
        """Args: budget: the worker's; engine_budget: what all runs together may use of the engine's own limit."""
        self.client = client
        self.store = store
        self._config = config
        self._budgets = (budget, engine_budget)
        self._tasks: set[asyncio.Task[None]] = set()

    async def publish(self, wasm: bytes) -> str:
        """Compile and keep a module, and have the engine ready for it; its digest. Raises: BadInitscript, SandboxFailed,
        NoCapacity."""
        if not self._config.enabled:
            raise BadInitscript("initscripts are disabled on this worker (initscripts.enabled)")
        digest = await self.store.publish(wasm)
        try:
            await self.client.ready(ENGINE_DEADLINE_S)
        except EngineDown as error:
            _log.warning("an initscript was deployed, but %s", error)  # its function runs without one until then
        return digest

    def adopt(self, script: Initscript) -> None:
        """Make a version's initscript known to the engine; one that has to be compiled anew follows when it is."""
        if not self._config.enabled:
            return
        module = self.store.open(script.digest) if script.digest else NO_MODULE
        if module is None:
            task = asyncio.get_running_loop().create_task(self._adopt_later(script))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        self._define(script, module)

    def release(self, script: Initscript) -> None:
        """Its version is served no more; runs under way go on."""
        self.client.forget(script.id)
        script.id = 0

    def change(self, script: Initscript, entries: Sequence[str] | None) -> None:
        """Have the following runs of a version reach what the rules of its function's network allow by now."""
        self.release(script)
        script.reach(entries)
        script.id = next(_numbers)
        self.adopt(script)

    def start(
        self, script: Initscript, request: InvokeRequest, known: tuple[tuple[str, ...], ...] = ()
    ) -> CompanionRun | None:
        """Start a run without waiting; None: impossible, which is counted with the reason.

        Args: known: what the function has read before; the script need not fetch it."""
        worker, engine = (budget.reserve_nowait(script.reserve_bytes) for budget in self._budgets)
        run = None
        if worker is None or engine is None:
            self.client.refuse(NO_MEMORY)
        else:
            run = self.client.start(script.id, request.id, request.payload, request.arrived_ns, known)
            if run is not None:
                return CompanionRun(run, (worker, engine))
        for reservation in (worker, engine):
            if reservation is not None:
                reservation.close()
        return None

    async def recorder(self, name: str, config: FunctionConfig) -> Initscript:
        """An initscript without a module: it only hears what a sandbox reads. `release` it. Raises: BadInitscript."""
        if not self._config.enabled:
            raise BadInitscript("initscripts are disabled on this worker (initscripts.enabled)")
        try:
            await self.client.ready(ENGINE_DEADLINE_S)
        except EngineDown as error:
            raise BadInitscript(str(error)) from None
        script = Initscript.of(name, "", msgspec.structs.replace(config, initscript=None))
        self._define(script, NO_MODULE)
        return script

    async def close(self) -> None:
        """Stop what compiles, then the engine."""
        for task in list(self._tasks):
            task.cancel()
        await self.store.aclose()
        await self.client.close()

    async def _adopt_later(self, script: Initscript) -> None:
        try:
            await self.store.ensure(script.digest)
        except (SockdError, OSError) as error:
            _log.warning("%s starts without its initscript: %s", script.name, error)
            return
        module = self.store.open(script.digest)
        if module is None or not script.id:
            if module is not None:
                os.close(module)
            return
        self._define(script, module)

    def _define(self, script: Initscript, module: int) -> None:
        authorities = NONE if module == NO_MODULE else open_authorities(script.env, script.code)
        definition = Definition(
            *(script.id, script.name, module, script.env, script.budget, script.static_args), authorities_fd=authorities
        )
        self.client.define(definition)
