"""Creation of Zygotes: selected by policy, created in the background, tested before they serve.

Owns the background tasks that grow the tree (`zygote.learners`), and the record of what was learned. If a package
starts threads, crashes, exits or hangs in a Zygote, the Zygote is destroyed, importing one distribution at a time finds the
package, and it is refused for some time, during which functions import it themselves. One learner is reserved for Zygotes that
have not failed, so that a search for a harmful package does not delay them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from sockd.caches.packages.distribution import name_of
from sockd.caches.packages.provided_names import Provided
from sockd.caches.zygotes import eviction, selection, standard_library
from sockd.caches.zygotes.import_hits import ImportHits
from sockd.caches.zygotes.import_profile import Seen, load_learned, save_learned
from sockd.caches.zygotes.sharing import Sharing
from sockd.caches.zygotes.soundness import ImportView
from sockd.caches.zygotes.zygote_maker import ZygoteMaker
from sockd.caches.zygotes.zygote_node import ZygoteNode
from sockd.caches.zygotes.zygote_tree import ZygoteTree
from sockd.farm.control import ZygoteGone, ZygoteLate
from sockd.farm.zygote import Zygote
from sockd.images.program import Lineage
from sockd.plain.config import ZygoteConfig
from sockd.plain.errors import NoCapacity, SandboxFailed, SockdError

BYTES_PER_IMPORT_SECOND = 250 << 20
"""Memory of a package that was not measured yet, from its import time: 200-310 MB a second (numpy, pandas, Django)."""
MOST_GUESSED_BYTES = 256 << 20
"""At most, however long an import took: on a busy host it takes many times as long."""
TOP_DEMANDS = 128
MAX_WAITING = 1024
"""Most closures that wait for a Zygote; a further one is considered again at its function's next start."""
STANDARD_LIBRARY_BYTES = 12 << 20
POLICIES = {"measured": eviction.measured_benefit, "sock": eviction.sock_heuristic}

_log = logging.getLogger(__name__)


class UnderWay(NamedTuple):
    """A Zygote that a learner is making, as the policies see it: no parent yet, and not made twice."""

    id: str
    packages: frozenset[str]
    parent: ZygoteNode
    bytes: int


class Failed(NamedTuple):
    """A plan whose Zygote failed; the search for the harmful package is to come. It is under way until then."""

    plan: selection.NewNode
    entry: UnderWay


