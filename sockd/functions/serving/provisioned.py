"""The provisioned sandboxes of one version, which stay initialized without requests.

Owns the sandboxes, idle and leased, and the task that replaces missing ones. They are neither paused nor evicted. A failed
replacement is retried after an increasing delay. The creator of the pool has reserved their memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable

from sockd.base.errors import NoHostPort, SockdError
from sockd.base.invoke_request import InvokeRequest
from sockd.functions.modules.initscripts import CompanionRun, become_with_script
from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.exchange import Reply
from sockd.isolation.sandbox.lifecycle import State
from sockd.isolation.sandbox.memory_budget import MemoryBudget, Reservation
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd_zygote import protocol

PAUSE_S = (0.2, 60.0)
"""After a failure, and at most."""
LAST_ONE_S = 10.0
"""Maximum wait of a successor for the memory of a sandbox that ended."""

_log = logging.getLogger(__name__)


class Pool:
    """The provisioned sandboxes of one version. `lease` and `keep` are for its function; `resize` and `close` for its
    owner."""

    def __init__(
        self,
        start: Callable[[Reservation], Awaitable[Sandbox]],
        memory_bytes: int,
        what: str,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        start: makes an initialized sandbox, which owns the reservation also when that fails; raises SockdError, OSError.
        memory_bytes: of one sandbox; what: for the log; on_idle: called when a new one can be leased."""
        self._start = start
        self._memory_bytes = memory_bytes
        self._what = what
        self._on_idle = on_idle
        self._budget = MemoryBudget(0)
        self._idle: list[Sandbox] = []
        self._leased: set[Sandbox] = set()
        self._filling: asyncio.Task[None] | None = None
        self._resized = asyncio.Event()
        self.wanted = 0
        self.failure = ""
        """Why sandboxes are missing; empty without an error."""

    @property
    def available(self) -> int:
        """Initialized sandboxes, with those that are serving a request."""
        return len(self._idle) + len(self._leased)

    @property
    def has_idle(self) -> bool:
        """Whether `lease` has one."""
        return bool(self._idle)

    def lease(self) -> Sandbox | None:
        """The most recently used idle one, now the caller's until `keep` or its end."""
        if not self._idle:
            return None
        sandbox = self._idle.pop()
        self._leased.add(sandbox)
        return sandbox

    def keep(self, sandbox: Sandbox) -> None:
        """Take a sandbox back after its request; destroy a surplus one."""
        if sandbox.lifecycle.state is not State.IDLE:
            return  # `_gone` was called
        if self.available > self.wanted:
            sandbox.destroy()
            return
        self._leased.discard(sandbox)
        self._idle.append(sandbox)

    def resize(self, wanted: int) -> None:
        """Change their number; their memory is reserved."""
        self.wanted = wanted
        self._resized.set()
        self._budget.total = wanted * self._memory_bytes
        while self._idle and self.available > wanted:
            self._idle[0].destroy()
        self._fill()

    def close(self) -> None:
        """Destroy all; a serving sandbox ends with its request."""
        if self._filling is not None:
            self._filling.cancel()
        self.resize(0)

    def _gone(self, sandbox: Sandbox) -> None:
        self._leased.discard(sandbox)
        if sandbox in self._idle:
            self._idle.remove(sandbox)
        self._fill()

    def _fill(self) -> None:
        if self.available < self.wanted and (self._filling is None or self._filling.done()):
            self._filling = asyncio.get_running_loop().create_task(self._make_missing())

    async def _make_missing(self) -> None:
        pause_s, longest_s = PAUSE_S
        while self.available < self.wanted:
            try:
                await self._make_one()
                self.failure = ""
                pause_s = PAUSE_S[0]
            except (SockdError, OSError) as error:
                if not self.failure:
                    _log.warning("%s cannot be provisioned: %s", self._what, error)
                self.failure = error.message if isinstance(error, SockdError) else str(error)
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, longest_s)

    async def _pause(self, pause_s: float) -> None:
        """Wait, but not longer than until it is resized."""
        self._resized.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._resized.wait()

    async def _make_one(self) -> None:
        reservation = await self._budget.reserve(self._memory_bytes, deadline_s=LAST_ONE_S)
        sandbox = await self._start(reservation)
        sandbox.on_death = self._gone
        self._idle.append(sandbox)
        if self.available > self.wanted:  # it was resized in the meantime
            sandbox.destroy()
        else:
            self._on_idle()


def without_event(name: str) -> InvokeRequest:
    """The request that a provisioned sandbox of a function is initialized for, in the eyes of its initscript."""
    return InvokeRequest(name, b"", uuid.uuid4().bytes, time.monotonic_ns())


async def initialize(sandbox: Sandbox, program: Program, script_run: CompanionRun | None) -> Reply:
    """Have a new sandbox import the handler before any request; `script_run` is the run of its initscript, if it has one.

    Raises: LaunchAborted by the initscript; NoHostPort, OSError: the sandbox could not be prepared. Then it is destroyed."""
    init = provisioned_init(program.init)
    try:
        if script_run is None:
            sandbox.become(program, init=init)
        else:
            become_with_script(sandbox, program, script_run, init)
    except (NoHostPort, OSError):
        sandbox.destroy()
        raise
    if script_run is not None and sandbox.dead and (aborted := script_run.aborted()) is not None:
        raise aborted
    reply = await sandbox.initialize()
    if script_run is not None:
        script_run.answered()
        script_run.finish()
    return reply


def provisioned_init(init: bytes) -> bytes:
    """An INIT message of a sandbox that is initialized before any request, which it sees in its environment, as on AWS. Its
    initscript works for its init."""
    env = {**protocol.decode_init(init)["env"], b"AWS_LAMBDA_INITIALIZATION_TYPE": b"provisioned-concurrency"}
    return protocol.change_init(init, env=env, provisioned=True)
