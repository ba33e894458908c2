"""The sources of sandboxes for requests, in the order in which they are asked: each request asks once. A request without an idle
sandbox may start a new one only with a place of its function's gate (`sockd.functions.serving.start_gate`).

    idle     an idle sandbox of the same program: warm, or paused
    image    a new child of the Zygote for images' programs, if it is one; it is waited for
    template a child of the version's template, if it has one: a spare, or a new one that is waited for; where that fails the next
             source is asked
    spare    a child that the best Zygote has forked ahead
    fork     a new child of the best Zygote; it is waited for

Owns nothing. A further source of new ones is a class with `take`, and a place in the list of `Starts`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from sockd.base.errors import ImageNotReady, ImageUnavailable, NoCapacity, SandboxFailed
from sockd.base.telemetry import Origin
from sockd.isolation.farm.control import ZygoteGone
from sockd.isolation.roots.image_python import SCHEME
from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.memory_budget import Reservation
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.starts.handler_cache import HandlerCache
from sockd.starts.templates.template import RESTORE_S, Template, lost_words
from sockd.starts.templates.template_maker import start_from
from sockd.starts.templates.templates import Templates
from sockd.starts.zygotes.program_zygotes import ProgramZygotes
from sockd.starts.zygotes.top_levels.soundness import ImportView
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.starts.zygotes.zygote_tree import ZygoteTree


class Conditions(Protocol):
    """What must hold before a program has a new sandbox: its memory is reserved, its network has rules."""

    def reserve_nowait(self, program: Program) -> Reservation | None:
        """The memory, if all of them hold now."""

    async def reserve(self, program: Program) -> Reservation:
        """As `reserve_nowait`, after waiting. Raises: SockdError."""


IMAGE = f"{SCHEME}:"
"""With which ids of images' interpreters begin."""
TRIES = 3
"""How often a start of an image's program asks for a Zygote, when one after the other ends, or its image is lost."""
LEAST_TRIES = 2
"""The fewest tries of a start from the tree, however flat that is: its first Zygote may have ended with the mount of its
image."""


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """A sandbox that may become `program`, whose imports have this view."""

    view: ImportView
    program: Program
    conditions: Conditions
    has_template: bool = False
    """Whether the version may be started from its template."""


class Started(msgspec.Struct):
    """A sandbox from a source. A new one waits for its program. Times are in ns of CLOCK_MONOTONIC."""

    sandbox: Sandbox
    origin: Origin
    node: ZygoteNode | None = None
    """The Zygote of a new sandbox; None for one that was idle."""
    started_ns: int = 0
    """When a new one was asked for, and when it had its memory."""
    reserved_ns: int = 0
    template: Template | None = None
    """The template that a new sandbox was forked from; None: it was forked from something else."""
    why: str = ""
    """Why it could not be started from the source that comes before."""


Starting = Callable[[], Coroutine[Any, Any, Started]]
"""How to wait for a sandbox. Raises: SandboxFailed, NoCapacity, ImageUnavailable, OSError; and what the conditions raise."""


class Source(Protocol):
    """One source of new sandboxes. It does not know of the others before it."""

    def take(self, wanted: Wanted) -> Started | Starting | None:
        """A sandbox, now the caller's, or how to wait for one; None: it has none."""


class Spares:
    """Children that were forked ahead of the request."""

    def __init__(self, tree: ZygoteTree) -> None:
        self._tree = tree

    def take(self, wanted: Wanted) -> Started | None:
        if not self._tree.spares.most:
            return None
        started_ns = time.monotonic_ns()
        reservation = wanted.conditions.reserve_nowait(wanted.program)
        if reservation is None:
            return None
        reserved_ns = time.monotonic_ns()
        node = self._tree.best_now(wanted.view)
        spare = self._tree.spares.take(node, reservation) if node is not None else None
        if node is None or spare is None:
            reservation.close()
            return None
        return Started(spare, "spare", node, started_ns, reserved_ns)


class ImagePrograms:
    """New children for programs of images, whose roots have nothing that a handler server could import."""

    def __init__(self, zygotes: ProgramZygotes) -> None:
        self._zygotes = zygotes

    def take(self, wanted: Wanted) -> Starting | None:
        return None if wanted.program.image is None else lambda: self._fork(wanted)

    async def _fork(self, wanted: Wanted) -> Started:
        started_ns, program = time.monotonic_ns(), wanted.program
        for _ in range(TRIES):
            await program.mount_image()
            reservation = await wanted.conditions.reserve(program)
            reserved_ns = time.monotonic_ns()
            try:
                sandbox = await self._zygotes.fork(program, reservation)
            except (ZygoteGone, ImageUnavailable) as error:
                failure = error
                continue
            return Started(sandbox, "zygote", None, started_ns, reserved_ns)
        raise failure


