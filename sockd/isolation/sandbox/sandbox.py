"""A sandbox: a confined process that becomes a function and serves one request at a time over its channel.

Owns the process (`sockd.isolation.sandbox.process`), the channel and the deadline. `destroy` is the only way out, complete
even if a step fails, and safe at any time. An exchange that was not clean (timeout, short answer, a frame out of order)
destroys it: there is no resynchronising with untrusted code.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from sockd.base.errors import (
    FunctionFailed,
    ImageUnavailable,
    InitFailed,
    InvalidEvent,
    MethodNotAllowed,
    NotTaken,
    ResponseTooLarge,
    SandboxDied,
    SandboxFailed,
    SockdError,
    TimedOut,
)
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.roots.program import Limits, Program
from sockd.isolation.sandbox.channel import Channel
from sockd.isolation.sandbox.claims import read_failure, read_imports, read_times
from sockd.isolation.sandbox.companion import Companion
from sockd.isolation.sandbox.deadline import Deadline
from sockd.isolation.sandbox.exchange import NO_REQUEST, Call, Exchange, Reply
from sockd.isolation.sandbox.init_time import LEAST_S, left_s, waited_s
from sockd.isolation.sandbox.lifecycle import State, Step, advance
from sockd.isolation.sandbox.memory_budget import Reservation
from sockd.isolation.sandbox.parts import Parts
from sockd.isolation.sandbox.process import SandboxProcess
from sockd.isolation.sandbox.stream import BoundedSink, Flow
from sockd.linux import pidfds
from sockd_zygote import protocol

ANSWERED = (FunctionFailed, InvalidEvent, MethodNotAllowed)
"""Errors that the handler server answered with, in order, or before it was asked: the sandbox goes on. (But not InitFailed:
it has exited.)"""

WAITING = (State.PRIMED, State.IDLE, State.PAUSED)
"""States of a sandbox without a request."""

_numbers = itertools.count(1)


@dataclass(eq=False, slots=True)
class Sandbox:
    """Made by `fork`; then `become` a function once; then `request`, `pause`, `unpause`, until `destroy`."""

    id: str
    process: SandboxProcess
    state: State = State.STARTING
    program: Program | None = None
    imports: list[tuple[str, str, float]] | None = None
    """What the function imported after the fork: (package directory, module, own seconds), in the order the imports
    began; known with the first answer."""
    init_started_ns: int = 0
    """When it was ready to be a function (CLOCK_MONOTONIC), as it says itself."""
    init_ns: int = 0
    has_initialized: bool = False
    """Whether it has been READY."""
    init_timeout_s: float = 0.0
    """How long its init may take: its program's, unless this is set before it becomes that."""
    _init_asked_s: float = 0.0
    """When its init was first waited for, by the loop's clock."""
    _asked: int = 0
    """Requests so far. They are its own: the function sees their number, and is to learn nothing of others by it."""
    on_death: Callable[[Sandbox], None] = field(default=lambda sandbox: None)
    """Called once when the sandbox is destroyed, by any caller: lists of sandboxes remove it."""
    on_initialized: Callable[[Sandbox], None] | None = None
    """Called once, when its init has ended, or it with that."""
    companion: Companion | None = None
    _channel: Channel | None = None
    _exchange: Exchange | None = None
    _primed: asyncio.Future[None] | None = None
    _explaining: asyncio.Task[None] | None = None
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _deadline: Deadline = field(init=False)

    def __post_init__(self) -> None:
        self._deadline = Deadline(self._loop)

    @classmethod
    async def fork(
        cls, parts: Parts, zygote: Zygote, limits: Limits, reservation: Reservation, program: Program | None
    ) -> Sandbox:
        """A confined child of `zygote` that waits for a function; it owns the reservation from now on, also on failure.

        Args:
            program: what it will become. None: a spare; it touches what a first request touches, and is waited for
                until it has (`State.PRIMED`).
        Raises: SandboxFailed, NoCapacity, OSError; ImageUnavailable: its image is lost; then everything was given back."""
        image = parts.image_of(program)
        if image is None:
            return await cls._fork(parts, zygote, limits, reservation, program)
        try:
            sandbox = await cls._fork(parts, zygote, limits, reservation, program)
        except (SandboxFailed, OSError, TimeoutError) as error:
            if (lost := await image.why_lost()) is not None:
                raise lost from error
            raise
        image = sandbox.process.image or image  # of a program: it may have been mounted anew meanwhile
        if image.lost is not None:
            sandbox.destroy()
            image.check()
        image.watchers.add(sandbox.image_lost)
        return sandbox

    @classmethod
    async def _fork(
        cls, parts: Parts, zygote: Zygote, limits: Limits, reservation: Reservation, program: Program | None
    ) -> Sandbox:
        process = await SandboxProcess.fork(parts, zygote, limits, reservation, program)
        sandbox = cls(f"sandbox-{next(_numbers)}", process)
        try:
            await sandbox._connect(program)
        except BaseException:
            sandbox.destroy()
            raise
        return sandbox

    async def _connect(self, program: Program | None) -> None:
        """What must be there before INIT is sent, done while the process confines itself; a spare is waited for until it
        is warm."""
        process, parts = self.process, self.process.parts
        process.mount(program)
        process.output.start(parts.turns, parts.live, self._show_output)
        self._channel = Channel(
            process.sock,
            limits=protocol.sandbox_limits(parts.max_answer_bytes),
            turns=parts.turns,
            on_frame=self._on_frame,
            on_end=self._on_end,
        )
        self._channel.await_result(NO_REQUEST)
        if program is None:
            self._primed = self._loop.create_future()
            async with asyncio.timeout(parts.spawn_deadline_s):
                await self._primed
            self._primed = None
            self.state = State.PRIMED

    def become(self, program: Program, companion: Companion | None = None, init: bytes = b"") -> None:
        """Start being a function: its code, its limits, its INIT. Without waiting: the first `request` follows at once.

        The reservation must be the program's already.

        Args:
            companion: what works beside this start; its `sandbox_gone` is called at the sandbox's end, also after a failure.
            init: INIT's body, if it is not the program's.
        Raises: OSError, when a mount or a limit fails."""
        self.companion = companion
        self.program = program
        self.init_timeout_s = self.init_timeout_s or program.init_timeout_s
        self.process.output.limit_bytes = program.log_bytes
        link_fd = companion.link_fd if companion is not None else program.link_fd
        if link_fd is None:
            self._send(protocol.INIT, 0, init or program.init)
        else:
            assert self._channel is not None
            self._channel.send_first(protocol.INIT, 0, init or program.init, link_fd)
        if self.state is State.PRIMED:
            self.state = advance(self.state, Step.BECOME)
            self.process.hand_over(program)  # while it wakes and reads INIT: that takes as long
            self._send(protocol.CODE, 0)

    async def request(
        self, request_id: bytes, event: bytes, open_sink: Callable[[], BoundedSink] | None = None
    ) -> Reply:
        """One request to the function, a plain one; as `ask`."""
        return await self._told(lambda done: self.ask(Call(request_id, event), done, open_sink))

    def ask(
        self,
        call: Call | None,
        done: Callable[[Reply], None],
        open_sink: Callable[[], BoundedSink] | None = None,
        *,
        compose: Callable[[bool], Call] | None = None,
        request_id: bytes = b"",
    ) -> None:
        """One request to the function; the first one also waits for its init.

        Args:
            request_id: under which its output is followed.
            done: called as soon as the answer has come, with FunctionFailed, InitFailed, TimedOut, OutOfMemory or
                SandboxDied in `error` if there is none. Unless the handler itself answered, the sandbox is destroyed then.
            open_sink: called when the answer begins to come piece by piece; without one such an answer is joined.
            compose: gives the call, for a program of which it is not known yet whether its handler is an app; the argument
                says so. What it raises is the answer."""
        program = self.program
        assert program is not None
        is_starting = self.state is State.STARTING
        if not is_starting:
            self.state = advance(self.state, Step.BEGIN)
        self._asked += 1
        exchange = self._exchange = Exchange(self._asked, done, request_id, open_sink)
        assert self._channel is not None
        self._channel.await_result(self._asked)
        self._deadline.set(self.init_timeout_s if is_starting else program.timeout_s, self._expire)
        if is_starting:
            self._init_asked_s = self._loop.time()
        if call is not None:
            self._invoke(exchange, call)
        elif is_starting:
            exchange.compose = compose
        else:
            assert compose is not None
            self._compose(exchange, compose)
        if is_starting:
            self.process.cgroup.settle()  # now that the sandbox has all it needs to go on

    async def initialize(self) -> Reply:
        """Wait until the handler has been imported, before any request. What that printed comes with the first answer.

        Returns: nothing, or in `error` InitFailed, TimedOut, OutOfMemory or SandboxDied; then the sandbox is destroyed."""
        return await self._told(self._initialize)

    def _initialize(self, done: Callable[[Reply], None]) -> None:
        assert self.program is not None
        self._exchange = Exchange(NO_REQUEST, done)
        self._deadline.set(self.init_timeout_s, self._expire)
        self._init_asked_s = self._loop.time()
        self.process.cgroup.settle()

    async def _told(self, begin: Callable[[Callable[[Reply], None]], None]) -> Reply:
        """Wait for what is begun; cancelled, it is abandoned."""
        reply: asyncio.Future[Reply] = self._loop.create_future()
        begin(lambda told: None if reply.done() else reply.set_result(told))
        try:
            return await reply
        except asyncio.CancelledError:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Nobody waits for its request any more: destroy it, and tell nobody."""
        exchange, self._exchange = self._exchange, None
        self.destroy()
        if exchange is not None:
            exchange.is_over = True
            if exchange.stream is not None:
                exchange.stream.cut()

    def pause(self) -> None:
        """Freeze it and give back the memory that it does not use. Off the request's path."""
        self.state = advance(self.state, Step.PAUSE)
        self.process.freeze()

    async def unpause(self) -> None:
        """Thaw it, with all of its memory.

        Raises: NoCapacity when the memory is not to be had; it stays paused. SandboxDied: it ended in the meantime."""
        if self.dead:  # since it was leased: whoever thaws it does so in a later step of the loop
            raise SandboxDied("the sandbox was destroyed")
        deadline_s = self.program.timeout_s if self.program else self.process.parts.spawn_deadline_s
        await self.process.regain_memory(deadline_s=deadline_s)
        if self.dead:
            self.process.release_memory()
            raise SandboxDied("the sandbox was destroyed")
        self.process.thaw()
        self.state = advance(self.state, Step.UNPAUSE)

    @property
    def dead(self) -> bool:
        return self.state is State.DEAD

    @property
    def reserved_bytes(self) -> int:
        """What of the memory budget it holds, and what works beside it for it."""
        beside = self.companion.reserved_bytes if self.companion is not None else 0
        return self.process.reserved_bytes + beside

    @property
    def has_lost_image(self) -> bool:
        """Whether it may end at its next read of a file: no request may begin in it."""
        image = self.process.image
        return image is not None and image.lost is not None

    async def why_lost(self) -> ImageUnavailable | None:
        """Return the loss of the image, if the sandbox has ended because of it, else None."""
        image = self.process.image
        return None if image is None else await image.why_lost()

    def image_lost(self) -> None:
        """Its image was lost. Nobody may be given it any more; a request that it serves goes on for as long as it can."""
        if self.state in WAITING:
            self.destroy()

    def end(self, error: SockdError) -> None:
        """Destroy it in the middle of its request, which is answered with this error; without one, nothing happens."""
        exchange = self._exchange
        if exchange is not None and not exchange.is_over:
            self._finish(error)
            self.destroy()

    def destroy(self) -> None:
        """Kill it and give everything back: at once what is only ours, and when its last process is gone its cgroup,
        its uid and its memory. Safe to call at any time, and again."""
        if self.dead:
            return
        self.state = advance(self.state, Step.DESTROY)
        with ExitStack() as every:  # goes on after an error and raises the last
            every.callback(self._deadline.close)
            every.callback(self.on_death, self)
            if self.process.image is not None:
                every.callback(self.process.image.watchers.discard, self.image_lost)
            if self.companion is not None:
                every.callback(self.companion.sandbox_ended)
            every.callback(self._tell_initialized)
            every.callback(self._finish, SandboxDied("the sandbox was destroyed"))
            every.callback(self.process.close, self.companion.sandbox_gone if self.companion is not None else None)
            if self._channel is not None:
                every.callback(self._channel.close)

    async def aclose(self, deadline_s: float) -> None:
        """Destroy it, and wait until its process has exited, or the deadline."""
        with pidfds.duplicate(self.process.pidfd) as pidfd:
            self.destroy()
            await pidfds.wait_exited(pidfd, deadline_s)

    # -- the other end

    def _send(self, kind: int, number: int, *parts: bytes) -> None:
        assert self._channel is not None
        self._channel.send(kind, number, *parts)

    def _invoke(self, exchange: Exchange, call: Call) -> None:
        assert self.program is not None
        assert self._channel is not None
        timeout_ns = int(self.program.timeout_s * 1e9)
        self._channel.send_frame(
            protocol.encode_invoke(exchange.number, call.request_id, timeout_ns, call.details, call.event)
        )

    def _compose(self, exchange: Exchange, compose: Callable[[bool], Call]) -> None:
        """Send what had to wait until it was known what the handler is."""
        exchange.compose = None
        assert self.program is not None
        try:
            call = compose(bool(self.program.is_app))
        except SockdError as error:
            self._finish(error)
        else:
            self._invoke(exchange, call)

    def _on_frame(self, kind: int, number: int, body: bytes) -> None:
        """Raises: ProtocolError, when this frame is not due."""
        _TAKE[kind](self, number, body)

    def _on_primed(self, number: int, body: bytes) -> None:
        if self._primed is None or self._primed.done():
            raise protocol.ProtocolError("PRIMED that nobody waits for")
        self._primed.set_result(None)

    def _on_ready(self, number: int, body: bytes) -> None:
        exchange = self._exchange
        if exchange is None or self.state is not State.STARTING:
            raise protocol.ProtocolError("READY that nobody waits for")
        started, ended = read_times(body)
        self.init_started_ns, self.init_ns = started, max(0, ended - started)
        self.state = advance(self.state, Step.READY)
        self.has_initialized = True
        assert self.program is not None
        self.program.is_app = body[protocol.TIMES.size :] == protocol.APP
        self._tell_initialized()
        if exchange.number == NO_REQUEST and not exchange.is_over:
            image = self.process.image
            self._conclude(exchange, Reply(error=image.lost.again() if image is not None and image.lost else None))
            return
        self._deadline.set(self.program.timeout_s, self._expire)
        if exchange.compose is not None:
            self._compose(exchange, exchange.compose)

    def _tell_initialized(self) -> None:
        told, self.on_initialized = self.on_initialized, None
        if told is not None:
            told(self)

    def _on_result(self, number: int, body: bytes) -> None:
        exchange = self._awaiting(protocol.RESULT, number)
        started, ended = read_times(body)
        if exchange.stream is not None and len(body) > protocol.TIMES.size:
            raise protocol.ProtocolError(f"a RESULT of {len(body)} bytes behind a HEAD")
        self._finish(None, bytes(body[protocol.TIMES.size :]), max(0, ended - started), started)

    def _on_failed(self, number: int, body: bytes) -> None:
        started, ended = read_times(body)
        took_ns = max(0, ended - started)
        body = body[protocol.TIMES.size :]
        if self.state is State.STARTING and (self._exchange is not None or self._is_priming()):
            self.init_started_ns, self.init_ns = started, took_ns
            self._finish(read_failure(body, InitFailed))
        else:
            self._awaiting(protocol.FAILED, number)
            self._finish(read_failure(body, FunctionFailed), b"", took_ns, started, is_answer=True)

    def _on_untaken(self, number: int, body: bytes) -> None:
        """The function's program has ended: the sandbox is of no use, and a request that waits may be served by another."""
        exchange = self._exchange
        if self.state not in (State.BUSY, State.IDLE) or (exchange is not None and exchange.stream is not None):
            raise protocol.ProtocolError(f"UNTAKEN while {self.state.value}")
        if exchange is None:
            self.destroy()
        else:
            self._finish(NotTaken())

    def _on_modules(self, number: int, body: bytes) -> None:
        if self.imports is not None:
            raise protocol.ProtocolError("MODULES again")
        self.imports = read_imports(body)

    def _on_head(self, number: int, body: bytes) -> None:
        exchange = self._awaiting(protocol.HEAD, number)
        if exchange.is_over:
            return  # its deadline has just passed
        assert self._channel is not None
        flow = Flow(self._channel.pause, self._channel.resume, self._stop_answering)
        exchange.on_head(body, flow, max_joined_bytes=self.process.parts.max_answer_bytes)

    def _on_chunk(self, number: int, body: bytes) -> None:
        exchange = self._awaiting(protocol.CHUNK, number)
        if exchange.is_over:
            return  # its deadline has just passed
        try:
            exchange.on_chunk(body)
        except ResponseTooLarge as error:
            self.end(error)
        if not body:
            self._deadline.restore()  # its client may have gone with the last piece, before this word of its end

    def _awaiting(self, kind: int, number: int) -> Exchange:
        """The exchange that a frame is for. Raises: ProtocolError, when it is for none that is under way."""
        exchange = self._exchange
        if exchange is None or number != exchange.number or self.state is not State.BUSY:
            raise protocol.ProtocolError(f"{protocol.FRAME_NAMES[kind]} {number} that nobody waits for")
        return exchange

    def _stop_answering(self) -> None:
        """Nobody reads the answer that is being made: say so, and wait a little for its end."""
        exchange = self._exchange
        if exchange is None or exchange.is_over:
            return
        self._send(protocol.GONE, exchange.number)
        grace_s = self.process.parts.stop_grace_s
        words = f"nobody read its answer any more, and it did not end within {grace_s:g} s"
        self._deadline.shorten(grace_s, partial(self.end, SandboxDied(words)))

    def _on_end(self, error: Exception | None) -> None:
        """Handle the end of the channel: find its cause, answer the request that waits, and destroy the sandbox."""
        if self._exchange is None and not self._is_priming():
            self.destroy()  # nobody waits to be told, and nobody may be given it from now on
        elif not self.dead:
            self._explaining = self._loop.create_task(self._explain_end(error))
            self._explaining.add_done_callback(_report)

    async def _explain_end(self, error: Exception | None) -> None:
        spent_ns = self._spent_ns()
        if error is not None:
            self._finish(SandboxDied(f"the sandbox broke its protocol: {error}"), b"", spent_ns)
        elif not self.dead:
            await self.process.wait_status()
            if not self.dead:
                self._finish(self.process.cause_of_death(), b"", spent_ns)
        self.destroy()

    def _spent_ns(self) -> int:
        """How long the handler has been running, as the deadline knows it; 0 before it runs. (No clock is read when a request
        begins, because nearly all report their own times.)"""
        left_s = self._deadline.left_s()
        if self.program is None or self.state is State.STARTING or math.isinf(left_s):
            return 0
        return max(0, int((self.program.timeout_s - left_s) * 1e9))

    def _expire(self) -> None:
        """The deadline passed: kill, then answer; nothing in the sandbox can delay either."""
        exchange, program = self._exchange, self.program
        if exchange is None or program is None or exchange.is_over:
            return  # it came in the same turn of the loop
        if self.state is State.STARTING:
            self._expire_init()
            return
        self.process.cgroup.kill_nowait()
        words = f"Task timed out after {program.timeout_s:.2f} seconds"
        self._finish(TimedOut(words, "timeout_s"), b"", int(program.timeout_s * 1e9))

    def _expire_init(self) -> None:
        """The time of its init passed: give back what of it others have taken, or kill it."""
        process, limit_s = self.process, self.init_timeout_s
        elapsed_s = self._loop.time() - self._init_asked_s
        delayed_s = waited_s(elapsed_s, process.cgroup.cpu_times(), process.limits.cpus)
        more_s = left_s(limit_s, limit_s * process.parts.init_ceiling, elapsed_s, delayed_s)
        if more_s:
            self._deadline.set(more_s, self._expire)
            return
        process.cgroup.kill_nowait()
        words = f"Init timed out after {limit_s:.2f} seconds"
        if delayed_s >= LEAST_S:
            words += (
                f", not counting {min(delayed_s, elapsed_s - limit_s):.2f} seconds in which it waited for a processor"
            )
        self._finish(TimedOut(words, "init_timeout_s"))

    def _finish(
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
        exchange = self._exchange
        if exchange is not None and not exchange.is_over:
            exchange.is_over = True
            reply = Reply(body, error, exec_ns, exec_started_ns, *self.process.output.take(), exchange.stream)
            if error is None or is_answer:
                # It is there for its next request before a client that has this answer can be heard again.
                self._conclude(exchange, reply)
            else:  # when whoever has found it out is through with the sandbox, and its cgroup is given back
                reply.peak_bytes = self.process.peak_bytes()
                self._loop.call_soon(self._conclude, exchange, reply)
        if self._primed is not None and self._is_priming():
            self._primed.set_exception(SandboxFailed(f"a spare ended before it was ready: {error}"))

    def _conclude(self, exchange: Exchange, reply: Reply) -> None:
        """Make the sandbox ready for its next request, or destroy it; then call `done` of the exchange."""
        if self._exchange is not exchange:
            return  # it was abandoned
        self._deadline.clear()
        self._exchange = None
        if self._channel is not None:
            self._channel.await_result(NO_REQUEST)
        if reply.error is None or (isinstance(reply.error, ANSWERED) and self.state is State.BUSY):
            self.state = advance(self.state, Step.DONE)
            image = self.process.image
            if image is not None and image.lost is not None:
                self.destroy()
        else:
            self.destroy()
        exchange.done(reply)

    def _show_output(self, kept: bytearray) -> None:
        """Some function is followed: pass on what this one's request has printed, if it is that. What comes when the outcome
        is certain goes with the outcome."""
        exchange, program = self._exchange, self.program
        if exchange is not None and program is not None and exchange.request_id and not exchange.is_over:
            show = self.process.parts.live.shows.get(program.name)
            if show is not None:
                show(exchange.request_id, kept)

    def _is_priming(self) -> bool:
        """A spare that somebody waits for."""
        return self._primed is not None and not self._primed.done()


_TAKE: dict[int, Callable[[Sandbox, int, bytes], None]] = {
    protocol.PRIMED: Sandbox._on_primed,
    protocol.READY: Sandbox._on_ready,
    protocol.RESULT: Sandbox._on_result,
    protocol.FAILED: Sandbox._on_failed,
    protocol.MODULES: Sandbox._on_modules,
    protocol.HEAD: Sandbox._on_head,
    protocol.CHUNK: Sandbox._on_chunk,
    protocol.UNTAKEN: Sandbox._on_untaken,
}
"""What is done with each kind of frame that `protocol.sandbox_limits` lets through."""


def _report(task: asyncio.Task[None]) -> None:
    """Log an error when it happens: the task is in a cycle with its sandbox, so asyncio would when that is collected."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "a sandbox was not given back whole", "exception": error})
