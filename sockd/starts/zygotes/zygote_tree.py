"""The import cache: a tree of Zygotes, from which every sandbox is forked (SOCK 4.3).

There is one root for each kind of network. The host's is exec'd; the others are its children behind walls, made when a function
first needs them, with Zygotes of their own below them (`sandbox/walled_networks`).

Owns the nodes. `best` is the node that serves a function (`starts` asks). `ImportLearner` creates better nodes in the
background, so that no request waits for an import in a Zygote. A node that fails is removed and the next best serves; the root is
exec'd again. Knows nothing of functions: it gets closures and returns sandboxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from sockd.base.config import ZygoteConfig
from sockd.base.errors import ChunkStoreFailed, Draining, NoCapacity, SockdError
from sockd.base.uids import ROOT_UIDS
from sockd.isolation.farm.control import ZygoteGone
from sockd.isolation.farm.farm import Farm
from sockd.isolation.farm.imported import Imported, ImportRequest
from sockd.isolation.farm.uids import UidBlock
from sockd.isolation.farm.walled_networks import Wall
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.roots.image_python import SCHEME
from sockd.isolation.roots.interpreter import ImageImports
from sockd.isolation.roots.program import HOST_LINEAGE, OWN, Limits, Lineage, Network, Program
from sockd.isolation.sandbox.foreign_farms import ForeignFarms
from sockd.isolation.sandbox.memory_budget import Reservation
from sockd.isolation.sandbox.parts import Parts
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.linux import pidfds
from sockd.linux.cgroups.controllers import Weight
from sockd.starts.zygotes.rate import RATE_TAU_S, DecayingRate, DemandMeter
from sockd.starts.zygotes.selection import best_node
from sockd.starts.zygotes.soundness import ImportView
from sockd.starts.zygotes.spare_policy import wanted_spares
from sockd.starts.zygotes.zygote_node import Verifies, ZygoteNode

FARM_BYTES = 3 << 20
"""Memory of a farm's launcher and init."""
SPARE_MEMORY_BYTES = 16 << 20
"""What a spare reserves until it becomes a function."""
LEAST_APART_BYTES = 128 << 20
"""With less no sandbox is made for nobody's request: it would end for want of memory."""
REVIVALS = 3
"""How often a request waits for a new root Zygote, when one after the other ends."""
REFILL_S = 0.004
"""Time to make one spare ready (measured: 1-4 ms with the packages of this tree)."""

_log = logging.getLogger(__name__)


PRESSURE = 0.05
"""Below this free share of the memory budget only root Zygotes keep spares."""