class TemplateForks:
    """Children of the version's template: a spare, or a new one. One that is gone or refuses is given up, and the same start
    goes on elsewhere."""

    def __init__(
        self, tree: ZygoteTree, templates: Templates, others: Callable[[Wanted], Coroutine[Any, Any, Started]]
    ) -> None:
        """Args: others: asks the sources behind this one."""
        self._tree = tree
        self._templates = templates
        self._others = others

    def take(self, wanted: Wanted) -> Started | Starting | None:
        template = self._templates.of(wanted.program)
        if template is None:
            return None
        started_ns = time.monotonic_ns()
        reservation = wanted.conditions.reserve_nowait(wanted.program)
        if reservation is not None:
            reserved_ns = time.monotonic_ns()
            spare = self._templates.spares.take(template, reservation)
            if spare is not None:
                return self._started(spare, template, started_ns, reserved_ns)
            reservation.close()
        return lambda: self._fork(template, wanted)

    async def _fork(self, template: Template, wanted: Wanted) -> Started:
        started_ns = time.monotonic_ns()
        reservation = await wanted.conditions.reserve(wanted.program)
        reserved_ns = time.monotonic_ns()
        # It has waited, perhaps for memory: by now there may be a spare.
        spare = self._templates.spares.take(template, reservation)
        if spare is not None:
            return self._started(spare, template, started_ns, reserved_ns)
        try:
            sandbox = await start_from(self._tree, template, reservation)
        except (SandboxFailed, ImageUnavailable, OSError, TimeoutError) as error:
            reason = f"it could not be forked: {error}"
            self._templates.lose(template, reason)
            started = await self._others(wanted)
            started.why = lost_words(reason)
            return started
        except NoCapacity:
            return await self._others(wanted)
        return self._started(sandbox, template, started_ns, reserved_ns)

    def _started(self, sandbox: Sandbox, template: Template, started_ns: int, reserved_ns: int) -> Started:
        sandbox.init.timeout_s = RESTORE_S
        template.hit()
        self._templates.spares.hit(template)
        return Started(sandbox, "template", None, started_ns, reserved_ns, template)


class Forks:
    """New children. A Zygote that dies under the request is replaced by the next best, once for each of the tree's levels; one in
    an image that is lost under it by one on the image's new mount."""

    def __init__(self, tree: ZygoteTree) -> None:
        self._tree = tree

    def take(self, wanted: Wanted) -> Starting:
        return lambda: self._fork(wanted)

    async def _fork(self, wanted: Wanted) -> Started:
        started_ns, tree = time.monotonic_ns(), self._tree
        for _ in range(max(tree.most_levels, LEAST_TRIES)):
            reservation = await wanted.conditions.reserve(wanted.program)
            reserved_ns = time.monotonic_ns()
            try:
                node = await self._living_best(wanted)
                # It has waited, perhaps for memory: by now there may be a spare.
                spare = tree.spares.take(node, reservation)
            except BaseException:
                reservation.close()
                raise
            if spare is not None:
                return Started(spare, "spare", node, started_ns, reserved_ns)
            try:
                sandbox = await tree.children.fork(node, wanted.program, reservation)
            except (ZygoteGone, ImageUnavailable) as error:
                failure = error
                continue
            return Started(sandbox, "zygote", node, started_ns, reserved_ns)
        raise failure

    async def _living_best(self, wanted: Wanted) -> ZygoteNode:
        """The best Zygote; the first of an image reads its files, for no longer than a start may take."""
        program = wanted.program
        if not wanted.view.lineage.interpreter.startswith(IMAGE):
            return await self._tree.living_best(wanted.view)
        try:
            async with asyncio.timeout(program.init_timeout_s) as limit:
                return await self._tree.living_best(wanted.view)
        except TimeoutError:
            if limit.expired():
                raise ImageNotReady(program.init_timeout_s) from None
            raise


class Starts:
    """The ordered list, and the one place that asks it."""

    def __init__(
        self,
        handlers: HandlerCache,
        tree: ZygoteTree,
        programs: ProgramZygotes | None = None,
        templates: Templates | None = None,
    ) -> None:
        """Args: programs: None: no image's program is started; templates: None: no version has one."""
        images = (ImagePrograms(programs),) if programs is not None else ()
        self._handlers = handlers
        self._sources: tuple[Source, ...] = (*images, Spares(tree))
        self._last = Forks(tree)
        self._from_template = TemplateForks(tree, templates, self._without_template) if templates is not None else None

    def find_idle(self, program: Program) -> Sandbox | None:
        """An idle sandbox, which may be paused, now the caller's; None: there is none."""
        return self._handlers.lease(program)

    def find_new(self, wanted: Wanted) -> Started | Starting:
        """What the first source of new sandboxes has that has anything. Raises: OSError."""
        if wanted.has_template and self._from_template is not None:
            starting = self._from_template.take(wanted)
            if starting is not None:
                return starting
        for source in self._sources:
            found = source.take(wanted)
            if found is not None:
                return found
        return self._last.take(wanted)

    async def new(self, wanted: Wanted) -> Started:
        """A new sandbox from the source that `find_new` finds, once it is started. Raises: OSError, or what `Starting` raises."""
        found = self.find_new(wanted)
        return found if isinstance(found, Started) else await found()

    async def _without_template(self, wanted: Wanted) -> Started:
        return await self.new(msgspec.structs.replace(wanted, has_template=False))
