"""A sandbox that serves a request, and the result of the request. Plain data, except for the thaw of a paused sandbox."""

from __future__ import annotations

import time

import msgspec

from sockd.base.telemetry import Invocation, Origin, Times
from sockd.functions.modules.initscripts import CompanionRun
from sockd.functions.serving.provisioned import Pool
from sockd.isolation.sandbox.exchange import Reply
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.starts.templates.template import Template
from sockd.starts.zygotes.zygote_node import ZygoteNode

OF_TEMPLATE = "the version's snapshot"
"""What a sandbox was forked from, in the place of a Zygote's packages."""


class Leased(msgspec.Struct):
    """A sandbox for one request, and the time that getting it took."""

    sandbox: Sandbox
    origin: Origin
    started_ns: int = 0
    ready_ns: int = 0
    """When the daemon's part was done; a new sandbox reports later when it is ready."""
    node: ZygoteNode | None = None
    reserved_ns: int = 0
    """When a new sandbox had its memory, and when it had been forked."""
    forked_ns: int = 0
    script_run: CompanionRun | None = None
    """The run of its initscript."""
    pool: Pool | None = None
    """The pool of a provisioned sandbox."""
    version: str = ""
    deploy: int = 0
    """The number of the deploy that made this version."""
    queue_ns: int = 0
    trace: str = ""
    why: str = ""
    passed_over: str = ""
    """Why a Zygote with more of its packages could not serve it."""
    template: Template | None = None
    """What a new one was forked from, if that is a template."""
    waited_for: str = ""
    """Why it waited after its admission, if it did."""

    def invocation(self, exec_ns: int = 0, body: bytes = b"", *, streamed: bool = False) -> Invocation:
        """The invocation, as far as it is known."""
        if self.node is None and not self.started_ns:  # warm: nothing was waited for
            times, node = Times(self.queue_ns, 0, 0, exec_ns), ""
        else:
            times = Times(self.queue_ns, self.setup_ns(), self.init_ns(), exec_ns)
            node = self.node.words if self.node else OF_TEMPLATE if self.template else ""
        return Invocation(body, self.origin, self.sandbox.id, self.version, node, times, streamed, self.trace, self.why)

    async def thaw(self) -> None:
        """Thaw a paused sandbox. Raises: as `Sandbox.unpause`, after destroying the sandbox."""
        self.origin, self.started_ns = "paused", time.monotonic_ns()
        try:
            await self.sandbox.unpause()
        except BaseException:  # cancelled, too: it is in no cache now
            self.sandbox.destroy()
            raise
        self.ready_ns = time.monotonic_ns()

    @property
    def is_new(self) -> bool:
        """Whether it was started for this request; a program of an image has no node."""
        return bool(self.forked_ns)

    def setup_ns(self) -> int:
        """Time from the request for a sandbox until it is confined."""
        return max(self.sandbox.init.started_ns if self.is_new else 0, self.ready_ns) - self.started_ns

    def init_ns(self) -> int:
        """Time of the handler's import, or of the start of its program, if this request waited for it."""
        return self.sandbox.init.took_ns if self.is_new else 0


class Outcome(msgspec.Struct):
    """The end of a request: the invocation, and the sandbox's reply with its log or error."""

    invocation: Invocation
    reply: Reply
    leased: Leased
    answered_ns: int

    @property
    def json_log_level(self) -> str:
        """As its program's."""
        program = self.leased.sandbox.program
        return program.json_log_level if program is not None else ""
