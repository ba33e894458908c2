"""Makes one template: a child of the best Zygote, which runs the version's init; then a first fork of it, which must be ready.

Owns the Zygote until it is a template. The init has what a sandbox of the version would have: its limits, its network, its output
in the function's log; and the least CPU weight, because no request waits for it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from sockd.base.blocking import in_thread
from sockd.base.errors import NoCapacity, SandboxFailed
from sockd.isolation.farm.control import ZygoteGone, ZygoteLate
from sockd.isolation.farm.templated import TemplateReport, become_template
from sockd.isolation.farm.zygote import MAX_TASKS, Use, Zygote
from sockd.isolation.networks.policy import Policy
from sockd.isolation.roots.program import Program
from sockd.isolation.roots.root import Root
from sockd.isolation.roots.tmp_layer import TmpLayer
from sockd.isolation.sandbox.memory_budget import Reservation
from sockd.isolation.sandbox.output import Output
from sockd.isolation.sandbox.parts import Parts
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.starts.templates.template import RESTORE_S, SnapshotRefused, Snapshotted, Template, failed_words
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.starts.zygotes.zygote_tree import ZygoteTree
from sockd_zygote import protocol
from sockd_zygote.forks import kept

LEAST_DEADLINE_S = 130.0
"""How long an init and the hooks before the snapshot may take, or the function's timeout if that is longer, as on AWS."""
SLACK_BYTES = 1 << 20
"""What is reserved for a template beyond what it holds when it begins to serve."""
FORK_BYTES = 32 << 20
"""Memory of children that are about to move into cgroups of their own."""
GONE_S = 5.0
MUCH_IN_TMP = f"init leaves more than {kept.MOST_BYTES} bytes or {kept.MOST_IN_TMP} files in /tmp"
OF_A_PROGRAM = (
    "a program behind the Runtime API starts an interpreter of its own, of which there can be no snapshot: use a handler, or "
    "snapshot = false"
)
_log = logging.getLogger(__name__)


class TemplateMaker:
    """Makes the templates of one tree."""

    def __init__(self, tree: ZygoteTree) -> None:
        self._tree = tree

    async def make(self, wanted: Snapshotted, on_end: Callable[[Zygote], None]) -> Template:
        """Make a template that may serve. Args: on_end: called when its Zygote ends by itself.

        Raises: SnapshotRefused; NoCapacity, NetworkUnavailable, SandboxFailed, OSError, TimeoutError."""
        program = wanted.program
        if protocol.decode_init(program.init).get("provided"):
            raise SnapshotRefused(OF_A_PROGRAM)
        reservation = await wanted.conditions.reserve(program)
        with ExitStack() as undo:
            undo.callback(reservation.close)
            node = self._parent(await self._tree.living_best(wanted.view))
            ended = Ended(on_end)
            zygote = await node.zygote.spawn_template(
                use_of(program), deadline_s=self._tree.children.spawn_deadline_s, on_end=ended.note
            )
            undo.callback(zygote.close)
            report = await self._run_init(wanted, zygote, ended)
            template = Template(wanted, zygote, ancestors_of(node), reservation, report)
            widen(zygote, program)
            await self._try(template)
            reservation.resize_nowait(min(zygote.memory_bytes() + SLACK_BYTES, reservation.size))
            if not zygote.alive:
                raise ZygoteGone("the template ended as soon as it was there")
            undo.pop_all()
        return template

    def _parent(self, node: ZygoteNode) -> ZygoteNode:
        """The nearest Zygote with uids for a template: those at the bottom of the tree have none. Raises: NoCapacity."""
        above: ZygoteNode | None = node
        while above is not None:
            if above.zygote.uids.has_run:
                return above
            above = above.parent
        raise NoCapacity("no Zygote of this function has uids left for a template")

    async def _run_init(self, wanted: Snapshotted, zygote: Zygote, ended: Ended) -> TemplateReport:
        """Raises: SnapshotRefused; as `make`."""
        program, parts = wanted.program, self._tree.children.parts_of(zygote)
        assert zygote.cgroup is not None
        zygote.cgroup.limits.lower_weight()
        output, theirs = Output.open(program.log_bytes)
        output.start(parts.turns, parts.live, lambda kept: None)
        deadline_s = max(LEAST_DEADLINE_S, program.timeout_s)
        failure: SnapshotRefused | None = None
        try:
            report = await self._become(program, zygote, parts, theirs, deadline_s)
            failure = refusal(report)
        except SnapshotRefused as error:
            failure = error
        except ZygoteGone as error:
            failure = SnapshotRefused(why_gone(error, ended, program, deadline_s))
        except SandboxFailed as error:
            failure = SnapshotRefused(f"init could not be run in a template: {error}")
        finally:
            printed, _ = output.take()
            output.close()
            os.close(theirs)
        wanted.log(printed, SandboxFailed(f"no snapshot: {failure}") if failure is not None else None)
        if failure is not None:
            raise failure
        return report

    async def _become(
        self, program: Program, zygote: Zygote, parts: Parts, output: int, deadline_s: float
    ) -> TemplateReport:
        zygote.check_alive()
        root = await parts.assembly.create_for_imports(program.limits, zygote.pidfd, uid=zygote.uids.absolute)
        try:
            endpoint = None
            if program.limits.network == "private":
                root.mount_resolv_conf()
                endpoint = await zygote.endpoint("private")
            try:
                if endpoint is not None and isinstance(program.policy, Policy):
                    endpoint.admit(program.policy)
                root.mount_code(program)
                report = await become_template(zygote, program.init, root.fd, output, endpoint, deadline_s=deadline_s)
                if report.has_tmp and refusal(report) is None:
                    await keep_tmp(zygote, root, parts)
                return report
            finally:
                if endpoint is not None:
                    endpoint.take_back(endpoint)
        finally:
            zygote.users.keep_tree(partial(parts.release, root.give_up()))

    async def _try(self, template: Template) -> None:
        """Have a first fork become ready; it ends then. Raises: SnapshotRefused; as `make`."""
        wanted = template.of
        sandbox = await start_from(self._tree, template, await wanted.conditions.reserve(wanted.program))
        try:
            sandbox.become(wanted.program)
            reply = await sandbox.initialize()
        finally:
            await sandbox.aclose(GONE_S)
        if reply.error is not None:
            wanted.log(reply.log, reply.error)
            raise SnapshotRefused(f"the first start from the template failed: {failed_words(reply.error)}")


