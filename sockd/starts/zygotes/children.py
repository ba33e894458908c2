"""Children of Zygotes: sandboxes for requests, for spares, and for work that no request waits for.

Owns nothing: a sandbox is its caller's, and owns the memory that was reserved for it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from sockd.base.errors import NoCapacity
from sockd.isolation.farm.control import ZygoteGone
from sockd.isolation.farm.imported import Imported, ImportRequest
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.roots.interpreter import ImageImports
from sockd.isolation.roots.program import OWN, Limits, Lineage, Program
from sockd.isolation.sandbox.foreign_farms import ForeignFarms
from sockd.isolation.sandbox.memory_budget import Reservation
from sockd.isolation.sandbox.parts import Parts
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.linux.cgroups.controllers import Weight
from sockd.starts.zygotes.lineages import Lineages
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.starts.zygotes.zygote_nodes import ZygoteNodes

SPARE_MEMORY_BYTES = 16 << 20
"""What a spare reserves until it becomes a function."""
LEAST_VERIFICATION_BYTES = 128 << 20
"""Without so much memory no sandbox is made for work that no request waits for: it would end for want of memory."""


class Children:
    """Makes the sandboxes of one worker's Zygotes."""

    def __init__(
        self, parts: Parts, foreign: ForeignFarms, nodes: ZygoteNodes, lineages: Lineages, *, spare_limits: Limits
    ) -> None:
        """Args: spare_limits: the limits of a sandbox until it becomes a function."""
        self._parts = parts
        self._foreign = foreign
        self._nodes = nodes
        self._lineages = lineages
        self._spare_limits = spare_limits

    @property
    def spawn_deadline_s(self) -> float:
        """How long a fork may take."""
        return self._parts.spawn_deadline_s

    def image_imports(self, lineage: Lineage) -> ImageImports | None:
        """How functions of a lineage import, if that is an image's; None: it is not. Raises: ZygoteGone: it has no farm now."""
        try:
            return self._foreign.interpreter(lineage.interpreter).imports
        except KeyError:
            raise ZygoteGone("the interpreter's farm has ended") from None

    def parts_of(self, zygote: Zygote) -> Parts:
        """What the sandboxes of a Zygote are made from. Raises: ZygoteGone: its farm has ended."""
        return self._parts if zygote.interpreter == OWN else self._foreign.parts_of(zygote)

    async def fork(self, node: ZygoteNode, program: Program, reservation: Reservation) -> Sandbox:
        """A new child of a node; it owns the reservation, also when this fails. Raises: ZygoteGone, NoCapacity, OSError."""
        node.hit(time.monotonic())
        try:
            return await self._fork(node.zygote, program.limits, reservation, program)
        except ZygoteGone:
            if not node.zygote.alive:
                self._lineages.zygote_ended(node.zygote)  # if it died before it was in the tree, its end was not seen
            raise

    async def fork_from(self, zygote: Zygote, program: Program, reservation: Reservation) -> Sandbox:
        """A new child of a Zygote that is not in the tree; it owns the reservation, also when this fails. Raises: as `fork`."""
        return await self._fork(zygote, program.limits, reservation, program)

    async def fork_spare(self, zygote: Zygote) -> Sandbox:
        """Fork a ready child of a Zygote that need not be in the tree yet: its canary.

        Raises: SandboxFailed, NoCapacity, OSError, TimeoutError."""
        reservation = self._parts.budget.reserve_nowait(SPARE_MEMORY_BYTES)
        if reservation is None:
            raise NoCapacity("no memory for a spare")
        limits = replace(self._spare_limits, network=zygote.network)
        return await self._fork(zygote, limits, reservation, None)

    async def fork_for_verification(self, node: ZygoteNode, program: Program, *, deadline_s: float = 0.0) -> Sandbox:
        """A child of a node that becomes a program ahead of any request, with half the CPU weight of one for a request.

        Args: deadline_s: how long it waits, as requests do, for the least memory that it can use, where little is free; for that
            idle sandboxes are evicted. 0: it does not wait.
        Raises: SandboxFailed, NoCapacity, OSError."""
        budget = self._parts.budget
        most_bytes = min(program.limits.memory_bytes, budget.free // 4)  # requests shall not wait for it
        reservation = budget.reserve_nowait(most_bytes) if most_bytes >= LEAST_VERIFICATION_BYTES else None
        if reservation is None and deadline_s <= 0:
            raise NoCapacity("no memory for a verification")
        if reservation is None:
            most_bytes = min(program.limits.memory_bytes, LEAST_VERIFICATION_BYTES)
            reservation = await budget.reserve(most_bytes, deadline_s=deadline_s)
        limits = replace(program.limits, memory_bytes=most_bytes)
        return await self._become_ahead(node, limits, reservation, program, weight="half")

    async def start_for_build(self, program: Program, *, deadline_s: float) -> Sandbox:
        """A child of a root Zygote that becomes a program ahead of any request, with all of the memory that it is to have.

        Args: deadline_s: how long it waits for that. Raises: SandboxFailed, NoCapacity, OSError."""
        budget = self._parts.budget
        limits = replace(program.limits, memory_bytes=min(program.limits.memory_bytes, budget.total))
        reservation = await budget.reserve(limits.memory_bytes, deadline_s=deadline_s)
        try:
            await self._lineages.living_root(program.lineage)
            node = self._nodes.root_of(program.lineage)
        except BaseException:
            reservation.close()
            raise
        return await self._become_ahead(node, limits, reservation, program)

    async def import_modules(self, zygote: Zygote, request: ImportRequest, *, deadline_s: float) -> Imported:
        """Have a new Zygote import, in a root like those of its sandboxes. Raises: as `Zygote.import_modules`."""
        zygote.check_alive()
        parts = self.parts_of(zygote)
        root = await parts.assembly.create_for_imports(self._spare_limits, zygote.pidfd, uid=zygote.uids.absolute)
        try:
            return await zygote.import_modules(request, root.fd, deadline_s=deadline_s)
        finally:
            zygote.users.keep_tree(partial(parts.release, root.give_up()))

    async def _fork(self, zygote: Zygote, limits: Limits, reservation: Reservation, program: Program | None) -> Sandbox:
        try:
            parts = self.parts_of(zygote)
        except ZygoteGone:
            reservation.close()
            raise
        return await Sandbox.fork(parts, zygote, limits, reservation, program)

    async def _become_ahead(
        self, node: ZygoteNode, limits: Limits, reservation: Reservation, program: Program, *, weight: Weight = "least"
    ) -> Sandbox:
        sandbox = await self._fork(node.zygote, limits, reservation, program)
        try:
            sandbox.process.cgroup.limits.lower_weight(weight)
            sandbox.become(program)
        except BaseException:
            sandbox.destroy()
            raise
        return sandbox