class ImportLearner:
    """Grows a tree. `consider` and `observe` never wait; `aclose` ends what is under way and saves what was learned."""

    def __init__(
        self,
        config: ZygoteConfig,
        tree: ZygoteTree,
        learned: Path,
        provided: Callable[[str], Provided],
        *,
        open_files: int,
    ) -> None:
        """Args: learned: the file that it is kept in; provided: what an installed distribution offers, by key; open_files: the
        limit of functions that set none, which imports find."""
        self._config = config
        self._tree = tree
        self._learned = learned
        self.profile, self.refused, problem = load_learned(learned, max_modules=config.max_modules)
        if problem:
            _log.warning("%s", problem)
        self.hits = ImportHits()
        self._limits = selection.TreeLimits(max_nodes=config.max_nodes, max_depth=config.max_depth)
        self._costs: dict[str, selection.PackageCost] | None = None
        self._maker = ZygoteMaker(config, tree, self.profile, provided, open_files=open_files)
        self._sharing = Sharing(provided, lambda: self.refused.keys)
        self._wants_standard_library: set[Lineage] = set()
        self._waiting: dict[tuple[frozenset[str], Lineage], ImportView] = {}
        self._failed: deque[Failed] = deque()
        self._searching = 0
        self._under_way: list[UnderWay] = []
        self._stale: dict[ZygoteNode, None] = {}
        self._wake = asyncio.Event()
        self._random = random.Random()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._grow(), name="learner") for _ in range(config.learners)]

    def consider(self, view: ImportView) -> None:
        """A function with these packages was started: perhaps a better Zygote is worth making."""
        closure, lineage = view.closure, view.lineage
        self._tree.demand[lineage].hit(closure, time.monotonic())
        if view.uses_standard_library and self._config.enabled and self._lacks_standard_library(lineage):
            self._wants_standard_library.add(lineage)
            self._wake.set()
        nodes = self._tree.nodes_of(lineage)
        if not closure or not self._config.enabled or any(node.packages == closure for node in nodes):
            return
        if (closure, lineage) in self._waiting or len(self._waiting) < MAX_WAITING:
            self._waiting[closure, lineage] = view
            self._wake.set()

    def observe(
        self,
        function: str,
        view: ImportView,
        node: ZygoteNode,
        imports: Iterable[tuple[str, str, float]],
        *,
        passed_over: bool = False,
    ) -> None:
        """What a function imported, after it was forked from `node`; and whether a larger node was passed over."""
        seen = [Seen(*entry) for entry in imports]
        self.hits.count(view.closure, node.packages, len(seen), passed_over=passed_over)
        self.profile.observe(function, view.closure, seen, inherited=node.packages)
        self._costs = None
        if seen:
            self.consider(view)
        node.late_seconds += sum(entry.seconds for entry in seen if entry.key in node.packages)
        if self._config.enabled and eviction.worth_refreshing(node.late_seconds, node.import_seconds):
            self._stale[node] = None
            self._wake.set()

    def forgive(self, name: str | None) -> list[str]:
        """Forget the failures of all versions of a distribution, or of all distributions; the keys that were refused."""
        forgiven = [key for key in self.refused.keys if name is None or name in (key, name_of(key))]
        for key in forgiven:
            self.refused.forgive(key)
            self.profile.forgive(key)
        self._sharing.forget()
        self.save()
        return sorted(forgiven)

    def differs(self, node: ZygoteNode, closure: frozenset[str]) -> None:
        """A Zygote does not serve functions with this closure: perhaps one of their own is worth making. If it was theirs alone,
        it is of no use; what its parent had imported first may be why."""
        if node.packages == closure and node.shared.before:
            self._sharing.refuse(node.shared.before, closure)
            if node in self._tree.nodes:
                self._tree.remove(node)
        else:
            self._sharing.refuse(node.packages, closure)

    def forget(self, key: str) -> None:
        """A distribution was removed from the install cache: forget it, and every Zygote that holds it."""
        self.profile.forget(key)
        self.refused.forgive(key)
        self._sharing.forget()
        self._costs = None
        for node in [node for node in self._tree.nodes if key in node.packages]:
            self._tree.remove(node)

    @property
    def is_learning(self) -> bool:
        """Whether a Zygote is being made, or is still to be considered."""
        return self._wake.is_set()

    async def aclose(self) -> None:
        """Stop growing and save what was learned."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self.save()

    def save(self) -> None:
        """Publish what was learned for the next daemon."""
        try:
            save_learned(self._learned, self.profile, self.refused)
        except OSError as error:
            _log.warning("what was learned cannot be saved: %s", error.strerror)

    # -- the learners

    async def _grow(self) -> None:
        while True:
            await self._wake.wait()
            while self._wants_standard_library or self._waiting or self._stale or self._may_search():
                try:
                    if self._wants_standard_library:
                        await self._make_standard_library(self._wants_standard_library.pop())
                    elif self._waiting:
                        await self._grow_for(self._waiting.pop(next(iter(self._waiting))))
                    elif self._stale:
                        node = next(iter(self._stale))
                        del self._stale[node]
                        await self._refresh(node)
                    else:
                        await self._search(self._failed.popleft())
                except Exception:
                    _log.exception("a Zygote could not be made")
            self._wake.clear()

    def _lacks_standard_library(self, lineage: Lineage) -> bool:
        key = standard_library.KEY
        return (
            self._tree.standard_library_of(lineage) is None
            and key not in self.refused.keys
            and not any(key in entry.packages for entry in self._under_way_for(lineage))
        )

    async def _make_standard_library(self, lineage: Lineage) -> None:
        """The Zygote of functions that import the standard library and no package that a Zygote has."""
        try:
            root = self._tree.root_of(lineage)
        except ZygoteGone:
            return  # wanted again at the next start
        packages = frozenset((standard_library.KEY,))
        plan = selection.NewNode(root.id, packages, packages, 0.0, 0.0, 0.0, STANDARD_LIBRARY_BYTES)
        if not self._make_room(plan, is_worth_it=True):
            return
        entry = self._begin(root, plan)
        try:
            self._tree.add(await self._maker.make_standard_library(entry.parent, plan))
        except (SockdError, OSError, TimeoutError) as error:
            self._refuse(root, plan, standard_library.KEY, said(error), error)
        finally:
            self._under_way.remove(entry)

    def _may_search(self) -> bool:
        """Whether a plan failed, and a learner is left for the others."""
        return bool(self._failed) and self._searching < max(self._config.learners - 1, 1)

    async def _grow_for(self, view: ImportView) -> None:
        plan = self._plan(view.closure, view.lineage)
        if plan is None or not self.profile.modules_for(plan.packages) or self._sharing.refusal(plan.packages, view):
            return
        parent = next(node for node in self._tree.nodes if node.id == plan.parent_id)
        if not self._make_room(plan):
            return
        entry = self._begin(parent, plan)
        try:
            await self._make(parent, plan)
        except NoCapacity as error:
            _log.warning("a Zygote for %s cannot be made: %s", sorted(plan.packages), error)
        except (SandboxFailed, OSError, TimeoutError) as error:
            _log.warning("a Zygote for %s failed: %s; looking for the package", sorted(plan.packages), said(error))
            self._failed.append(Failed(plan, entry))
            return
        finally:
            if not self._failed or self._failed[-1].entry is not entry:
                self._under_way.remove(entry)
        self.save()

    def _under_way_for(self, lineage: Lineage) -> list[UnderWay]:
        return [entry for entry in self._under_way if entry.parent.lineage == lineage]

    def _begin(self, parent: ZygoteNode, plan: selection.NewNode) -> UnderWay:
        """Until the entry is removed, no other learner makes this Zygote, evicts its parent or takes its memory."""
        entry = UnderWay(f"under way: {id(plan)}", plan.packages, parent, plan.bytes)
        self._under_way.append(entry)
        return entry

    async def _make(self, parent: ZygoteNode, plan: selection.NewNode) -> None:
        """A node of the tree. Raises: as `_made`."""
        self._tree.add(await self._made(parent, plan))
        for key in plan.added:
            self.refused.forgive(key)  # a later failure is a first one again

    async def _made(self, parent: ZygoteNode, plan: selection.NewNode) -> ZygoteNode:
        """A node that may serve. Raises: as `ZygoteMaker.make`."""
        node = await self._maker.make(parent, plan)
        self._sharing.learn(node.shared)
        return node

    async def _search(self, failed: Failed) -> None:
        """Find the distribution that failed, unless the parent is gone or a search has found one already."""
        self._searching += 1
        try:
            if failed.entry.parent in self._tree.nodes and not failed.plan.added & self.refused.keys:
                await self._blame(failed.entry.parent, failed.plan)
        finally:
            self._under_way.remove(failed.entry)
            self._searching -= 1
            self.save()

    async def _refresh(self, node: ZygoteNode) -> None:
        """Make a node anew with what its users were seen importing since; the old one serves until then, or stays."""
        node.late_seconds = 0.0
        parent = node.parent
        missing = set(self.profile.modules_for(node.packages)) - node.modules
        if parent is None or node not in self._tree.nodes or not missing:
            return
        added = node.packages - parent.packages
        rate = node.rate.at(time.monotonic())
        plan = selection.NewNode(
            parent.id, node.packages, added, node.seconds_saved, rate, benefit=0.0, bytes=node.unique_bytes
        )
        entry = self._begin(node, plan)  # the node itself must not be evicted meanwhile
        try:
            new = await self._made(parent, plan)
            if node in self._tree.nodes:
                self._tree.replace(node, new)
            else:
                self._tree.add(new)
        except (SockdError, OSError, TimeoutError) as error:
            _log.warning("%s stays as it is, without %s: %s", node.id, ", ".join(sorted(missing)), said(error))
            if passed_deadline(error) or isinstance(error, NoCapacity):
                # A busy host may be the cause: tried again when users have spent on it what the deadline allows.
                node.late_seconds = -self._config.import_deadline_s
            elif node in self._tree.nodes:
                self.profile.failed(node.packages, missing)
        finally:
            self._under_way.remove(entry)
        self.save()

    def _plan(self, closure: frozenset[str], lineage: Lineage) -> selection.NewNode | None:
        serving = self._tree.nodes_of(lineage)
        depths = {node.id: node.depth for node in serving if node.zygote.may_spawn}
        nodes: list[selection.NodeView] = [*serving, *self._under_way_for(lineage)]
        costs, refused = self._package_costs(), self.refused.keys
        if self._config.policy == "sock":
            return selection.sock_next_node(
                nodes,
                closure,
                costs=costs,
                refused=refused,
                depths=depths,
                limits=self._limits,
                rng=self._random,
                sharing=self._sharing,
            )
        demands = self._tree.demand[lineage].top(TOP_DEMANDS, time.monotonic())
        return selection.next_node(
            nodes,
            closure,
            demands,
            costs=costs,
            refused=refused,
            depths=depths,
            limits=self._limits,
            sharing=self._sharing,
        )

    def _package_costs(self) -> dict[str, selection.PackageCost]:
        if self._costs is None:
            seconds = self.profile.seconds_by_key()
            self._costs = {
                key: selection.PackageCost(spent, min(int(spent * BYTES_PER_IMPORT_SECOND), MOST_GUESSED_BYTES))
                for key, spent in seconds.items()
            }
        return self._costs

    def _reserved_bytes(self) -> int:
        """Memory of the Zygotes that are being made; a plan that failed has none until its search begins."""
        failed = {failure.entry.id for failure in self._failed}
        return sum(entry.bytes for entry in self._under_way if entry.id not in failed)

    def _make_room(self, plan: selection.NewNode, *, is_worth_it: bool = False) -> bool:
        """Evict for a planned node; False when it is not worth that, or there is none to evict."""
        now_s = time.monotonic()
        nodes = {node.id: node for node in self._tree.nodes}
        family = Counter(node.lineage for node in nodes.values())
        stats = [node.stats(now_s, is_alone=family[node.lineage] == 1) for node in nodes.values()]
        free = (self._config.memory_mb << 20) - sum(node.unique_bytes for node in nodes.values())
        free -= self._reserved_bytes()
        if (
            self._config.policy == "measured"
            and not is_worth_it
            and not eviction.worth_making(plan, stats, free, self._limits)
        ):
            return False
        need = eviction.room_needed(plan, len(stats), free, self._limits)
        parents = {plan.parent_id, *(entry.parent.id for entry in self._under_way)}
        others = [node for node in stats if node.id not in parents and standard_library.KEY not in node.packages]
        victims = [nodes[victim] for victim in POLICIES[self._config.policy](others, need, now_s)]
        if sum(victim.unique_bytes for victim in victims) < need:
            return False
        for victim in victims:
            self._tree.remove(victim)
        return True

    async def _blame(self, parent: ZygoteNode, plan: selection.NewNode) -> None:
        """Find the distribution that a Zygote cannot hold, by importing one after the other, each with its canary."""
        zygote: Zygote | None = None
        culprit = ""
        try:
            zygote = await self._tree.spawn(parent)
            for culprit in self._suspects(plan):
                await self._maker.try_one(zygote, parent, plan, culprit)
        except NoCapacity as reason:
            _log.warning("no memory to find it: %s", reason)
        except (SockdError, OSError, TimeoutError) as reason:
            if culprit:
                self._refuse(parent, plan, culprit, said(reason), reason)
        else:
            await self._try_again(parent, plan)
        finally:
            if zygote is not None:
                zygote.close()

    async def _try_again(self, parent: ZygoteNode, plan: selection.NewNode) -> None:
        """Alone each is harmless. If they are together, too, it was our failure and not theirs."""
        try:
            await self._make(parent, plan)
        except NoCapacity as reason:
            _log.warning("no memory to try again: %s", reason)
        except (SandboxFailed, OSError, TimeoutError) as reason:
            for key in plan.added:
                self._refuse(parent, plan, key, f"only together with others: {said(reason)}", reason)

    def _refuse(self, parent: ZygoteNode, plan: selection.NewNode, key: str, cause: str, error: Exception) -> None:
        if parent not in self._tree.nodes:
            # It has ended, perhaps because its image was lost: that is no package's fault.
            _log.warning("a Zygote for %s was not made: %s", sorted(plan.packages), cause)
            return
        node = ", ".join(sorted(map(name_of, plan.packages)))
        refusal = self.refused.refuse(
            key, cause, module=getattr(error, "module", ""), node=node, by_deadline=passed_deadline(error)
        )
        seconds = refusal.retry_s - refusal.time_s
        _log.warning("%s is not imported ahead for %.0f s: %s (Zygote of %s)", key, seconds, refusal.reason, node)

    def _suspects(self, plan: selection.NewNode) -> list[str]:
        """The new distributions, those with the shortest imports first: dependencies before what depends on them."""
        costs = self._package_costs()
        return sorted(plan.added, key=lambda key: (costs[key].seconds if key in costs else 0.0, key))


def passed_deadline(error: Exception) -> bool:
    """Whether time ran out, which a busy host may cause."""
    return isinstance(error, TimeoutError | ZygoteLate)


def said(error: Exception) -> str:
    """An error in words."""
    return str(error) or "a fork of it did not answer in time"
