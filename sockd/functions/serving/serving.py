"""One request in a function: admission, a sandbox, the answer.

A warm request, or one that gets a spare, uses no task and no future: each step calls the next one, and the sandbox's RESULT
frame calls the last. Steps that need several loop iterations run in a task: a fork, a thaw, a streamed answer.

Owns its slot in the admission queue, and its sandbox until the function takes it back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from sockd.base.errors import (
    ClientGone,
    DamagedImage,
    ImageNotReady,
    ImageUnavailable,
    InitFailed,
    NotTaken,
    SandboxDied,
    SandboxFailed,
    SockdError,
    TimedOut,
)
from sockd.base.invoke_request import InvokeRequest
from sockd.base.telemetry import ASKED_FOR
from sockd.functions.serving.debugging import Debugged
from sockd.functions.serving.function import Function
from sockd.functions.serving.initscripts import CompanionRun, Initscript
from sockd.functions.serving.leased import Leased, Outcome
from sockd.functions.serving.start_gate import StartPlace
from sockd.functions.serving.version import Version
from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.exchange import Call, Reply
from sockd.isolation.sandbox.lifecycle import State
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.isolation.sandbox.stream import BoundedSink, Joined, Stream
from sockd.starts.sources import Starting

ENDED_BY_ITSELF = (InitFailed, SandboxDied, TimedOut)
"""How a sandbox ends whose image could not be read, among other causes."""
NOT_STARTED = (SandboxFailed, ImageNotReady, DamagedImage)
"""How a start ends whose Zygote could not read its image, among other causes."""
Done = Callable[[Outcome | BaseException], None]
"""Receives the outcome of a request, or the error if it did not run."""


class Serving:
    """Call `begin` once; `cancel` when the result is not needed any more."""

    # Defaults stand in the class, because each that is set costs every request.
    _recorder: Initscript | None = None
    _debugged: Debugged | None = None
    _beside: CompanionRun | None = None
    """The run of the initscript for a cold start, until the sandbox has taken it."""
    _program: Program | None = None
    """What its sandbox becomes, if not its version's."""
    _place: StartPlace | None = None
    """The permission for a start, until the sandbox has taken it."""
    _earlier_log: bytes | None = None
    """What the sandbox printed that could not take the request, once another serves it."""
    _why: str = ""
    """Why its sandbox is not one from the version's snapshot, if that has failed."""
    _waited_for: str = ""
    """What it waited for at the gate of starts."""
    _gated_ns: int
    """Since when; once it has waited."""
    _version: Version
    _call: Call | None
    _admitted_ns: int
    _leased: Leased

    def __init__(
        self,
        function: Function,
        request: InvokeRequest,
        done: Done,
        recorder: Initscript | None = None,
        debugged: Debugged | None = None,
    ) -> None:
        """Args: done: called with the outcome once, never before `begin` returns; or what was raised: TooManyRequests,
        Draining,
            ClientGone, MethodNotAllowed, NoCapacity, SandboxFailed, CannotDebug, OSError. The handler's errors are in
            the outcome.
        recorder: makes it a recording: in a new sandbox with our storage library, which does not outlive it.
        debugged: it waits for a debugger: in such a sandbox, too, without its initscript."""
        self._function = function
        self._request = request
        self._done = done
        self._is_apart = recorder is not None or debugged is not None
        if self._is_apart:
            self._recorder, self._debugged = recorder, debugged
        self._loop = function.loop
        self._stop: Callable[[], object] = _nothing
        """Cancels the current wait."""

    def begin(self) -> None:
        """Run the request, or queue it."""
        function = self._function
        function.running += 1
        latency = function.caches.latency
        latency.running += 1
        if latency.request_begun is not None:
            latency.request_begun()
        if function.admission.try_enter():
            self._enter()
            return
        try:
            function.admission.queue(self)
        except SockdError as error:
            self._leave(error)
            return
        self._stop = self._give_up

    def cancel(self) -> None:
        """Stop the request as soon as possible, without a result. It may have been answered already."""
        self._done = _nothing
        stop, self._stop = self._stop, _nothing
        stop()

    def _give_up(self) -> None:
        """Leave the queue; if it already has a slot, pass the slot on."""
        if self._function.admission.give_up(self):
            self._function.leave()

    def refused(self, error: SockdError) -> None:
        """As `Waiter` says."""
        self._stop = _nothing
        self._leave(error)

    def turn_came(self) -> None:
        """As `Waiter` says."""
        self._stop = _nothing
        gone = self._request.gone
        if self._done is _nothing or (gone is not None and gone()):
            self._give_back_turn(ClientGone())
        else:
            self._enter()

    def _enter(self) -> None:
        """Run the request, which has a slot now."""
        function, request = self._function, self._request
        self._admitted_ns = time.monotonic_ns()
        request.entered = True
        version = self._version = function.version
        if version.image is not None:
            version.image.used()
        try:
            if request.expected is not None:
                version.check_code(request.expected)
            is_app = version.program.is_app
            self._call = None if is_app is None else version.call(request, is_app)
            idle = function.find_idle(request) if not self._is_apart else None
        except Exception as error:
            self._give_back_turn(error)
            return
        if idle is None:
            self._enter_gate()
            return
        if self._place is not None:
            self._place.end()
        if idle.sandbox.lifecycle.state is State.IDLE:
            self._ask(idle)
        else:
            self._later(self._thaw(idle), idle)

    def _enter_gate(self) -> None:
        """Start a new sandbox for the request, or wait until one may start or an idle one is there.

        A sandbox that it shares with no other request passes by: a debugger may keep it for minutes."""
        function = self._function
        if self._place is None and not self._is_apart:
            self._place = function.starts.try_start()
            if self._place is None:
                self._wait_at_gate()
                return
        self._start_new()

    def _wait_at_gate(self) -> None:
        words = self._function.starts.queue(self)
        self._stop = self._leave_gate
        if not self._waited_for:
            self._waited_for, self._gated_ns = words, self._admitted_ns

    @property
    def served_by(self) -> Function | None:
        """As `StartWaiter` says."""
        function = self._function
        return None if self._request.fresh or not function.version.config.reuse_sandbox else function

    def turn_to_start(self, place: StartPlace | None) -> bool:
        """As `StartWaiter` says. It takes the version that is current now, whose idle sandboxes there are."""
        self._stop, self._place = _nothing, place
        gone = self._request.gone
        if gone is not None and gone():
            self._give_back_turn(ClientGone())
            return False
        self._enter()
        return True

    def not_started(self, error: SockdError) -> None:
        """As `StartWaiter` says."""
        self._stop = _nothing
        self._give_back_turn(error)

    def _leave_gate(self) -> None:
        self._function.starts.give_up(self)
        self._give_back_turn(ClientGone())

    def _start_new(self) -> None:
        function, request, version = self._function, self._request, self._version
        try:
            found = function.find_new(request) if not self._is_apart else self._find_apart(version)
        except Exception as error:
            self._give_back_turn(error)
            return
        function.caches.latency.start_begun()
        if isinstance(found, Leased):
            self._hand_place_to(found.sandbox)
            if request.fresh:
                found.why = ASKED_FOR
            self._ask(found)
            return
        if self._debugged is None:
            # Now, and not in the task's first step, which is a turn of the loop away.
            self._beside = function.begin_script(self._recorder or version.initscript, request, version.program)
        self._later(self._start(found))

    def _find_apart(self, version: Version) -> Starting:
        """A sandbox for a recording or for a debugger. Raises: CannotDebug."""
        if self._debugged is not None:
            self._program = self._debugged.program(version)
        return self._function.find_apart(version, self._program)

    def _later(self, steps: Coroutine[Any, Any, None], paused: Leased | None = None) -> None:
        """Have a task prepare the sandbox and send the request in its last step: a new sandbox reports READY to its request."""
        preparing = self._loop.create_task(steps)
        preparing.add_done_callback(partial(self._prepared, paused))
        self._stop = preparing.cancel

    async def _thaw(self, leased: Leased) -> None:
        try:
            await leased.thaw()
        except SandboxDied:
            if not leased.sandbox.has_lost_image:
                raise
            await self._start(self._anew())
        else:
            self._ask(leased)

    def _anew(self) -> Starting:
        """A start in place of a sandbox that could not serve it."""
        self._function.caches.latency.start_begun()
        self._beside = self._function.begin_script(self._version.initscript, self._request)
        return self._function.find_apart(self._version)

    async def _start(self, starting: Starting) -> None:
        beside, self._beside = self._beside, None
        is_recording = self._recorder is not None
        leased = await self._function.start(self._version, starting, beside, self._program, is_recording=is_recording)
        self._hand_place_to(leased.sandbox)
        leased.why = self._why or (ASKED_FOR if self._request.fresh else leased.why)
        if self._debugged is not None:
            self._debugged.begin(leased.sandbox)
        self._ask(leased)

    def _hand_place_to(self, sandbox: Sandbox) -> None:
        place, self._place = self._place, None
        if place is not None:
            self._function.init_begins(sandbox, place)

    def _prepared(self, paused: Leased | None, preparing: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError() if preparing.cancelled() else preparing.exception()
        if error is None:
            return
        if isinstance(error, NOT_STARTED) and (image := self._version.image) is not None:
            error = image.failure_since(self._admitted_ns) or error
        # What follows is for a task that was cancelled before its first step.
        if paused is not None:
            paused.sandbox.destroy()
        if self._beside is not None:
            self._beside.give_up()
        self._give_back_turn(error)

    def _ask(self, leased: Leased) -> None:
        request, version = self._request, self._version
        self._leased = leased
        leased.version, leased.deploy = version.number, version.record.version
        leased.queue_ns = self._admitted_ns - request.arrived_ns
        leased.trace = request.amzn_trace
        if self._waited_for:
            leased.waited_for = f"waited {(self._admitted_ns - self._gated_ns) / 1e9:.2f} s: {self._waited_for}"
        if leased.beside is not None and (aborted := leased.beside.aborted()) is not None:
            self._end(Reply(error=aborted))
            return
        self._stop = self._abandon
        call, conversation = self._call, leased.sandbox.conversation
        compose = partial(version.call, request) if call is None else None
        try:
            conversation.ask(call, self._replied, self._open_sink, compose=compose, request_id=request.id)
        except Exception as error:
            self._abandon()
            self._loop.call_soon(self._done, error)

    def _open_sink(self) -> BoundedSink:
        """The receiver of a streamed answer that begins."""
        sink = self._request.sink
        if sink is None:
            return BoundedSink(Joined(), self._function.caches.max_answer_bytes)
        sink.begun = self._leased.invocation()
        return BoundedSink(sink, self._function.caches.max_streamed_bytes)

    def _abandon(self) -> None:
        self._stop = _nothing
        self._leased.sandbox.conversation.abandon()
        self._put_back()

    def _replied(self, reply: Reply) -> None:
        if self._leased.beside is not None:
            self._leased.beside.answered()
        if self._earlier_log is not None:
            reply.log = self._earlier_log + reply.log
        elif isinstance(reply.error, NotTaken) and not self._is_apart:
            self._earlier_log = reply.log
            self._function.dispose(self._leased, self._version)
            self._later(self._start(self._anew()))
            return
        template = self._leased.template
        if (
            template is not None
            and reply.error is not None
            and (why := self._function.give_up_template(template, self._leased.sandbox, reply.error))
        ):
            self._why = why
            self._earlier_log = reply.log
            self._function.dispose(self._leased, self._version)
            self._later(self._start(self._anew()))
            return
        if isinstance(reply.error, ENDED_BY_ITSELF) and (image := self._leased.sandbox.process.image) is not None:
            explaining = self._loop.create_task(image.why_lost())
            explaining.add_done_callback(partial(self._explained, reply))
            self._stop = partial(self._unexplained, reply, explaining)
        else:
            self._end(reply)

    def _explained(self, reply: Reply, explaining: asyncio.Task[ImageUnavailable | None]) -> None:
        """Whether its image was lost is known."""
        if explaining.cancelled():
            return
        image = self._version.image
        failure = image.failure_since(self._admitted_ns) if image is not None else None
        reply.error = explaining.result() or failure or reply.error
        self._end(reply)

    def _unexplained(self, reply: Reply, explaining: asyncio.Task[ImageUnavailable | None]) -> None:
        explaining.cancel()
        self._put_back()
        if reply.stream is not None:
            reply.stream.cut()

    def _end(self, reply: Reply) -> None:
        self._stop = _nothing
        if reply.stream is None:
            # In this order, as keeping or destroying a sandbox takes up to a millisecond; and in one step of the loop, so that
            # a client that has its answer and asks again finds the sandbox.
            try:
                self._answer(reply, reply.body)
            finally:
                self._put_back()
            return
        self._put_back()
        reply.stream.end()
        passing_on = self._loop.create_task(reply.stream.passed_on(failed=reply.told_error is not None))
        passing_on.add_done_callback(partial(self._passed_on, reply, reply.stream))
        self._stop = passing_on.cancel

    def _passed_on(self, reply: Reply, stream: Stream, passing_on: asyncio.Task[None]) -> None:
        """A streamed answer was delivered, or cut."""
        error = asyncio.CancelledError() if passing_on.cancelled() else passing_on.exception()
        if error is not None:
            stream.cut()
            self._done(error)
            return
        body = stream.sink.body() if isinstance(stream.sink, Joined) else b""
        self._answer(reply, body, streamed=stream.sink is self._request.sink)

    def _put_back(self) -> None:
        if self._is_apart:
            self._leased.sandbox.destroy()
        self._function.put_back(self._leased, self._version)

    def _answer(self, reply: Reply, body: bytes, *, streamed: bool = False) -> None:
        invocation = self._leased.invocation(reply.exec_ns, body, streamed=streamed)
        self._done(Outcome(invocation, reply, self._leased, time.monotonic_ns()))

    def _give_back_turn(self, error: BaseException) -> None:
        if self._place is not None:
            self._place.end()
        self._function.admission.leave()
        self._leave(error)

    def _leave(self, error: BaseException) -> None:
        """End the request without a sandbox."""
        self._function.leave()
        self._loop.call_soon(self._done, error)


def begin_serving(function: Function, request: InvokeRequest, done: Done) -> Serving:
    """Begin one request. Args: as `Serving` says."""
    serving = Serving(function, request, done)
    serving.begin()
    return serving


async def serve_request(
    function: Function, request: InvokeRequest, recorder: Initscript | None = None, debugged: Debugged | None = None
) -> Outcome:
    """The outcome of one request. Args: recorder, debugged: as `Serving` says. Raises: what it says."""
    told: asyncio.Future[Outcome | BaseException] = function.loop.create_future()
    serving = Serving(function, request, partial(tell, told), recorder, debugged)
    serving.begin()
    try:
        outcome = await told
    except asyncio.CancelledError:
        serving.cancel()
        raise
    if not isinstance(outcome, BaseException):
        return outcome
    try:
        raise outcome
    finally:
        del outcome, told  # its traceback has this frame: they would be a cycle


def tell(told: asyncio.Future[Outcome | BaseException], outcome: Outcome | BaseException) -> None:
    """Resume the waiting task."""
    if not told.done():
        told.set_result(outcome)


def _nothing(_: object = None) -> None:
    return None