async def start_from(tree: ZygoteTree, template: Template, reservation: Reservation) -> Sandbox:
    """A fork of a template, which has to become its program; it owns the reservation, also when this fails.

    Raises: SandboxFailed, NoCapacity, ImageUnavailable, OSError, TimeoutError."""
    sandbox = await tree.children.fork_from(template.zygote, template.of.program, reservation)
    sandbox.init.timeout_s = RESTORE_S
    return sandbox


async def keep_tmp(zygote: Zygote, root: Root, parts: Parts) -> None:
    """Have what an init has left in the /tmp of its root under that of each start. Raises: SnapshotRefused, OSError."""
    if why_not := await in_thread(parts.assembly.why_no_tmp_layers):
        raise SnapshotRefused(f"{MUCH_IN_TMP}, and this host has no overlays for it: {why_not}")
    zygote.keep_tmp(TmpLayer(root.fd, zygote.uids.absolute))


class Ended:
    """Notes whether a Zygote was killed for memory, before its cgroup is given back, and passes on that it has ended."""

    def __init__(self, on_end: Callable[[Zygote], None]) -> None:
        self._on_end = on_end
        self.was_out_of_memory = False

    def note(self, zygote: Zygote) -> None:
        """Its Zygote has ended."""
        cgroup = zygote.cgroup
        self.was_out_of_memory = cgroup is not None and cgroup.oom_kills() > 0
        self._on_end(zygote)


def use_of(program: Program) -> Use:
    """What a template of a program may use: what one sandbox of it may."""
    limits = program.limits
    return Use(limits.memory_bytes, limits.pids, limits.cpus, limits.sockets, program.socket_account)


def widen(zygote: Zygote, program: Program) -> None:
    """Let a template fork as other Zygotes do: its init has ended, and its next children are in its cgroup for a moment."""
    assert zygote.cgroup is not None
    limits = program.limits
    zygote.cgroup.limits.lower_weight("usual")
    zygote.cgroup.limits.set(limits.memory_bytes + FORK_BYTES, limits.pids + MAX_TASKS, None)


def ancestors_of(node: ZygoteNode) -> tuple[Zygote, ...]:
    """A node's Zygote and those above it."""
    zygotes, above = [], node
    while above is not None:
        zygotes.append(above.zygote)
        above = above.parent  # type: ignore[assignment]
    return tuple(zygotes)


def refusal(report: TemplateReport) -> SnapshotRefused | None:
    """Why there can be no template, as its report says."""
    if report.error is not None:
        return SnapshotRefused(f"init fails in a template: {report.error.words}")
    return SnapshotRefused("; ".join(report.refused)) if report.refused else None


def why_gone(error: ZygoteGone, ended: Ended, program: Program, deadline_s: float) -> str:
    """Say why a template ended, and while it did what."""
    stage = error.stage or protocol.TEMPLATE_STAGES[0]
    if isinstance(error, ZygoteLate):
        return f"SnapStartTimeoutException: the template {stage}, and that has not ended within {deadline_s:g} s"
    if ended.was_out_of_memory:
        return f"the template {stage}, and needs more memory than memory_mb = {program.limits.memory_bytes >> 20}"
    return f"the process of the template ended while it {stage}"
