"""A sandbox: a confined process that becomes a function and serves one request at a time.

Owns the process (`sockd.isolation.sandbox.process`) and the conversation with it (`sockd.isolation.sandbox.conversation`).
`destroy` is the only way out, complete even if a step fails, and safe at any time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from sockd.base.errors import ImageUnavailable, SandboxDied, SandboxFailed
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.roots.program import Limits, Program
from sockd.isolation.sandbox.companion import Companion
from sockd.isolation.sandbox.conversation import Conversation
from sockd.isolation.sandbox.exchange import Call, Reply
from sockd.isolation.sandbox.frames import take
from sockd.isolation.sandbox.lifecycle import Lifecycle, State, Step
from sockd.isolation.sandbox.memory_budget import Reservation
from sockd.isolation.sandbox.parts import Parts
from sockd.isolation.sandbox.process import SandboxProcess
from sockd.isolation.sandbox.sandbox_init import SandboxInit
from sockd.isolation.sandbox.stream import BoundedSink
from sockd.linux.processes import pidfds
from sockd_zygote import protocol

WAITING = (State.PRIMED, State.IDLE, State.PAUSED)
"""States of a sandbox without a request."""

_numbers = itertools.count(1)


@dataclass(eq=False, slots=True)
class Sandbox:
    """Made by `fork`; then `become` a function once; then `request`, `pause`, `unpause`, until `destroy`."""

    id: str
    process: SandboxProcess
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    init: SandboxInit = field(default_factory=SandboxInit)
    program: Program | None = None
    on_death: Callable[[Sandbox], None] = field(default=lambda sandbox: None)
    """Called once when the sandbox is destroyed, by any caller: lists of sandboxes remove it."""
    companion: Companion | None = None
    conversation: Conversation = field(init=False)

    def __post_init__(self) -> None:
        self.conversation = Conversation(self.process, self.lifecycle, self.init, self.destroy, take)

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
            await process.mount(program)  # while the process confines itself
            sandbox.conversation.open()
            if program is None:
                await sandbox.conversation.primed()
                sandbox.lifecycle.state = State.PRIMED
        except BaseException:
            sandbox.destroy()
            raise
        return sandbox

    def become(self, program: Program, companion: Companion | None = None, init: bytes = b"") -> None:
        """Start being a function: its code, its limits, its INIT. Without waiting: the first `request` follows at once.

        The reservation must be the program's already.

        Args:
            companion: what works during this start; its `sandbox_gone` is called at the sandbox's end, also after a failure.
            init: INIT's body, if it is not the program's.
        Raises: OSError, when a mount or a limit fails; NoHostPort."""
        self.companion = companion
        self.program = program
        if program.wants_port:
            self.process.grant_port()
            init = protocol.change_init(init or program.init, port=self.process.port)
        link_fd = companion.link_fd if companion is not None else program.link_fd
        self.conversation.become(program, init or program.init, link_fd)
        if self.lifecycle.state is State.PRIMED:
            self.lifecycle.advance(Step.BECOME)
            self.process.hand_over(program)  # while it wakes and reads INIT: that takes as long
            self.conversation.channel.send(protocol.CODE, 0)

    async def request(
        self, request_id: bytes, event: bytes, open_sink: Callable[[], BoundedSink] | None = None
    ) -> Reply:
        """Send one plain request, and wait for its reply, as `Conversation.ask`."""
        return await self._reply(lambda done: self.conversation.ask(Call(request_id, event), done, open_sink))

    async def initialize(self) -> Reply:
        """Wait until the handler has been imported, before any request. What that printed comes with the first answer.

        Returns: nothing, or in `error` InitFailed, TimedOut, OutOfMemory or SandboxDied; then the sandbox is destroyed."""
        return await self._reply(self.conversation.initialize)

    async def _reply(self, begin: Callable[[Callable[[Reply], None]], None]) -> Reply:
        """Wait for the reply to what is begun; cancelled, abandon it."""
        waiting: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        begin(lambda reply: None if waiting.done() else waiting.set_result(reply))
        try:
            return await waiting
        except asyncio.CancelledError:
            self.conversation.abandon()
            raise

    def pause(self) -> None:
        """Freeze it and give back the memory that it does not use. Off the request's path."""
        self.lifecycle.advance(Step.PAUSE)
        self.process.freeze()

    async def unpause(self) -> None:
        """Thaw it, with all of its memory.

        Raises: NoCapacity when the memory is not to be had; it stays paused. SandboxDied: it ended in the meantime."""
        if self.dead:  # since it was leased: it is thawed in a later step of the loop
            raise SandboxDied("the sandbox was destroyed")
        deadline_s = self.program.timeout_s if self.program else self.process.parts.spawn_deadline_s
        await self.process.regain_memory(deadline_s=deadline_s)
        if self.dead:
            self.process.release_memory()
            raise SandboxDied("the sandbox was destroyed")
        self.process.thaw()
        self.lifecycle.advance(Step.UNPAUSE)

    @property
    def dead(self) -> bool:
        return self.lifecycle.state is State.DEAD

    @property
    def reserved_bytes(self) -> int:
        """What of the memory budget it holds, and its companion for it."""
        companions = self.companion.reserved_bytes if self.companion is not None else 0
        return self.process.reserved_bytes + companions

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
        """Its image was lost. No request may begin in it any more; one that it serves goes on for as long as it can."""
        if self.lifecycle.state in WAITING:
            self.destroy()

    def destroy(self) -> None:
        """Kill it and give everything back: at once what is only ours, and when its last process is gone its cgroup,
        its uid and its memory. Safe to call at any time, and again."""
        if self.dead:
            return
        self.lifecycle.advance(Step.DESTROY)
        with ExitStack() as every:  # goes on after an error and raises the last
            every.callback(self.on_death, self)
            if self.process.image is not None:
                every.callback(self.process.image.watchers.discard, self.image_lost)
            if self.companion is not None:
                every.callback(self.companion.sandbox_ended)
            every.callback(self.init.end)
            every.callback(self.conversation.finish, SandboxDied("the sandbox was destroyed"))
            every.callback(self.process.close, self.companion.sandbox_gone if self.companion is not None else None)
            every.callback(self.conversation.close)

    async def aclose(self, deadline_s: float) -> None:
        """Destroy it, and wait until its process has exited, or the deadline."""
        with pidfds.duplicate(self.process.pidfd) as pidfd:
            self.destroy()
            await pidfds.wait_exited(pidfd, deadline_s)
