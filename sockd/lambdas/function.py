"""A function: its current version, who may run it now, and how one request of it is served.

Owns the admission queue, the current version, and the memory that is reserved for it. A request runs to its end on the
version that was current when it was admitted; sandboxes of a version that is no longer current are not kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from sockd.caches.handler_cache import HandlerCache
from sockd.caches.nursery import Nursery
from sockd.caches.zygote_node import ZygoteNode
from sockd.caches.zygote_tree import ZygoteTree
from sockd.errors import ClientGone, NoCapacity, SandboxFailed
from sockd.invoke_request import InvokeRequest
from sockd.lambdas.admission import Admission
from sockd.lambdas.initscripts import Beside, Initscript, Initscripts
from sockd.lambdas.version import Version
from sockd.sandbox.lifecycle import State
from sockd.sandbox.memory_budget import MemoryBudget, Reservation
from sockd.sandbox.program import Program
from sockd.sandbox.sandbox import Reply, Sandbox
from sockd.telemetry import Invocation, Origin, Times
from zygote import protocol


@dataclass(frozen=True, slots=True)
class Caches:
    """What functions are served from."""

    handlers: HandlerCache
    tree: ZygoteTree
    nursery: Nursery
    budget: MemoryBudget
    initscripts: Initscripts | None = None


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

    def __init__(self, version: Version, caches: Caches) -> None:
        self.version = version
        self._caches = caches
        self._loop = asyncio.get_running_loop()
        self.admission = Admission(version.config.concurrency, version.config.queue_depth)
        self._reserved: Reservation | None = None
        self._own_budget = MemoryBudget(0)
        self._reserve(version)
        self._adopt(version)

    async def invoke(self, request: InvokeRequest, recorder: Initscript | None = None) -> Outcome:
        """One request.

        Args: recorder: makes it a recording: in a new sandbox with our storage library, which does not outlive it.
        Raises: TooManyRequests, Draining, NoCapacity, SandboxFailed; the handler's errors are in the reply."""
        if not self.admission.try_enter():
            await self._wait_for_turn(request.gone)
        admitted_ns = time.monotonic_ns()
        version = self.version
        try:
            if recorder is None:
                leased = await self._lease(version, request)
            else:
                leased = await self._start(version, recorder, request)
        except BaseException:
            self.admission.leave()
            raise
        try:
            if leased.beside is None:
                reply = await leased.sandbox.request(request.id, request.payload)
            else:
                reply = await self._first_request(leased.sandbox, leased.beside, request)
        finally:
            if recorder is not None:
                leased.sandbox.destroy()
            # The answer goes out first: destroying or keeping a sandbox costs up to a millisecond.
            self._loop.call_soon(self._put_back, leased, version)
        times = Times(admitted_ns - request.arrived_ns, leased.setup_ns(), leased.init_ns(), reply.exec_ns)
        node = ",".join(sorted(leased.node.packages)) if leased.node else ""
        invocation = Invocation(reply.body, leased.origin, leased.sandbox.id, version.number, node, times)
        return Outcome(invocation, reply, leased, time.monotonic_ns())

    def switch(self, version: Version) -> None:
        """Make another version current: the next request gets it; those under way end on the old one.

        Raises: NoCapacity when its reserved memory is not to be had; the old version stays."""
        self._release_reserved()
        try:
            self._reserve(version)
        except NoCapacity:
            self._reserve(self.version)
            raise
        self._adopt(version)
        old, self.version = self.version, version
        self.admission.resize(version.config.concurrency, version.config.queue_depth)
        self._caches.handlers.drop(old.program)
        self._let_go(old)

    def close(self) -> None:
        """Forget the function: waiters are served, later requests are not."""
        self.admission.close()
        self._release_reserved()
        self._caches.handlers.drop(self.version.program)
        self._let_go(self.version)

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
        """An idle sandbox of this version, or a new one."""
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

    async def _start(self, version: Version, script: Initscript | None, request: InvokeRequest) -> Leased:
        """A cold start: the initscript, and while it runs memory, a child of the best Zygote, the function's code."""
        beside = None
        if script is not None and self._caches.initscripts is not None:
            # Before anything that waits: what it fetches is on its way while all of the following is done.
            beside = self._caches.initscripts.start(script, request)
        started_ns = time.monotonic_ns()
        limits = version.program.limits
        try:
            reservation = self._own_budget.reserve_nowait(limits.memory_bytes)
            if reservation is None:
                deadline_s = version.config.timeout_s
                reservation = await self._caches.budget.reserve(limits.memory_bytes, deadline_s=deadline_s)
            reserved_ns = time.monotonic_ns()
            started = await self._caches.tree.start(version.zygote_keys, version.program, reservation)
        except BaseException:
            if beside is not None:
                beside.give_up()
            raise
        forked_ns = time.monotonic_ns()
        sandbox = started.sandbox
        try:
            if beside is None:
                sandbox.become(version.program)
            else:
                become_beside(sandbox, version.program, beside, is_recording=script is not version.initscript)
        except OSError as error:
            sandbox.destroy()
            raise SandboxFailed(f"the sandbox could not be prepared: {error.strerror}") from error
        origin: Origin = "spare" if started.from_spare else "zygote"
        ready_ns = time.monotonic_ns()
        return Leased(sandbox, origin, started_ns, ready_ns, started.node, reserved_ns, forked_ns, beside)

    async def _first_request(self, sandbox: Sandbox, beside: Beside, request: InvokeRequest) -> Reply:
        """The one request that an initscript works for; it may have called that off."""
        aborted = beside.aborted()
        if aborted is not None:
            return Reply(error=aborted)
        try:
            return await sandbox.request(request.id, request.payload)
        finally:
            beside.answered()

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

    def _dispose(self, leased: Leased, version: Version) -> None:
        sandbox = leased.sandbox
        if leased.beside is not None:
            leased.beside.finish()
        if version is not self.version or self.admission.closed:
            sandbox.destroy()
            version.program.close()  # its start may have opened the code again
        elif sandbox.state is State.IDLE:
            self._caches.handlers.keep(sandbox, version.program)
        if leased.node is not None:
            nursery = self._caches.nursery
            if sandbox.imports is not None:
                nursery.observe(version.id, version.zygote_keys, leased.node, sandbox.imports)
            nursery.consider(version.zygote_keys)
            self._caches.tree.refill(leased.node)

    # -- memory of its own

    def _reserve(self, version: Version) -> None:
        """Take the memory that only this function may use out of the worker's. Raises: NoCapacity."""
        size = version.config.reserved_memory_mb << 20
        if not size:
            return
        self._reserved = self._caches.budget.reserve_nowait(size)
        if self._reserved is None:
            raise NoCapacity(f"{version.config.reserved_memory_mb} MB cannot be reserved: the worker has not got them")
        self._own_budget = MemoryBudget(size)

    def _release_reserved(self) -> None:
        """Sandboxes that hold a part of it keep it until they end; new ones take from the worker's."""
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
            self._own_budget = MemoryBudget(0)


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
