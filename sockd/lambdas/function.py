"""A function: its current version, and how one request of it is served. A published version is one, too, that never
switches.

Owns the version. What it may use is its allowance, which all versions of a function share. A request runs to its end on
the version that was current when it was admitted; sandboxes of a version that is no longer current are not kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial

import msgspec

from sockd.caches.handler_cache import HandlerCache
from sockd.caches.nursery import Nursery
from sockd.caches.zygote_node import ZygoteNode
from sockd.caches.zygote_tree import ZygoteTree
from sockd.errors import ClientGone, SandboxFailed
from sockd.invoke_request import InvokeRequest
from sockd.lambdas.allowance import Allowance
from sockd.lambdas.debugging import Debugged
from sockd.lambdas.initscripts import Beside, Initscript, Initscripts
from sockd.lambdas.provisioned import Pool, provisioned_init
from sockd.lambdas.trace_context import amzn_of
from sockd.lambdas.version import Version
from sockd.sandbox.exchange import Call, Reply
from sockd.sandbox.lifecycle import State
from sockd.sandbox.memory_budget import MemoryBudget, Reservation
from sockd.sandbox.program import Program
from sockd.sandbox.sandbox import Sandbox
from sockd.sandbox.stream import Joined, Taker
from sockd.telemetry import ASKED_FOR, Invocation, Origin, Times
from zygote import protocol


@dataclass(frozen=True, slots=True)
class Caches:
    """What functions are served from."""

    handlers: HandlerCache
    tree: ZygoteTree
    nursery: Nursery
    budget: MemoryBudget
    initscripts: Initscripts | None = None
    max_answer_bytes: int = 6 << 20
    max_streamed_bytes: int = 200 << 20


class Leased(msgspec.Struct):
    """A sandbox for one request, and what getting it took."""

    sandbox: Sandbox
    origin: Origin
    started_ns: int = 0
    ready_ns: int = 0
    """When the daemon had done its part; a new sandbox itself is ready later, and says when."""
    node: ZygoteNode | None = None
    reserved_ns: int = 0
    """When a new sandbox had its memory, and when it had been forked."""
    forked_ns: int = 0
    beside: Beside | None = None
    """The run of its initscript."""
    pool: Pool | None = None
    """Where it goes back to, if it is one of those that are kept initialized."""
    version: str = ""
    deploy: int = 0
    """The number of the deploy that made this version."""
    queue_ns: int = 0
    trace: str = ""
    why: str = ""

    def invocation(self, exec_ns: int = 0, body: bytes = b"", *, streamed: bool = False) -> Invocation:
        """The invocation as the doors show it, as far as it is known."""
        times = Times(self.queue_ns, self.setup_ns(), self.init_ns(), exec_ns)
        node = ",".join(sorted(self.node.packages)) if self.node else ""
        return Invocation(body, self.origin, self.sandbox.id, self.version, node, times, streamed, self.trace, self.why)

    def setup_ns(self) -> int:
        """From asking for a sandbox to one that is confined and may become the function."""
        return max(self.sandbox.init_started_ns if self.node else 0, self.ready_ns) - self.started_ns

    def init_ns(self) -> int:
        """Importing the handler, if this request waited for that."""
        return self.sandbox.init_ns if self.node else 0


class Outcome(msgspec.Struct):
    """One request's end: the invocation as the doors show it, and the sandbox's reply with its log or error."""

    invocation: Invocation
    reply: Reply
    leased: Leased
    answered_ns: int


class Function:
    """`invoke` runs it; `switch` deploys; `close` forgets it."""

    def __init__(self, version: Version, caches: Caches, allowance: Allowance) -> None:
        self.version = version
        self.allowance = allowance
        self.admission = allowance.admission
        self._caches = caches
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._ended: asyncio.Future[None] | None = None
        self.running = 0
        """Requests that run on it or wait for their turn."""
        self.pools: list[Pool] = []
        """Sandboxes that are kept initialized for it."""
        self._adopt(version)

    async def invoke(
        self, request: InvokeRequest, recorder: Initscript | None = None, debugged: Debugged | None = None
    ) -> Outcome:
        """One request.

        Args:
            recorder: makes it a recording: in a new sandbox with our storage library, which does not outlive it.
            debugged: it waits for a debugger: in such a sandbox, too, without its initscript.
        Raises: TooManyRequests, Draining, NoCapacity, SandboxFailed, CannotDebug; the handler's errors are in the reply."""
        self.running += 1
        try:
            if not self.admission.try_enter():
                await self._wait_for_turn(request.gone)
        except BaseException:
            self._leave()
            raise
        admitted_ns = time.monotonic_ns()
        version = self.version
        try:
            call = None if version.program.is_app is None else version.call(request, version.program.is_app)
            if debugged is not None:
                leased = await self._start(version, None, request, debugged.program(version))
                debugged.begin(leased.sandbox)
            elif recorder is None:
                leased = await self._lease(version, request)
            else:
                leased = await self._start(version, recorder, request)
        except BaseException:
            self.admission.leave()
            self._leave()
            raise
        leased.version, leased.deploy = version.number, version.record.version
        leased.queue_ns = admitted_ns - request.arrived_ns
        if request.trace is not None:
            leased.trace = amzn_of(request.trace)
        try:
            if leased.beside is None:
                reply = await self._ask(leased, version, request, call)
            else:
                reply = await self._first_request(leased, leased.beside, version, request, call)
        finally:
            if recorder is not None or debugged is not None:
                leased.sandbox.destroy()
            # The answer goes out first: destroying or keeping a sandbox costs up to a millisecond.
            self._loop.call_soon(self._put_back, leased, version)
        if reply.stream is None:
            invocation = leased.invocation(reply.exec_ns, reply.body)
        else:
            await reply.stream.passed_on(failed=reply.error is not None)
            sink = reply.stream.sink
            body = sink.body() if isinstance(sink, Joined) else b""
            invocation = leased.invocation(reply.exec_ns, body, streamed=sink is request.sink)
        return Outcome(invocation, reply, leased, time.monotonic_ns())

    def switch(self, version: Version) -> None:
        """Make another version current: the next request gets it; those under way end on the old one.

        Raises: NoCapacity when its reserved memory is not to be had; the old version stays."""
        self.allowance.change(version.config)
        self._adopt(version)
        old, self.version = self.version, version
        self._caches.handlers.drop(old.program)
        self._let_go(old)

    def close(self) -> None:
        """Forget this version: requests under way end on it. Its allowance is the caller's."""
        self._closed = True
        self._caches.handlers.drop(self.version.program)
        self._let_go(self.version)

    async def drain(self) -> None:
        """Return when nothing runs on it; for one who has closed it, or the version, to new requests."""
        if self.running:
            if self._ended is None:
                self._ended = self._loop.create_future()
            await asyncio.shield(self._ended)

    async def initialize(self, reservation: Reservation) -> Sandbox:
        """A new sandbox that has imported the handler, for requests to come; without its initscript, which works for one
        request. It owns the reservation, also when this fails. Raises: SockdError, OSError."""
        program = self.version.program
        started = await self._caches.tree.start(self.version.zygote_keys, program, reservation)
        try:
            started.sandbox.become(program, init=provisioned_init(program.init))
        except OSError:
            started.sandbox.destroy()
            raise
        reply = await started.sandbox.initialize()
        self._caches.tree.refill(started.node)
        if reply.error is not None:
            raise reply.error
        return started.sandbox

    def _adopt(self, version: Version) -> None:
        """Have a version's initscript ready for its cold starts."""
        if version.initscript is not None and self._caches.initscripts is not None:
            self._caches.initscripts.adopt(version.initscript)

    def _let_go(self, version: Version) -> None:
        if version.initscript is not None and self._caches.initscripts is not None:
            self._caches.initscripts.release(version.initscript)
        version.close()

    # -- sandboxes

    async def _lease(self, version: Version, request: InvokeRequest) -> Leased:
        """A sandbox of this version that is kept for it, an idle one, or a new one."""
        if request.fresh:
            # It holds no more of the worker than a warm request would, however often somebody asks.
            self._caches.handlers.drop_oldest(version.program)
            leased = await self._start(version, version.initscript, request)
            leased.why = ASKED_FOR
            return leased
        for pool in self.pools:
            kept = pool.lease()
            if kept is not None:
                return Leased(kept, "warm", pool=pool)
        sandbox = self._caches.handlers.lease(version.program)
        if sandbox is None:
            return await self._start(version, version.initscript, request)
        if sandbox.state is State.IDLE:
            return Leased(sandbox, "warm")
        started_ns = time.monotonic_ns()
        try:
            await sandbox.unpause()
        except BaseException:  # cancelled, too: it is in no cache now
            sandbox.destroy()
            raise
        return Leased(sandbox, "paused", started_ns, time.monotonic_ns())

    async def _start(
        self, version: Version, script: Initscript | None, request: InvokeRequest, program: Program | None = None
    ) -> Leased:
        """A cold start: the initscript, and while it runs memory, a child of the best Zygote, the function's code.

        Args: program: what it becomes, if not the version's own."""
        program = program or version.program
        beside = None
        if script is not None and self._caches.initscripts is not None:
            # Before anything that waits: what it fetches is on its way while all of the following is done.
            beside = self._caches.initscripts.start(script, request)
        started_ns = time.monotonic_ns()
        limits = program.limits
        try:
            reservation = await self.allowance.reserve(limits.memory_bytes, deadline_s=version.config.timeout_s)
            reserved_ns = time.monotonic_ns()
            started = await self._caches.tree.start(version.zygote_keys, program, reservation)
        except BaseException:
            if beside is not None:
                beside.give_up()
            raise
        forked_ns = time.monotonic_ns()
        sandbox = started.sandbox
        try:
            if beside is None:
                sandbox.become(program)
            else:
                become_beside(sandbox, version.program, beside, is_recording=script is not version.initscript)
        except OSError as error:
            sandbox.destroy()
            raise SandboxFailed(f"the sandbox could not be prepared: {error.strerror}") from error
        origin: Origin = "spare" if started.from_spare else "zygote"
        ready_ns = time.monotonic_ns()
        return Leased(sandbox, origin, started_ns, ready_ns, started.node, reserved_ns, forked_ns, beside)

    async def _first_request(
        self, leased: Leased, beside: Beside, version: Version, request: InvokeRequest, call: Call | None
    ) -> Reply:
        """The one request that an initscript works for; it may have called that off."""
        aborted = beside.aborted()
        if aborted is not None:
            return Reply(error=aborted)
        try:
            return await self._ask(leased, version, request, call)
        finally:
            beside.answered()

    def _ask(
        self, leased: Leased, version: Version, request: InvokeRequest, call: Call | None
    ) -> Coroutine[None, None, Reply]:
        """Args: call: None: what it is depends on what the sandbox finds its handler to be."""
        open_sink = partial(self._open_sink, leased, request)
        if call is not None:
            return leased.sandbox.ask(call, open_sink)
        return leased.sandbox.ask(None, open_sink, compose=partial(version.call, request))

    def _open_sink(self, leased: Leased, request: InvokeRequest) -> Taker:
        """Who takes an answer that now begins to come piece by piece."""
        if request.sink is None:
            return Taker(Joined(), self._caches.max_answer_bytes)
        request.sink.begun = leased.invocation()
        return Taker(request.sink, self._caches.max_streamed_bytes)

    async def _wait_for_turn(self, gone: Callable[[], bool] | None) -> None:
        """Enter after a wait. Raises: as `Admission.wait`; ClientGone."""
        await self.admission.wait()
        try:
            await asyncio.sleep(0)  # let the loop see who hung up in this very step
            if gone is not None and gone():
                raise ClientGone
        except BaseException:
            self.admission.leave()
            raise

    def _put_back(self, leased: Leased, version: Version) -> None:
        """Keep or destroy a sandbox whose request is over, then let the next request in."""
        try:
            self._dispose(leased, version)
        finally:
            self.admission.leave()
            self._leave()

    def _leave(self) -> None:
        self.running -= 1
        if self._ended is not None and not self.running:
            self._ended.set_result(None)
            self._ended = None

    def _dispose(self, leased: Leased, version: Version) -> None:
        sandbox = leased.sandbox
        if leased.beside is not None:
            leased.beside.finish()
        if not version.config.reuse_sandbox:
            sandbox.destroy()
        if leased.pool is not None:
            leased.pool.keep(sandbox)
        elif version is not self.version or self._closed or self.admission.closed:
            sandbox.destroy()
            version.program.close()  # its start may have opened the code again
        elif sandbox.state is State.IDLE:
            self._caches.handlers.keep(sandbox, version.program)
        if leased.node is not None:
            nursery = self._caches.nursery
            if sandbox.imports is not None and sandbox.program is version.program:
                nursery.observe(version.id, version.zygote_keys, leased.node, sandbox.imports)
            nursery.consider(version.zygote_keys)
            self._caches.tree.refill(leased.node)


def become_beside(sandbox: Sandbox, program: Program, beside: Beside, *, is_recording: bool) -> None:
    """`become` with a run beside it, unless the run has called the launch off already: then the sandbox is destroyed.

    Raises: OSError, as `become`."""
    if beside.aborted() is not None:
        sandbox.destroy()
        beside.give_up()
        return
    sandbox.become(program, beside, recording_init(program.init) if is_recording else b"")
    beside.watch(sandbox)


def recording_init(init: bytes) -> bytes:
    """An INIT message with our storage library in it, which tells what is read."""
    return protocol.change_init(init, storage="sockd")
