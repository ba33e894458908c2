"""A function: its current version, and how it serves a request. A published version is also a `Function`, which never
switches.

Owns the version. Its limits are its allowance, which all versions of a function share. A request ends on the version that was
current at its admission; sandboxes of other versions are not kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from sockd.base.errors import SandboxFailed, SockdError
from sockd.base.invoke_request import InvokeRequest
from sockd.functions.in_images.image_pythons import ImagePythons
from sockd.functions.modules.function_modules import FunctionModules
from sockd.functions.modules.initscripts import (
    CompanionRun,
    Initscript,
    Initscripts,
    become_with_script,
    recording_init,
)
from sockd.functions.serving.allowance import Allowance
from sockd.functions.serving.failed_inits import FailedInits
from sockd.functions.serving.group_shares import GroupShares
from sockd.functions.serving.leased import Leased
from sockd.functions.serving.provisioned import Pool, initialize, without_event
from sockd.functions.serving.start_conditions import ReservedBefore, StartConditions
from sockd.functions.serving.start_gate import QUICK_S, StartLimits, StartPlace
from sockd.functions.serving.version import Version
from sockd.functions.serving.version_templates import VersionTemplates
from sockd.images.store.image_store import ImageStore
from sockd.isolation.networks.networks import Networks
from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.exchange import Reply
from sockd.isolation.sandbox.init_time import waited_s
from sockd.isolation.sandbox.lifecycle import State
from sockd.isolation.sandbox.memory_budget import MemoryBudget, Reservation
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.linux.bpf.port_guard import PortGuard
from sockd.linux.bpf.socket_counts import NO_LIMIT, UNCOUNTED, Account
from sockd.linux.latency.latency import Latency
from sockd.starts.handler_cache import HandlerCache
from sockd.starts.sources import Started, Starting, Starts, Wanted
from sockd.starts.templates.templates import Templates
from sockd.starts.zygotes.learning.import_learner import ImportLearner
from sockd.starts.zygotes.program_zygotes import ProgramZygotes
from sockd.starts.zygotes.verification.verifier import Verifier
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.starts.zygotes.zygote_tree import ZygoteTree

WORTH_RECORDING_NS = 10_000_000
"""A function without packages that initializes within this is started from the root Zygote for good: nothing could be saved."""


@dataclass(frozen=True, slots=True)
class Caches:
    """What functions are served from."""

    handlers: HandlerCache
    tree: ZygoteTree
    starts: Starts
    learner: ImportLearner
    budget: MemoryBudget
    verifier: Verifier | None = None
    initscripts: Initscripts | None = None
    max_answer_bytes: int = 6 << 20
    max_streamed_bytes: int = 200 << 20
    latency: Latency = field(default_factory=Latency)
    ports: PortGuard = field(default_factory=PortGuard)
    open_account: Callable[[], Account] = UNCOUNTED.account
    """Makes the account in which the sockets of a function are counted."""
    function_tasks: int = NO_LIMIT
    """Processes and threads that all sandboxes of a function may have."""
    failed_inits: FailedInits = field(default_factory=FailedInits)
    networks: Networks | None = None
    """Private ones; None: functions cannot have any."""
    modules: FunctionModules | None = None
    """None: no function is a WebAssembly module."""
    images: ImageStore | None = None
    """None: functions run in no images."""
    image_pythons: ImagePythons | None = None
    """None: those that do are programs."""
    templates: Templates | None = None
    """None: no version has a snapshot."""
    programs: ProgramZygotes | None = None
    start_limits: StartLimits | None = None
    """None: those of this host."""
    shares: GroupShares = field(default_factory=GroupShares)
    """What the worker may use of limits that its group has."""


class Function:
    """A `Serving` runs a request on it; `switch` deploys; `close` forgets it."""

    def __init__(self, version: Version, caches: Caches, allowance: Allowance) -> None:
        self.version = version
        self.allowance = allowance
        self.admission = allowance.admission
        self.starts = allowance.starts
        self.caches = caches
        self.templates = VersionTemplates(caches.templates, caches.failed_inits)
        self.loop = asyncio.get_running_loop()
        self._closed = False
        self._ended: asyncio.Future[None] | None = None
        self.running = 0
        """Running and waiting requests."""
        self._failed_init = ""
        """The failure of the last provisioned sandbox."""
        self.pools: list[Pool] = []
        """Its provisioned sandboxes."""
        self._adopt(version)

    def switch(self, version: Version) -> None:
        """Make another version current for the next request; current requests end on the old one.

        Raises: NoCapacity if its reserved memory is not available; the old version stays."""
        self.allowance.change(version.config)
        self._adopt(version)
        old, self.version = self.version, version
        self._withdraw(old)

    def learn(self) -> None:
        """Record the top level of the version before its first request, unless a snapshot will serve it."""
        if self.caches.verifier is not None and not self._closed and not self.version.config.snapshot:
            self.caches.verifier.expect(self.version.view, self.version.program, self.version.id)

    def close(self) -> None:
        """Close this version after its current requests. The caller owns its allowance."""
        self._closed = True
        self._withdraw(self.version)

    def _withdraw(self, version: Version) -> None:
        """Keep nothing for a version's next start."""
        self.caches.handlers.drop(version.program)
        self.caches.learner.forget_reason(version.view)
        if self.caches.verifier is not None:
            self.caches.verifier.forget(version.view)
        self._let_go(version)

    async def drain(self) -> None:
        """Wait until no request runs on it, after `close` or `switch`."""
        if self.running:
            if self._ended is None:
                self._ended = self.loop.create_future()
            await asyncio.shield(self._ended)

    async def initialize(self, reservation: Reservation) -> Sandbox:
        """A provisioned sandbox: it has imported the handler. It owns the reservation, also if this fails. Its initscript works
        for the import, if it needs no event. Raises: SockdError, OSError."""
        try:
            place = await self.starts.enter()
        except BaseException:
            reservation.close()
            raise
        version = self.version
        script = version.initscript
        request = without_event(version.record.name) if script is not None and script.static_args is not None else None
        script_run = self.begin_script(script, request, version.program) if request is not None else None
        try:
            conditions = ReservedBefore(reservation, self._conditions(version))
            has_template = version.config.snapshot
            started = await self.caches.starts.new(Wanted(version.view, version.program, conditions, has_template))
            self.init_begins(started.sandbox, place)
        except BaseException:
            if script_run is not None:
                script_run.give_up()
            place.end()
            raise
        reply = await initialize(started.sandbox, version.program, script_run)
        if started.node is not None:
            self._verify(started.node, self.version)
            self.caches.tree.spares.refill(started.node)
        if reply.error is not None:
            if started.template is not None:
                self.templates.give_up(started.template, started.sandbox, reply.error)
            self._note_failed_init(reply, reply.error)
            raise reply.error
        self._failed_init = ""
        return started.sandbox

    def _note_failed_init(self, reply: Reply, error: SockdError) -> None:
        """Log a repeated failure once."""
        text = f"{error.error_type}: {error.message}"
        if text != self._failed_init:
            self._failed_init = text
            self.caches.failed_inits.note(self.version, reply)

    def _adopt(self, version: Version) -> None:
        """Prepare a version's initscript, Zygote and starts, and count its sockets with those of the other versions."""
        version.program.socket_account, version.program.tasks = self.allowance.socket_account, self.allowance.tasks
        self._wanted = Wanted(version.view, version.program, self._conditions(version), version.config.snapshot)
        self.templates.expect(version, self._conditions(version))
        self.caches.learner.adopt(version.view)
        self.caches.tree.lineages.expect(version.view.lineage, at_once=not version.record.image)
        if version.initscript is not None and self.caches.initscripts is not None:
            self.caches.initscripts.adopt(version.initscript)

    def _let_go(self, version: Version) -> None:
        self.templates.forget(version)
        self.caches.tree.lineages.release(version.view.lineage)
        if version.initscript is not None and self.caches.initscripts is not None:
            self.caches.initscripts.release(version.initscript)
        version.close()

    # -- sandboxes

    def find_idle(self, request: InvokeRequest) -> Leased | None:
        """A sandbox of the current version that has initialized: provisioned, or from the cache. None: it needs a new one."""
        if request.fresh:
            return None
        for pool in self.pools:
            kept = pool.lease()
            if kept is not None:
                return Leased(kept, "warm", pool=pool)
        sandbox = self.caches.starts.find_idle(self.version.program)
        return None if sandbox is None else Leased(sandbox, "warm")

    def find_new(self, request: InvokeRequest) -> Leased | Starting:
        """A new sandbox of the current version from the first source that has one; or how to wait for it, which is what `start`
        takes. The caller has a place of `starts`. Raises: SandboxFailed."""
        if request.fresh:
            # It holds no more of the worker than a warm request would, however often somebody asks.
            self.caches.handlers.drop_oldest(self.version.program)
        found = self.caches.starts.find_new(self._wanted)
        return self._prepared(found, self.version) if isinstance(found, Started) else found

    def init_begins(self, sandbox: Sandbox, place: StartPlace) -> None:
        """End the place of a start when its sandbox has initialized, or is gone."""
        if sandbox.dead:
            place.end()
        else:
            sandbox.init.on_end = partial(self._initialized, place, sandbox)

    def _initialized(self, place: StartPlace, sandbox: Sandbox) -> None:
        """Learn what an init takes. Times of a quick one are not read: that would take as long as a part of it."""
        if not sandbox.dead:
            init_s, cpu_s = sandbox.init.took_ns / 1e9, 0.0
            if init_s >= QUICK_S:
                times = sandbox.process.cgroup.cpu_times()
                init_s -= waited_s(init_s, times, sandbox.process.limits.cpus)
                cpu_s = times.used_ns / 1e9
            self.starts.learn(init_s, cpu_s)
        place.end(is_ready=not sandbox.dead)

    def offer_idle(self) -> None:
        """A sandbox can be leased, perhaps: give it to the request that has waited for one longest."""
        if self.caches.handlers.held(self.version.program)[0] or any(pool.has_idle for pool in self.pools):
            self.starts.offer(self)

    def find_exclusive(self, version: Version, program: Program | None = None) -> Starting:
        """As `find`, for a request that shares its sandbox with no other. Args: program: default: the version's."""
        wanted = Wanted(version.view, program or version.program, self._conditions(version))
        return partial(self.caches.starts.new, wanted)

    def begin_script(
        self, script: Initscript | None, request: InvokeRequest, program: Program | None = None
    ) -> CompanionRun | None:
        """Start the initscript of the following cold start before any step that waits, so that it fetches meanwhile. The caller
        gives it up if no `start` follows. Args: program: it is started from this one's template, if that has one."""
        if script is None or self.caches.initscripts is None:
            return None
        if script.budget.private is not None and script.egress != self.allowance.egress.entries:
            self.caches.initscripts.change(script, self.allowance.egress.entries)
        templates = self.caches.templates
        known = templates.reads_of(program) if templates is not None and program is not None else ()
        return self.caches.initscripts.start(script, request, known)

    async def start(
        self,
        version: Version,
        starting: Starting,
        script_run: CompanionRun | None = None,
        program: Program | None = None,
        *,
        is_recording: bool = False,
    ) -> Leased:
        """A cold start that has to be waited for.

        Args: starting: from `find`; script_run: its initscript's, owned by this start; program: default: the version's."""
        try:
            started = await starting()
        except BaseException:
            if script_run is not None:
                script_run.give_up()
            raise
        return self._prepared(started, version, script_run, program, is_recording=is_recording)

    def _prepared(
        self,
        started: Started,
        version: Version,
        script_run: CompanionRun | None = None,
        program: Program | None = None,
        *,
        is_recording: bool = False,
    ) -> Leased:
        """A new sandbox, which has become its program. Raises: SandboxFailed."""
        forked_ns, sandbox = time.monotonic_ns(), started.sandbox
        try:
            if script_run is None:
                sandbox.become(program or version.program)
            else:
                init = recording_init(version.program.init) if is_recording else b""
                become_with_script(sandbox, version.program, script_run, init)
        except OSError as error:
            sandbox.destroy()
            raise SandboxFailed(f"the sandbox could not be prepared: {error.strerror}") from error
        leased = Leased(sandbox, started.origin, started.started_ns, time.monotonic_ns(), started.node)
        leased.reserved_ns, leased.forked_ns, leased.script_run = started.reserved_ns, forked_ns, script_run
        leased.template, leased.why = started.template, started.why
        leased.passed_over = self._passed_over(version)
        return leased

    def _conditions(self, version: Version) -> StartConditions:
        return StartConditions(self.allowance, version.config.timeout_s, version.initscript is not None)

    def _passed_over(self, version: Version) -> str:
        """Why no Zygote with more of its packages served a start. Called after the sandbox has everything it needs."""
        larger = self.caches.tree.passed_over(version.view)
        return str(larger[0][1]) if larger else ""

    def put_back(self, leased: Leased, version: Version) -> None:
        """Keep or destroy the sandbox of a request that has its answer, and admit the next request.

        Errors go to the loop's handler: the request is over, and none of its callers could do anything."""
        try:
            templates = self.caches.templates
            if leased.template is None or templates is None:
                self.dispose(leased, version)
            else:
                templates.answered(leased.template, leased.sandbox, partial(self.dispose, leased, version))
        except Exception as error:
            self.loop.call_exception_handler({"message": "a sandbox that was put back", "exception": error})
        finally:
            self.leave()
            self.admission.leave()

    def leave(self) -> None:
        """A request of it is over."""
        self.running -= 1
        self.caches.latency.running -= 1
        if self._ended is not None and not self.running:
            self._ended.set_result(None)
            self._ended = None

    def dispose(self, leased: Leased, version: Version) -> None:
        """Keep or destroy the sandbox of a request that has ended, or goes on in another."""
        sandbox = leased.sandbox
        if leased.script_run is not None:
            leased.script_run.finish()
        if not version.config.reuse_sandbox:
            sandbox.destroy()
        if leased.pool is not None:
            leased.pool.keep(sandbox)
        elif version is not self.version or self._closed or self.admission.closed:
            sandbox.destroy()
            version.program.close()  # its start may have opened the code again
        elif sandbox.lifecycle.state is State.IDLE:
            self.caches.handlers.keep(sandbox, version.program)
        if leased.node is not None:
            learner = self.caches.learner
            if sandbox.init.imports is not None and sandbox.program is version.program:
                passed_over = bool(leased.passed_over)
                learner.observe(version.id, version.view, leased.node, sandbox.init.imports, passed_over=passed_over)
            learner.consider(version.view)
            if leased.node.imports or sandbox.init.imports or sandbox.init.took_ns >= WORTH_RECORDING_NS:
                self._verify(leased.node, version)
            elif self.caches.verifier is not None:
                self.caches.verifier.leave_out(version.view, quick(sandbox.init.took_ns))
            self.caches.tree.spares.refill(leased.node)
        if self.starts.waiters:
            self.offer_idle()

    def _verify(self, node: ZygoteNode, version: Version) -> None:
        """A sandbox of a version was forked from `node`, and others will be, unless the version was withdrawn meanwhile."""
        if self.caches.verifier is not None and version is self.version and not self._closed:
            self.caches.verifier.consider(node, version.view, version.program, version.id)


def is_learned(function: Function) -> bool:
    """Whether the top level of a function's version is recorded, or will be."""
    view, verifier = function.version.view, function.caches.verifier
    return view.top is not None or (verifier is not None and verifier.agenda.records(view.program))


def quick(init_ns: int) -> str:
    """Say that an initialization is too short to be recorded."""
    threshold_ms = WORTH_RECORDING_NS // 1_000_000
    return f"it initializes in {init_ns / 1e6:.1f} ms without packages, and less than {threshold_ms} ms is not worth it"
