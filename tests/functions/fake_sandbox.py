"""A sandbox that answers when the test says so, for tests of the objects that lease sandboxes."""

from __future__ import annotations

from collections.abc import Callable

from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.exchange import Call, Reply
from sockd.isolation.sandbox.lifecycle import Lifecycle, State
from sockd.isolation.sandbox.sandbox_init import SandboxInit


class FakeSandbox:
    """A sandbox and its conversation: IDLE from the start; what it is asked is answered by calling `done`."""

    id = "sandbox-1"
    reserved_bytes = 0

    def __init__(self, program: Program | None = None) -> None:
        self.program = program
        self.lifecycle = Lifecycle(State.IDLE)
        self.init = SandboxInit()
        self.conversation = self
        self.done: Callable[[Reply], None] | None = None
        self.on_death: Callable[[FakeSandbox], None] = lambda sandbox: None
        self.fails = False
        self.cannot_end: OSError | None = None

    def ask(
        self,
        call: Call | None,
        done: Callable[[Reply], None],
        open_sink: object,
        *,
        compose: object,
        request_id: object,
    ) -> None:
        if self.fails:
            raise OSError("no cgroup")
        self.done = done

    def abandon(self) -> None:
        if self.cannot_end is not None:
            raise self.cannot_end
        self.lifecycle.state = State.DEAD
        self.on_death(self)

    @property
    def dead(self) -> bool:
        return self.lifecycle.is_dead

    async def unpause(self) -> None:
        self.lifecycle.state = State.IDLE

    destroy = abandon
