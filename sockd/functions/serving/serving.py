"""One request in a function: admission, a sandbox, the answer.

A warm request, or one that gets a spare, uses no task and no future: each step calls the next one, and the sandbox's RESULT
frame calls the last. Steps that need several loop iterations run in a task: a fork, a thaw, a streamed answer.

Owns its slot in the admission queue, and its sandbox until the function takes it back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from sockd.base.errors import (
    ClientGone,
    ImageUnavailable,
    InitFailed,
    NotTaken,
    SandboxDied,
    SockdError,
    TimedOut,
)
from sockd.base.invoke_request import InvokeRequest
from sockd.functions.modules.initscripts import Initscript
from sockd.functions.serving.debugging import Debugged
from sockd.functions.serving.function import Function
from sockd.functions.serving.leased import Leased, Outcome
from sockd.functions.serving.preparation import Preparation, nothing
from sockd.functions.serving.version import Version
from sockd.isolation.sandbox.exchange import Call, Reply
from sockd.isolation.sandbox.lifecycle import State
from sockd.isolation.sandbox.stream import BoundedSink, Joined, Stream

ENDED_BY_ITSELF = (InitFailed, SandboxDied, TimedOut)
"""How a sandbox ends whose image could not be read, among other causes."""
Done = Callable[[Outcome | BaseException], None]
"""Receives the outcome of a request, or the error if it did not run."""


class Serving:
    """Call `begin` once; `cancel` when the result is not needed any more."""

    # Defaults stand in the class, because each that is set costs every request.
    _preparation: Preparation | None = None
    """Once no sandbox was ready, or from the beginning if the request shares its sandbox with no other."""
    _earlier_log: bytes | None = None
    """What the sandbox printed that could not take the request, once another serves it."""
    version: Version
    admitted_ns: int
    _call: Call | None
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
        self.function = function
        self.request = request
        self._done = done
        self._loop = function.loop
        self.stop: Callable[[], object] = nothing
        self._is_exclusive = recorder is not None or debugged is not None
        if self._is_exclusive:
            self._preparation = Preparation(self, recorder, debugged)

    def begin(self) -> None:
        """Run the request, or queue it."""
        function = self.function
        function.running += 1
        latency = function.caches.latency
        latency.running += 1
        if latency.request_begun is not None:
            latency.request_begun()
        if function.admission.try_enter():
            self.enter()
            return
        try:
            function.admission.queue(self)
        except SockdError as error:
            self._leave(error)
            return
        self.stop = self._give_up

    def cancel(self) -> None:
        """Stop the request as soon as possible, without a result. It may have been answered already."""
        self._done = nothing
        stop, self.stop = self.stop, nothing
        stop()

    def _give_up(self) -> None:
        """Leave the queue; if it already has a slot, pass the slot on."""
        if self.function.admission.give_up(self):
            self.function.leave()

    def refused(self, error: SockdError) -> None:
        """As `Waiter` says."""
        self.stop = nothing
        self._leave(error)

    def turn_came(self) -> None:
        """As `Waiter` says."""
        self.stop = nothing
        gone = self.request.gone
        if self._done is nothing or (gone is not None and gone()):
            self.give_back_turn(ClientGone())
        else:
            self.enter()

    def enter(self) -> None:
        """Run the request, which has a slot now."""
        function, request = self.function, self.request
        self.admitted_ns = time.monotonic_ns()
        request.entered = True
        version = self.version = function.version
        if version.image is not None:
            version.image.used()
        try:
            if request.expected is not None:
                version.check_code(request.expected)
            is_app = version.program.is_app
            self._call = None if is_app is None else version.call(request, is_app)
            idle = function.find_idle(request) if not self._is_exclusive else None
        except Exception as error:
            self.give_back_turn(error)
            return
        if idle is None:
            self._prepare().begin()
            return
        if self._preparation is not None:
            self._preparation.end_place()
        if idle.sandbox.lifecycle.state is State.IDLE:
            self.ask(idle)
        else:
            self._prepare().thaw(idle)

    def _prepare(self) -> Preparation:
        """The preparation of its sandbox, from the first time that it needs one."""
        if self._preparation is None:
            self._preparation = Preparation(self)
        return self._preparation

    def ask(self, leased: Leased) -> None:
        """Send the request to its sandbox."""
        request, version = self.request, self.version
        self._leased = leased
        leased.version, leased.deploy = version.number, version.record.version
        leased.queue_ns = self.admitted_ns - request.arrived_ns
        leased.trace = request.amzn_trace
        if self._preparation is not None:
            self._preparation.note_wait(leased)
        if leased.script_run is not None and (aborted := leased.script_run.aborted()) is not None:
            self._end(Reply(error=aborted))
            return
        self.stop = self._abandon
        call, conversation = self._call, leased.sandbox.conversation
        compose = partial(version.call, request) if call is None else None
        try:
            conversation.ask(call, self._replied, self._open_sink, compose=compose, request_id=request.id)
        except Exception as error:
            self._abandon()
            self._loop.call_soon(self._done, error)

    def _open_sink(self) -> BoundedSink:
        """The receiver of a streamed answer that begins."""
        sink = self.request.sink
        if sink is None:
            return BoundedSink(Joined(), self.function.caches.max_answer_bytes)
        sink.begun = self._leased.invocation()
        return BoundedSink(sink, self.function.caches.max_streamed_bytes)

    def _abandon(self) -> None:
        self.stop = nothing
        self._leased.sandbox.conversation.abandon()
        self._put_back()

    def _replied(self, reply: Reply) -> None:
        if self._leased.script_run is not None:
            self._leased.script_run.answered()
        if self._earlier_log is not None:
            reply.log = self._earlier_log + reply.log
        elif isinstance(reply.error, NotTaken) and not self._is_exclusive:
            self._earlier_log = reply.log
            self._go_on_in_another()
            return
        template = self._leased.template
        if (
            template is not None
            and reply.error is not None
            and (why := self.function.templates.give_up(template, self._leased.sandbox, reply.error))
        ):
            self._prepare().why = why
            self._earlier_log = reply.log
            self._go_on_in_another()
            return
        if isinstance(reply.error, ENDED_BY_ITSELF) and (image := self._leased.sandbox.process.image) is not None:
            explaining = self._loop.create_task(image.why_lost())
            explaining.add_done_callback(partial(self._explained, reply))
            self.stop = partial(self._unexplained, reply, explaining)
        else:
            self._end(reply)

    def _go_on_in_another(self) -> None:
        self.function.dispose(self._leased, self.version)
        self._prepare().start_anew()

    def _explained(self, reply: Reply, explaining: asyncio.Task[ImageUnavailable | None]) -> None:
        """Whether its image was lost is known."""
        if explaining.cancelled():
            return
        image = self.version.image
        failure = image.failure_since(self.admitted_ns) if image is not None else None
        reply.error = explaining.result() or failure or reply.error
        self._end(reply)

    def _unexplained(self, reply: Reply, explaining: asyncio.Task[ImageUnavailable | None]) -> None:
        explaining.cancel()
        self._put_back()
        if reply.stream is not None:
            reply.stream.cut()

    def _end(self, reply: Reply) -> None:
        self.stop = nothing
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
        passing_on = self._loop.create_task(reply.stream.passed_on(failed=reply.answered_error is not None))
        passing_on.add_done_callback(partial(self._passed_on, reply, reply.stream))
        self.stop = passing_on.cancel

    def _passed_on(self, reply: Reply, stream: Stream, passing_on: asyncio.Task[None]) -> None:
        """A streamed answer was delivered, or cut."""
        error = asyncio.CancelledError() if passing_on.cancelled() else passing_on.exception()
        if error is not None:
            stream.cut()
            self._done(error)
            return
        body = stream.sink.body() if isinstance(stream.sink, Joined) else b""
        self._answer(reply, body, streamed=stream.sink is self.request.sink)

    def _put_back(self) -> None:
        self._preparation = None  # as in `_leave`
        if self._is_exclusive:
            self._leased.sandbox.destroy()
        self.function.put_back(self._leased, self.version)

    def _answer(self, reply: Reply, body: bytes, *, streamed: bool = False) -> None:
        invocation = self._leased.invocation(reply.exec_ns, body, streamed=streamed)
        self._done(Outcome(invocation, reply, self._leased, time.monotonic_ns()))

    def give_back_turn(self, error: BaseException) -> None:
        if self._preparation is not None:
            self._preparation.end_place()
        self.function.admission.leave()
        self._leave(error)

    def _leave(self, error: BaseException) -> None:
        """End the request without a sandbox."""
        self._preparation = None  # which knows this request: they would be a cycle
        self.function.leave()
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
    outcome_of: asyncio.Future[Outcome | BaseException] = function.loop.create_future()
    serving = Serving(function, request, partial(tell, outcome_of), recorder, debugged)
    serving.begin()
    try:
        outcome = await outcome_of
    except asyncio.CancelledError:
        serving.cancel()
        raise
    if not isinstance(outcome, BaseException):
        return outcome
    try:
        raise outcome
    finally:
        del outcome, outcome_of  # its traceback has this frame: they would be a cycle


def tell(outcome_of: asyncio.Future[Outcome | BaseException], outcome: Outcome | BaseException) -> None:
    """Resume the waiting task."""
    if not outcome_of.done():
        outcome_of.set_result(outcome)
