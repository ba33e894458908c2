"""The conversation of the daemon with one sandbox: one request at a time over the channel, its answer, and its deadline.

Owns the channel and the deadline. An exchange that was not clean (timeout, short answer, a frame out of order) destroys the
sandbox: there is no resynchronising with untrusted code. `sockd.isolation.sandbox.frames` handles what the sandbox sends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import partial

from sockd.base.errors import (
    FunctionFailed,
    Interrupted,
    InvalidEvent,
    MethodNotAllowed,
    SandboxDied,
    SandboxFailed,
    SockdError,
    TimedOut,
)
from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.channel import Channel
from sockd.isolation.sandbox.deadline import Deadline
from sockd.isolation.sandbox.exchange import NO_REQUEST, Call, Exchange, Reply
from sockd.isolation.sandbox.lifecycle import Lifecycle, State, Step
from sockd.isolation.sandbox.process import SandboxProcess
from sockd.isolation.sandbox.sandbox_init import SandboxInit
from sockd.isolation.sandbox.stream import BoundedSink
from sockd_zygote import protocol

ANSWERED = (FunctionFailed, Interrupted, InvalidEvent, MethodNotAllowed)
"""Errors that the handler server answered with, in order, or before it was asked: the sandbox goes on. (But not InitFailed:
it has exited.)"""


@dataclass(eq=False, slots=True)
class Conversation:
    """`open`, and for a spare `primed`; `become` once; then `ask` for each request; `close` at the sandbox's end."""

    process: SandboxProcess
    lifecycle: Lifecycle
    init: SandboxInit
    destroy: Callable[[], None]
    """Destroys the sandbox, which calls `close` and `finish`."""
    take: InitVar[Callable[[Conversation, int, int, bytes], None]]
    """Handles a frame: its kind, number and body. Raises: ProtocolError, when this frame is not due."""
    program: Program | None = None
    exchange: Exchange | None = None
    channel: Channel = field(init=False)
    deadline: Deadline = field(init=False)
    _asked: int = 0
    """Requests so far. They are its own: the function sees their number, and is to learn nothing of others by it."""
    _primed: asyncio.Future[None] | None = None
    _explaining: asyncio.Task[None] | None = None
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def __post_init__(self, take: Callable[[Conversation, int, int, bytes], None]) -> None:
        parts = self.process.parts
        self.deadline = Deadline(self._loop)
        self.channel = Channel(
            self.process.sock,
            limits=protocol.sandbox_limits(parts.max_answer_bytes),
            turns=parts.turns,
            on_frame=partial(take, self),
            on_end=self._on_end,
        )

    def open(self) -> None:
        """Begin to read what the sandbox prints and sends. Raises: OSError."""
        parts = self.process.parts
        self.process.output.start(parts.turns, parts.live, self._show_output)
        self.channel.open()
        self.channel.await_result(NO_REQUEST)

    async def primed(self) -> None:
        """Wait until a spare has touched what a first request touches. Raises: SandboxFailed, TimeoutError."""
        self._primed = self._loop.create_future()
        async with asyncio.timeout(self.process.parts.spawn_deadline_s):
            await self._primed
        self._primed = None

    def become(self, program: Program, init: bytes, link_fd: int | None) -> None:
        """Send INIT. Args: link_fd: goes with it; the caller keeps its own. Raises: OSError."""
        self.program = program
        self.init.timeout_s = self.init.timeout_s or program.init_timeout_s
        self.process.output.limit_bytes = program.log_bytes
        if link_fd is None:
            self.channel.send(protocol.INIT, 0, init)
        else:
            self.channel.send_first(protocol.INIT, 0, init, link_fd)

    def ask(
        self,
        call: Call | None,
        done: Callable[[Reply], None],
        open_sink: Callable[[], BoundedSink] | None = None,
        *,
        compose: Callable[[bool], Call] | None = None,
        request_id: bytes = b"",
    ) -> None:
        """Send one request to the function; the first one also waits for its init.

        Args:
            request_id: under which its output is followed.
            done: called as soon as the answer has come, with FunctionFailed, InitFailed, TimedOut, OutOfMemory or
                SandboxDied in `error` if there is none. Unless the handler itself answered, the sandbox is destroyed then.
            open_sink: called when the answer begins to come piece by piece; without one such an answer is joined.
            compose: gives the call, for a program of which it is not known yet whether its handler is an app; the argument
                says so. What it raises is the answer."""
        program = self.program
        assert program is not None
        is_starting = self.lifecycle.state is State.STARTING
        if not is_starting:
            self.lifecycle.advance(Step.BEGIN)
        self._asked += 1
        exchange = self.exchange = Exchange(self._asked, done, request_id, open_sink)
        self.channel.await_result(self._asked)
        self.deadline.set(self.init.timeout_s if is_starting else program.timeout_s, self.expire)
        if is_starting:
            self.init.asked_s = self._loop.time()
        if call is not None:
            self._invoke(exchange, call)
        elif is_starting:
            exchange.compose = compose
        else:
            assert compose is not None
            self.compose(exchange, compose)
        if is_starting:
            self.process.cgroup.settle()  # now that the sandbox has all it needs to go on

    def initialize(self, done: Callable[[Reply], None]) -> None:
        """Wait until the handler has been imported, before any request. What that printed comes with the first answer.

        Args: done: called with an empty reply, or with InitFailed, TimedOut, OutOfMemory or SandboxDied in `error`."""
        assert self.program is not None
        self.exchange = Exchange(NO_REQUEST, done)
        self.deadline.set(self.init.timeout_s, self.expire)
        self.init.asked_s = self._loop.time()
        self.process.cgroup.settle()

    def abandon(self) -> None:
        """Destroy the sandbox without an answer: its request has no caller any more."""
        exchange, self.exchange = self.exchange, None
        self.destroy()
        if exchange is not None:
            exchange.is_over = True
            if exchange.stream is not None:
                exchange.stream.cut()

    def end(self, error: SockdError) -> None:
        """Destroy the sandbox in the middle of its request, which is answered with this error; without one, do nothing."""
        exchange = self.exchange
        if exchange is not None and not exchange.is_over:
            self.finish(error)
            self.destroy()

    def close(self) -> None:
        """Close the channel, and let no deadline pass from now on. Safe to call twice."""
        self.deadline.close()
        self.channel.close()

    # -- for the frames of the sandbox

    @property
    def is_priming(self) -> bool:
        """Whether `primed` waits."""
        return self._primed is not None and not self._primed.done()

    def end_priming(self, error: SandboxFailed | None) -> None:
        """Let `primed` return, or raise this error. Only while it waits."""
        assert self._primed is not None
        if error is None:
            self._primed.set_result(None)
        else:
            self._primed.set_exception(error)

    def compose(self, exchange: Exchange, compose: Callable[[bool], Call]) -> None:
        """Send what had to wait until it was known what the handler is."""
        exchange.compose = None
        assert self.program is not None
        try:
            call = compose(bool(self.program.is_app))
        except SockdError as error:
            self.finish(error)
        else:
            self._invoke(exchange, call)

    def _invoke(self, exchange: Exchange, call: Call) -> None:
        assert self.program is not None
        timeout_ns = int(self.program.timeout_s * 1e9)
        self.channel.send_frame(
            protocol.encode_invoke(exchange.number, call.request_id, timeout_ns, call.details, call.event)
        )

    def stop_answering(self) -> None:
        """Ask the sandbox to end an answer that no client reads any more, and end it after the grace period."""
        exchange = self.exchange
        if exchange is None or exchange.is_over:
            return
        self.channel.send(protocol.GONE, exchange.number)
        grace_s = self.process.parts.stop_grace_s
        words = f"its answer had no reader any more, and it did not end within {grace_s:g} s"
        self.deadline.shorten(grace_s, partial(self.end, SandboxDied(words)))

    def finish(
        self,
        error: SockdError | None,
        body: bytes = b"",
        exec_ns: int = 0,
        exec_started_ns: int = 0,
        *,
        is_answer: bool = False,
    ) -> None:
        """Answer the request that waits, once; the first outcome counts.

        Args: is_answer: the error is what the handler server has answered with."""
        exchange = self.exchange
        if exchange is not None and not exchange.is_over:
            exchange.is_over = True
            reply = Reply(body, error, exec_ns, exec_started_ns, *self.process.output.take(), exchange.stream)
            if error is None or is_answer:
                # It is there for its next request before a client that has this answer can be heard again.
                self.conclude(exchange, reply)
            else:  # in a later step: its finder still uses the sandbox, and its cgroup is given back first
                reply.peak_bytes = self.process.peak_bytes()
                self._loop.call_soon(self.conclude, exchange, reply)
        if self._primed is not None and self.is_priming:
            self.end_priming(SandboxFailed(f"a spare ended before it was ready: {error}"))

    def conclude(self, exchange: Exchange, reply: Reply) -> None:
        """Make the sandbox ready for its next request, or destroy it; then call `done` of the exchange."""
        if self.exchange is not exchange:
            return  # it was abandoned
        self.deadline.clear()
        self.exchange = None
        self.channel.await_result(NO_REQUEST)
        if reply.error is None or (isinstance(reply.error, ANSWERED) and self.lifecycle.state is State.BUSY):
            self.lifecycle.advance(Step.DONE)
            image = self.process.image
            if image is not None and image.lost is not None:
                self.destroy()
        else:
            self.destroy()
        exchange.done(reply)

    def expire(self) -> None:
        """End the request whose deadline passed: kill, then answer; nothing in the sandbox can delay either."""
        exchange, program = self.exchange, self.program
        if exchange is None or program is None or exchange.is_over:
            return  # it came in the same turn of the loop
        is_starting = self.lifecycle.state is State.STARTING
        if is_starting or program.is_trial:
            verdict = self.init.judge(self.process, self._loop.time(), "Init" if is_starting else "Task")
            if not isinstance(verdict, TimedOut):
                self.deadline.set(verdict, self.expire)
                return
            self.process.cgroup.kill_nowait()
            self.finish(verdict)
            return
        self.process.cgroup.kill_nowait()
        self.finish(TimedOut(timeout_words(program), "timeout_s"), b"", int(program.timeout_s * 1e9))

    # -- the end of the channel, and output

    def _on_end(self, error: Exception | None) -> None:
        """Handle the end of the channel: find its cause, answer the request that waits, and destroy the sandbox."""
        if self.exchange is None and not self.is_priming:
            self.destroy()  # no client waits for an answer, and no request may begin in it from now on
        elif not self.lifecycle.is_dead:
            self._explaining = self._loop.create_task(self._explain_end(error))
            self._explaining.add_done_callback(_report)

    async def _explain_end(self, error: Exception | None) -> None:
        spent_ns = self._spent_ns()
        if error is not None:
            self.finish(SandboxDied(f"the sandbox broke its protocol: {error}"), b"", spent_ns)
        elif not self.lifecycle.is_dead:
            await self.process.wait_status()
            if not self.lifecycle.is_dead:
                self.finish(self.process.cause_of_death(), b"", spent_ns)
        self.destroy()

    def _spent_ns(self) -> int:
        """How long the handler has been running, as the deadline knows it; 0 before it runs. (No clock is read when a request
        begins, because nearly all report their own times.)"""
        left_s = self.deadline.left_s()
        if self.program is None or self.lifecycle.state is State.STARTING or math.isinf(left_s):
            return 0
        return max(0, int((self.program.timeout_s - left_s) * 1e9))

    def _show_output(self, kept: bytearray) -> None:
        """Pass on what the request has printed, if its function is followed. What comes when the outcome is certain goes with the
        outcome."""
        exchange, program = self.exchange, self.program
        if exchange is not None and program is not None and exchange.request_id and not exchange.is_over:
            show = self.process.parts.live.shows.get(program.name)
            if show is not None:
                show(exchange.request_id, kept)


def timeout_words(program: Program) -> str:
    """Return AWS's text for a request whose time is over."""
    return f"Task timed out after {program.timeout_s:.2f} seconds"


def _report(task: asyncio.Task[None]) -> None:
    """Log an error when it happens: the task is in a cycle with its sandbox, so asyncio would when that is collected."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "a sandbox was not given back whole", "exception": error})
