"""The preparation of a sandbox for one request that finds none ready: a start, which may wait at the gate of starts, or a thaw.

Owns its place at the gate, the run of the initscript until the sandbox has taken it, and the task that waits for the sandbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from sockd.base.errors import ClientGone, DamagedImage, ImageNotReady, SandboxDied, SandboxFailed, SockdError
from sockd.base.invoke_request import InvokeRequest
from sockd.base.telemetry import ASKED_FOR
from sockd.functions.modules.initscripts import CompanionRun, Initscript
from sockd.functions.serving.debugging import Debugged
from sockd.functions.serving.function import Function
from sockd.functions.serving.leased import Leased
from sockd.functions.serving.start_gate import StartPlace
from sockd.functions.serving.version import Version
from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.starts.sources import Starting

NOT_STARTED = (SandboxFailed, ImageNotReady, DamagedImage)
"""How a start ends whose Zygote could not read its image, among other causes."""


class Served(Protocol):
    """The request that the sandbox is for."""

    function: Function
    request: InvokeRequest
    version: Version
    """The version that was current when the request was admitted, or when it left the gate."""
    admitted_ns: int
    stop: Callable[[], object]
    """Cancels the current wait."""

    def enter(self) -> None:
        """Look for a sandbox of the version that is current now."""

    def ask(self, leased: Leased) -> None:
        """Send the request to its sandbox."""

    def give_back_turn(self, error: BaseException) -> None:
        """End the request, which has no sandbox."""


class Preparation:
    """`begin` or `thaw`; `start_anew` when the sandbox could not serve the request; `end_place` when it needs none."""

    def __init__(self, serving: Served, recorder: Initscript | None = None, debugged: Debugged | None = None) -> None:
        """Args: recorder, debugged: why the request shares its sandbox with no other, if it does not."""
        self._serving = serving
        self._recorder = recorder
        self._debugged = debugged
        self._is_exclusive = recorder is not None or debugged is not None
        self._loop = serving.function.loop
        self._place: StartPlace | None = None
        """The permission for a start, until the sandbox has taken it."""
        self._script_run: CompanionRun | None = None
        """The run of the initscript for a cold start, until the sandbox has taken it."""
        self._program: Program | None = None
        """What the sandbox becomes, if not the version's program."""
        self.why = ""
        """Why the sandbox is not one from the version's snapshot, if that has failed."""
        self._waited_for = ""
        """What the request waited for at the gate of starts, and since when."""
        self._gated_ns = 0

    def begin(self) -> None:
        """Start a new sandbox for the request, or wait until one may start or an idle one is there.

        A sandbox that it shares with no other request passes by: a debugger may keep it for minutes."""
        if self._place is None and not self._is_exclusive:
            self._place = self._serving.function.starts.try_start()
            if self._place is None:
                self._wait_at_gate()
                return
        self._start_new()

    def thaw(self, leased: Leased) -> None:
        """Thaw a paused sandbox, or start another if its image was lost."""
        self._later(self._thaw(leased), leased)

    def start_anew(self) -> None:
        """Start a sandbox in place of one that could not serve the request."""
        self._later(self._start(self._anew()))

    def end_place(self) -> None:
        """Let another init begin. Safe to call twice."""
        if self._place is not None:
            self._place.end()

    def note_wait(self, leased: Leased) -> None:
        """Note in the lease how long the request waited at the gate, if it did."""
        if self._waited_for:
            waited_s = (self._serving.admitted_ns - self._gated_ns) / 1e9
            leased.waited_for = f"waited {waited_s:.2f} s: {self._waited_for}"

    # -- at the gate

    def _wait_at_gate(self) -> None:
        words = self._serving.function.starts.queue(self)
        self._serving.stop = self._leave_gate
        if not self._waited_for:
            self._waited_for, self._gated_ns = words, self._serving.admitted_ns

    @property
    def served_by(self) -> Function | None:
        """As `StartWaiter` says."""
        function = self._serving.function
        is_shared = function.version.config.reuse_sandbox and not self._serving.request.fresh
        return function if is_shared else None

    def turn_to_start(self, place: StartPlace | None) -> bool:
        """As `StartWaiter` says. It takes the version that is current now, whose idle sandboxes there are."""
        self._serving.stop, self._place = nothing, place
        gone = self._serving.request.gone
        if gone is not None and gone():
            self._serving.give_back_turn(ClientGone())
            return False
        self._serving.enter()
        return True

    def not_started(self, error: SockdError) -> None:
        """As `StartWaiter` says."""
        self._serving.stop = nothing
        self._serving.give_back_turn(error)

    def _leave_gate(self) -> None:
        self._serving.function.starts.give_up(self)
        self._serving.give_back_turn(ClientGone())

    # -- the sandbox

    def _start_new(self) -> None:
        function, request, version = self._serving.function, self._serving.request, self._serving.version
        try:
            found = function.find_new(request) if not self._is_exclusive else self._find_exclusive(version)
        except Exception as error:
            self._serving.give_back_turn(error)
            return
        function.caches.latency.start_begun()
        if isinstance(found, Leased):
            self._hand_place_to(found.sandbox)
            if request.fresh:
                found.why = ASKED_FOR
            self._serving.ask(found)
            return
        if self._debugged is None:
            # Now, and not in the task's first step, which is a turn of the loop away.
            self._script_run = function.begin_script(self._recorder or version.initscript, request, version.program)
        self._later(self._start(found))

    def _find_exclusive(self, version: Version) -> Starting:
        """A sandbox for a recording or for a debugger. Raises: CannotDebug."""
        if self._debugged is not None:
            self._program = self._debugged.program(version)
        return self._serving.function.find_exclusive(version, self._program)

    def _later(self, steps: Coroutine[Any, Any, None], paused: Leased | None = None) -> None:
        """Have a task prepare the sandbox and send the request in its last step: a new sandbox reports READY to its request."""
        preparing = self._loop.create_task(steps)
        preparing.add_done_callback(partial(self._ended, paused))
        self._serving.stop = preparing.cancel

    async def _thaw(self, leased: Leased) -> None:
        try:
            await leased.thaw()
        except SandboxDied:
            if not leased.sandbox.has_lost_image:
                raise
            await self._start(self._anew())
        else:
            self._serving.ask(leased)

    def _anew(self) -> Starting:
        """A start in place of a sandbox that could not serve it."""
        function, version = self._serving.function, self._serving.version
        function.caches.latency.start_begun()
        self._script_run = function.begin_script(version.initscript, self._serving.request)
        return function.find_exclusive(version)

    async def _start(self, starting: Starting) -> None:
        function, version = self._serving.function, self._serving.version
        script_run, self._script_run = self._script_run, None
        is_recording = self._recorder is not None
        leased = await function.start(version, starting, script_run, self._program, is_recording=is_recording)
        self._hand_place_to(leased.sandbox)
        leased.why = self.why or (ASKED_FOR if self._serving.request.fresh else leased.why)
        if self._debugged is not None:
            self._debugged.begin(leased.sandbox)
        self._serving.ask(leased)

    def _hand_place_to(self, sandbox: Sandbox) -> None:
        place, self._place = self._place, None
        if place is not None:
            self._serving.function.init_begins(sandbox, place)

    def _ended(self, paused: Leased | None, preparing: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError() if preparing.cancelled() else preparing.exception()
        if error is None:
            return
        if isinstance(error, NOT_STARTED) and (image := self._serving.version.image) is not None:
            error = image.failure_since(self._serving.admitted_ns) or error
        # What follows is for a task that was cancelled before its first step.
        if paused is not None:
            paused.sandbox.destroy()
        if self._script_run is not None:
            self._script_run.give_up()
        self._serving.give_back_turn(error)


def nothing(*_: object) -> None:
    """Cancels a wait that has ended, and receives the outcome of a request that was cancelled."""