class ZygoteTree:
    """All nodes of one worker. `open` first, `close` last."""

    def __init__(
        self,
        config: ZygoteConfig,
        parts: Parts,
        farm: Farm,
        walls: Mapping[Network, Wall],
        foreign: ForeignFarms,
        *,
        base_uid: int,
        spare_limits: Limits,
    ) -> None:
        self._config = config
        self._parts = parts
        self._farm = farm
        self._walls = walls
        self._foreign = foreign
        self._spare_limits = spare_limits
        self._uids = UidBlock.of_host(base_uid, ROOT_UIDS)
        self._random = random.Random()
        self._tasks: set[asyncio.Task[None]] = set()
        self._roots: dict[Lineage, ZygoteNode] = {}
        self._reviving: dict[Lineage, asyncio.Task[None]] = {}
        self._failures: dict[Lineage, SockdError | OSError] = {}
        """Why the last root of a lineage could not be made; it was logged once."""
        self._users: Counter[Lineage] = Counter()
        self._closed = False
        self.nodes: list[ZygoteNode] = []
        """The roots first, the host's before the others."""
        self.demand: defaultdict[Lineage, DemandMeter] = defaultdict(lambda: DemandMeter(RATE_TAU_S))
        """The demand of the functions of each lineage."""
        self._verifier: Verifies | None = None
        if foreign is not None:
            foreign.retired.append(self.end_interpreter)

    def verify_with(self, verifier: Verifies) -> None:
        """Have nodes that are added from now on serve only what `verifier` has found to be alike."""
        self._verifier = verifier

    @property
    def most_spares(self) -> int:
        """How many spares a node may have; 0: none are kept."""
        return self._config.spares

    @property
    def spawn_deadline_s(self) -> float:
        """How long a fork may take."""
        return self._parts.spawn_deadline_s

    @property
    def most_levels(self) -> int:
        """How deep it may become, with the root."""
        return self._config.max_depth + 1

    async def open(self) -> None:
        """Exec the root Zygote. Raises: SandboxFailed."""
        self._add_root(
            HOST_LINEAGE, await Zygote.exec_root(self._farm, self._parts.cgroups, self._uids, self.zygote_ended)
        )

    async def _make_root(self, lineage: Lineage) -> None:
        """Raises: SandboxFailed, NoCapacity, OSError."""
        if lineage.interpreter != OWN:
            began_s = time.monotonic()
            self._add_root(lineage, await self._exec_foreign(lineage))
            self._note_foreign(self._roots[lineage], began_s)
        elif lineage.network == "host":
            await self.open()
        else:
            await self._wall_in(lineage.network)

    async def _exec_foreign(self, lineage: Lineage) -> Zygote:
        """Start a root of an interpreter that is not the worker's own. Each of them is exec'd: one behind a wall is no fork
        of one that, as code of that interpreter, can reach the host's network."""
        wall = None if lineage.network == "host" else self._walls.get(lineage.network)
        if wall is None and lineage.network != "host":
            raise ZygoteGone(f'no function with network = "{lineage.network}" can be served')
        if self._foreign.is_short_of_uids:
            self._end_least_recently_used()
        limit_bytes = self._config.memory_mb << 20
        return await self._foreign.exec_root(lineage.interpreter, wall, self.zygote_ended, limit_bytes=limit_bytes)

    def _end_least_recently_used(self) -> None:
        """End the Zygotes of another interpreter, so that its block of uids comes back; its next start makes them again."""
        foreign = [lineage for lineage in self._roots if lineage.interpreter != OWN]
        if foreign:
            used_s = {lineage: max(node.last_used_s for node in self.nodes_of(lineage)) for lineage in foreign}
            lineage = min(foreign, key=lambda each: used_s[each])
            _log.info("the Zygotes of %s end: other interpreters need their uids", in_words(lineage))
            for node in reversed(self.nodes_of(lineage)):
                self.remove(node)

    def _note_foreign(self, root: ZygoteNode, began_s: float) -> None:
        """What a root of another interpreter costs and saves, as the eviction policies see it."""
        now_s = time.monotonic()
        root.seconds_saved = now_s - began_s
        root.rate = DecayingRate(RATE_TAU_S, now_s=now_s, rate=1 / RATE_TAU_S)

    def image_imports(self, lineage: Lineage) -> ImageImports | None:
        """How functions of a lineage import, if that is an image's; None: it is not. Raises: ZygoteGone: it has no farm now."""
        try:
            return self._foreign.interpreter(lineage.interpreter).imports
        except KeyError:
            raise ZygoteGone("the interpreter's farm has ended") from None

    def parts_of(self, zygote: Zygote) -> Parts:
        """What the sandboxes of a Zygote are made from. Raises: ZygoteGone: its farm has ended."""
        return self._parts if zygote.interpreter == OWN else self._foreign.parts_of(zygote)

    async def _wall_in(self, network: Network) -> None:
        """A root of the worker's interpreter behind a wall. Raises: SandboxFailed, NoCapacity, OSError."""
        if HOST_LINEAGE not in self._roots:
            await self._living_root(HOST_LINEAGE)
        if network not in self._walls:
            raise ZygoteGone(f'no function with network = "{network}" can be served')
        self._add_root(Lineage(network), await self._spawn(self.root, self._walls[network]))

    def _add_root(self, lineage: Lineage, zygote: Zygote) -> None:
        if not zygote.alive:
            raise ZygoteGone("the root Zygote ended as soon as it was there")
        node = ZygoteNode(zygote, frozenset(), None, lineage=lineage)
        self.nodes.insert(0 if lineage == HOST_LINEAGE else len(self._roots), node)
        self._roots[lineage] = node

    @property
    def root(self) -> ZygoteNode:
        """That of functions with the worker's interpreter and the host's network. Raises: as `root_of`."""
        return self.root_of(HOST_LINEAGE)

    def root_of(self, lineage: Lineage) -> ZygoteNode:
        """Raises: ZygoteGone while it is being made."""
        root = self._roots.get(lineage)
        if root is None:
            raise ZygoteGone("the root Zygote is being restarted")
        return root

    def nodes_of(self, lineage: Lineage) -> list[ZygoteNode]:
        """Return the nodes that serve functions of this lineage."""
        return [node for node in self.nodes if node.lineage == lineage]

    def expect(self, lineage: Lineage, *, at_once: bool = True) -> None:
        """A function is of this lineage: its root is made in the background, before the first start. `release` it.

        Args: at_once: false: not before the first start needs it."""
        self._users[lineage] += 1
        if at_once:
            self._expect_root(lineage)

    def release(self, lineage: Lineage) -> None:
        """A function is of this lineage no more."""
        self._users[lineage] -= 1
        self._end_if_unused(lineage)

    def _end_if_unused(self, lineage: Lineage) -> None:
        """With its last function all Zygotes of another interpreter end."""
        if lineage.interpreter == OWN or self._users[lineage] or self._closed:
            return
        for node in reversed(self.nodes_of(lineage)):
            self.remove(node)

    def _expect_root(self, lineage: Lineage) -> None:
        if lineage not in self._roots and not self._closed:
            self._begin_root(lineage)

    def best(self, view: ImportView) -> ZygoteNode:
        """The node that serves a function with this view now. Raises: ZygoteGone."""
        best = self.root_of(view.lineage)  # without it, none qualifies
        if not self._config.enabled or view.top is None or not view.top.wanted:
            return best
        nodes = self.nodes_of(view.lineage)
        return best_node(
            nodes, view.top.wanted, self._random, lambda node: node.zygote.may_fork and not node.refusal(view)
        )

    def passed_over(self, view: ImportView) -> list[tuple[ZygoteNode, str]]:
        """Nodes with more imports of this function than the one that serves it, which must not; and why. The largest first."""
        if view.top is None or view.lineage not in self._roots:
            return []
        fewest = len(self.best(view).imports)
        larger = [
            node
            for node in self.nodes_of(view.lineage)
            if len(node.imports) > fewest and node.imports <= view.top.asked_for
        ]
        larger.sort(key=lambda node: -len(node.imports))
        return [(node, reason) for node in larger if (reason := node.refusal(view))]

    def best_now(self, view: ImportView) -> ZygoteNode | None:
        """As `best`; None: there is no root of its lineage."""
        return self.best(view) if view.lineage in self._roots else None

    async def living_best(self, view: ImportView) -> ZygoteNode:
        """As `best`, once there is a root. Raises: ZygoteGone; SockdError: why there can be none."""
        await self._living_root(view.lineage)
        return self.best(view)

    async def _living_root(self, lineage: Lineage) -> None:
        """Wait for a root that is not there yet, or died; it is tried again where that failed, unless its image cannot be read.

        Raises: SockdError: why an interpreter that is not the worker's own has none."""
        for _ in range(REVIVALS):
            if lineage in self._roots or self._closed:
                return
            await asyncio.shield(self._begin_root(lineage))
            if isinstance(failure := self._failures.get(lineage), ChunkStoreFailed):
                raise failure.again()
        if isinstance(failure, SockdError) and lineage.interpreter != OWN:
            raise failure.again()

    async def why_no_root(self, lineage: Lineage) -> SockdError | OSError | None:
        """Why no root of a lineage could be made just now; None: it is there."""
        if lineage not in self._roots:
            await asyncio.shield(self._begin_root(lineage))
        return None if lineage in self._roots else self._failures.get(lineage) or Draining("the worker ends")

    def _begin_root(self, lineage: Lineage) -> asyncio.Task[None]:
        """The task that makes a root."""
        reviving = self._reviving.get(lineage)
        if reviving is None or reviving.done():
            reviving = self._reviving[lineage] = self._spawn_task(self._revive(lineage))
        return reviving

    async def fork(self, node: ZygoteNode, program: Program, reservation: Reservation) -> Sandbox:
        """A new child of a node; it owns the reservation, also when this fails. Raises: ZygoteGone, NoCapacity, OSError."""
        node.hit(time.monotonic())
        try:
            return await self._fork(node.zygote, program.limits, reservation, program)
        except ZygoteGone:
            if not node.zygote.alive:
                self.zygote_ended(node.zygote)  # if it died before it was in the tree, nobody else will tell
            raise

    async def _fork(self, zygote: Zygote, limits: Limits, reservation: Reservation, program: Program | None) -> Sandbox:
        try:
            parts = self.parts_of(zygote)
        except ZygoteGone:
            reservation.close()
            raise
        return await Sandbox.fork(parts, zygote, limits, reservation, program)

    # -- spares

    def take_spare(self, node: ZygoteNode, reservation: Reservation) -> Sandbox | None:
        """A spare of a node, which owns the reservation; None: there is none, and the reservation still is the caller's."""
        spare = node.take_spare()
        if spare is not None:
            node.hit(time.monotonic())
            spare.process.adopt(reservation)
        return spare

    def refill(self, node: ZygoteNode) -> None:
        """Make as many spares as the node's recent rate asks for, in the background; never waits."""
        if self._closed or node not in self.nodes or not node.zygote.may_fork:
            return
        if self._parts.budget.free < SPARE_MEMORY_BYTES:
            return  # no news: it is asked again
        missing = self._wanted(node) - len(node.spares) - node.spares_coming
        if missing > 0 and not node.spares_coming:
            node.spares_coming = missing
            self._spawn_task(self._refill(node, missing))

    def adjust_spares(self) -> None:
        """Drop the spares that no recent use asks for, and make those that are missing (called now and then)."""
        for lineage in [*self._roots]:
            self._end_if_unused(lineage)  # the start of a function that was removed meanwhile has made it
        for node in self.nodes:
            node.drop_spares(keep=self._wanted(node))
            self.refill(node)

    def spare_bytes(self) -> int:
        """What all spares hold of the memory budget."""
        return sum(len(node.spares) for node in self.nodes) * SPARE_MEMORY_BYTES

    def make_room(self, need_bytes: int) -> None:
        """Give up spares that hold so many bytes together, the root's last; their memory comes free as their processes end."""
        for node in reversed(self.nodes):
            while node.spares and need_bytes > 0:
                node.drop_spares(keep=len(node.spares) - 1)
                need_bytes -= SPARE_MEMORY_BYTES

    def measure_root(self) -> None:
        """Note the memory of new root Zygotes, some 10 MB; the other nodes are measured before they serve."""
        for root in self._roots.values():
            cgroup = root.zygote.cgroup
            if root.unique_bytes or cgroup is None:
                continue
            with contextlib.suppress(OSError):  # it has just ended
                for number in cgroup.pids()[:1]:
                    root.unique_bytes, root.shared_bytes = pidfds.memory_of(number)
                    root.unique_bytes += FARM_BYTES if root.lineage.interpreter != OWN else 0

    def _wanted(self, node: ZygoteNode) -> int:
        """The root keeps its spares while memory is merely short, as it serves every function: a start that waits gets them."""
        now_s = time.monotonic()
        budget = self._parts.budget
        pressure = budget.contended or (bool(node.imports) and budget.free < budget.total * PRESSURE)
        return wanted_spares(
            node.lately.at(now_s),
            REFILL_S,
            self._config.spares,
            least=self._config.least_spares,
            idle_s=now_s - node.last_used_s,
            memory_pressure=pressure,
        )

    async def _refill(self, node: ZygoteNode, count: int) -> None:
        try:
            for _ in range(count):
                await self._make_spare(node)
        except (SockdError, OSError, TimeoutError) as error:
            _log.warning("no spare from %s: %s", node.id, error)
        finally:
            node.spares_coming = 0

    async def _make_spare(self, node: ZygoteNode) -> None:
        """One ready child more for a node. Raises: SandboxFailed, NoCapacity, OSError, TimeoutError."""
        spare = await self.fork_spare(node.zygote)
        if node in self.nodes:
            node.add_spare(spare)
        else:
            spare.destroy()

    async def fork_spare(self, zygote: Zygote) -> Sandbox:
        """A ready child of a Zygote that need not be in the tree yet: its canary. Raises: as `_make_spare`."""
        reservation = self._parts.budget.reserve_nowait(SPARE_MEMORY_BYTES)
        if reservation is None:
            raise NoCapacity("no memory for a spare")
        limits = replace(self._spare_limits, network=zygote.network)
        return await self._fork(zygote, limits, reservation, None)

    async def fork_apart(self, node: ZygoteNode, program: Program, *, deadline_s: float = 0.0) -> Sandbox:
        """A child of a node that becomes a program for nobody's request, with half the CPU weight of one for a request.

        Args: deadline_s: how long it waits, as requests do, for the least memory that it can use, where little is free; for that
            idle sandboxes are evicted. 0: it does not wait.
        Raises: SandboxFailed, NoCapacity, OSError."""
        budget = self._parts.budget
        most_bytes = min(program.limits.memory_bytes, budget.free // 4)  # requests shall not wait for it
        reservation = budget.reserve_nowait(most_bytes) if most_bytes >= LEAST_APART_BYTES else None
        if reservation is None and deadline_s <= 0:
            raise NoCapacity("no memory for a verification")
        if reservation is None:
            most_bytes = min(program.limits.memory_bytes, LEAST_APART_BYTES)
            reservation = await budget.reserve(most_bytes, deadline_s=deadline_s)
        limits = replace(program.limits, memory_bytes=most_bytes)
        return await self._become_apart(node, limits, reservation, program, weight="half")

    async def start_apart(self, program: Program, *, deadline_s: float) -> Sandbox:
        """A child of a root Zygote that becomes a program for nobody's request, with all of the memory that it is to have.

        Args: deadline_s: how long it waits for that. Raises: SandboxFailed, NoCapacity, OSError."""
        budget = self._parts.budget
        limits = replace(program.limits, memory_bytes=min(program.limits.memory_bytes, budget.total))
        reservation = await budget.reserve(limits.memory_bytes, deadline_s=deadline_s)
        try:
            await self._living_root(program.lineage)
            node = self.root_of(program.lineage)
        except BaseException:
            reservation.close()
            raise
        return await self._become_apart(node, limits, reservation, program)

    async def _become_apart(
        self, node: ZygoteNode, limits: Limits, reservation: Reservation, program: Program, *, weight: Weight = "least"
    ) -> Sandbox:
        sandbox = await self._fork(node.zygote, limits, reservation, program)
        try:
            sandbox.process.cgroup.lower_weight(weight)
            sandbox.become(program)
        except BaseException:
            sandbox.destroy()
            raise
        return sandbox

    # -- growth and loss

    def add(self, node: ZygoteNode) -> None:
        """A provisioned node serves from now on. Its parent may have been replaced or evicted while it imported.

        Raises: ZygoteGone: its image was lost meanwhile; then it is closed."""
        if not self._may_serve(node.zygote):
            node.close()
            raise ZygoteGone("the image of its interpreter was lost")
        if node.parent not in self.nodes:
            above = [other for other in self.nodes_of(node.lineage) if other.imports < node.imports]
            node.parent = max(above, key=lambda other: len(other.imports), default=None)
        node.verifier = self._verifier
        self.nodes.append(node)
        self._end_if_unused(node.lineage)  # its last function has gone while the node imported

    async def spawn(self, parent: ZygoteNode) -> Zygote:
        """A new child Zygote of a node, not in the tree yet. Raises: SandboxFailed, NoCapacity, OSError."""
        return await self._spawn(parent)

    async def spawn_apart(self, network: Network) -> Zygote:
        """A new child Zygote of a root of the worker's interpreter, which never is in the tree. Raises: as `spawn`."""
        await self._living_root(Lineage(network))
        return await self._spawn(self.root_of(Lineage(network)), is_apart=True)

    async def fork_from(self, zygote: Zygote, program: Program, reservation: Reservation) -> Sandbox:
        """A new child of a Zygote that is not in the tree; it owns the reservation, also when this fails. Raises: as `fork`."""
        return await self._fork(zygote, program.limits, reservation, program)

    async def _spawn(self, parent: ZygoteNode, wall: Wall | None = None, *, is_apart: bool = False) -> Zygote:
        limit_bytes, deadline_s = self._config.memory_mb << 20, self._parts.spawn_deadline_s
        return await parent.zygote.spawn(
            limit_bytes=limit_bytes, deadline_s=deadline_s, on_end=self.zygote_ended, wall=wall, is_apart=is_apart
        )

    async def import_modules(self, zygote: Zygote, request: ImportRequest, *, deadline_s: float) -> Imported:
        """Have a new Zygote import, in a root like those of its sandboxes. Raises: as `Zygote.import_modules`."""
        zygote.check_alive()
        parts = self.parts_of(zygote)
        root = parts.assembly.create_for_imports(self._spare_limits, zygote.pidfd, uid=zygote.uids.absolute)
        try:
            return await zygote.import_modules(request, root.fd, deadline_s=deadline_s)
        finally:
            zygote.keep_tree(partial(parts.release, root.give_up()))

    def remove(self, node: ZygoteNode) -> None:
        """Evict a node: its sandboxes and child Zygotes live on; the children hang below its parent from now on."""
        self.nodes.remove(node)
        if self._roots.get(node.lineage) is node:
            del self._roots[node.lineage]
        for other in self.nodes:
            if other.parent is node:
                other.parent = node.parent
        node.close()

    def _may_serve(self, zygote: Zygote) -> bool:
        """False: its image is lost, and only its sandboxes are left."""
        return zygote.interpreter == OWN or not self._foreign.is_retired(zygote)

    def end_interpreter(self, interpreter: str, error: SockdError) -> None:
        """End its Zygotes and spares: their image is lost. Other sandboxes live on; the next start makes a root."""
        for node in reversed([node for node in self.nodes if node.lineage.interpreter == interpreter]):
            if self._roots.get(node.lineage) is node:
                _log.warning("the root Zygote of %s is ended: %s", in_words(node.lineage), error)
            self.remove(node)

    def zygote_ended(self, zygote: Zygote) -> None:
        """A node's Zygote died or was given up: the next best serves, and a root is made anew."""
        for node in [node for node in self.nodes if node.zygote is zygote]:
            what = ", ".join(sorted(node.packages)) or "the standard library"
            _log.warning(
                "%s (%s) ended", node.id, what if node.imports else f"the root Zygote of {in_words(node.lineage)}"
            )
            self.remove(node)
            if not node.imports and node.lineage.interpreter == OWN:  # another is made when a function needs it
                self._expect_root(node.lineage)

    def close(self) -> None:
        """End all Zygotes and spares."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        for node in reversed(self.nodes):
            node.close()
        self.nodes.clear()
        self._roots.clear()

    async def _revive(self, lineage: Lineage) -> None:
        """Make a root Zygote; the other nodes never needed the old one."""
        try:
            await self._make_root(lineage)
            root = self._roots[lineage]
            for node in self.nodes_of(lineage):
                if node is not root:
                    node.parent = node.parent or root
            self.refill(root)
            self._failures.pop(lineage, None)
        except (SockdError, OSError) as error:
            is_known = str(error) == str(self._failures.get(lineage, ""))  # each start tries it anew
            if not is_known and not isinstance(error, Draining):
                _log.error("the root Zygote of %s cannot be started: %s", in_words(lineage), error)
            self._failures[lineage] = error

    def _spawn_task(self, work) -> asyncio.Task[None]:  # type: ignore[no-untyped-def]
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def in_words(lineage: Lineage) -> str:
    """A lineage, for people; an image by its digest."""
    scheme, _, name = lineage.interpreter.partition(":")
    if scheme == SCHEME:
        which = f"the image sha256:{name.partition('.')[0]}"
    else:
        which = f"Python {name}" if name else "the worker's Python"
    return which if lineage.network == "host" else f'{which} with network = "{lineage.network}"'
