"""Which Zygote is worth making next for a version, and whether there is room for it, with those that are being made.

Owns the list of what is under way. The policies are `sockd.starts.zygotes.selection` and `sockd.starts.zygotes.eviction`."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass

from sockd.base.config import ZygoteConfig
from sockd.starts.zygotes import eviction, selection
from sockd.starts.zygotes.top_levels.recordings import Recordings
from sockd.starts.zygotes.top_levels.sharing import Sharing
from sockd.starts.zygotes.top_levels.soundness import ImportView, difference
from sockd.starts.zygotes.top_levels.top_level import name_of_import
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.starts.zygotes.zygote_tree import ZygoteTree

TOP_DEMANDS = 128
NO_SAVING = "none would save enough at the rate of its cold starts"
NO_UIDS = "its parent has no uids for another child: sandboxes of Zygotes that have ended still use them, too"
POLICIES = {"measured": eviction.measured_benefit, "sock": eviction.sock_heuristic}


@dataclass(eq=False, slots=True)
class UnderWay:
    """A Zygote that a learner is making, as the policies see it: no parent yet, and not made twice."""

    id: str
    imports: frozenset[str]
    parent: ZygoteNode
    bytes: int
    has_memory: bool = True
    """Whether it may use its memory now: a plan that failed has none until the search for the reason begins."""


class ZygotePlanner:
    """`plan`, then `make_room`, then `begin`, until `end`."""

    def __init__(self, config: ZygoteConfig, tree: ZygoteTree, recordings: Recordings, sharing: Sharing) -> None:
        self._config = config
        self._tree = tree
        self._recordings = recordings
        self._sharing = sharing
        self.limits = selection.TreeLimits(max_nodes=config.max_nodes, max_depth=config.max_depth)
        self.under_way: list[UnderWay] = []
        self._costs: dict[str, selection.PackageCost] | None = None
        self._random = random.Random()

    def plan(self, view: ImportView) -> selection.NewNode | None:
        """Select the Zygote that is worth making for a version. None: none is (`why_none`)."""
        if view.top is None:
            return None
        wanted, lineage = view.top.wanted, view.lineage
        depths = {node.id: node.depth for node in self._parents(view) if node.zygote.uids.has_child}
        under_way = [entry for entry in self.under_way if entry.parent.lineage == lineage]
        nodes: list[selection.NodeView] = [*self._tree.nodes_of(lineage), *under_way]
        costs, failed = self.costs(), frozenset(self._recordings.failed)
        if self._config.policy == "sock":
            return selection.sock_next_node(
                nodes,
                wanted,
                costs=costs,
                refused=failed,
                depths=depths,
                limits=self.limits,
                rng=self._random,
                sharing=self._sharing,
            )
        demands = self._tree.demand[lineage].top(TOP_DEMANDS, time.monotonic(), wanted)
        return selection.next_node(
            nodes,
            wanted,
            demands,
            costs=costs,
            refused=failed,
            depths=depths,
            limits=self.limits,
            sharing=self._sharing,
        )

    def why_none(self, view: ImportView) -> str:
        """Say why the policy wants no Zygote for a version: what has failed is left out, and the rest must be worth it."""
        wanted, costs = view.top.wanted if view.top is not None else frozenset[str](), self.costs()
        for import_ in sorted(wanted & self._recordings.failed.keys()):
            return f"{name_of_import(import_)} fails in a Zygote: {self._recordings.failed[import_]}"
        spent_s, least_s = sum(costs[each].seconds for each in wanted & costs.keys()), self.limits.min_saving_s
        if spent_s < least_s:
            change = view.top.change if view.top is not None else ""
            what = "the imports that may be shared" if change else "its imports"
            least = f"{what} take {spent_s * 1e3:.1f} ms, and a Zygote must save {least_s * 1e3:.0f} ms"
            return f"{least}: {change}" if change else least
        parents = self._parents(view)
        if not parents:
            return "no Zygote that there is may be its parent"
        return NO_SAVING if any(node.zygote.uids.has_child for node in parents) else NO_UIDS

    def _parents(self, view: ImportView) -> list[ZygoteNode]:
        """The Zygotes that one for this version may be forked from, if they have uids for it. What a parent saw is not asked for
        again with what its child has on sys.path: it must be fit to serve the function."""
        return [node for node in self._tree.nodes_of(view.lineage) if not difference(node.shared, view)]

    def costs(self) -> dict[str, selection.PackageCost]:
        """What each recorded import costs."""
        if self._costs is None:
            size = self._recordings.memory_bytes()
            self._costs = {
                import_: selection.PackageCost(spent, int(size[import_]))
                for import_, spent in self._recordings.seconds().items()
            }
        return self._costs

    def forget_costs(self) -> None:
        """Compute the costs anew: a recording was added or removed."""
        self._costs = None

    def make_room(self, plan: selection.NewNode) -> bool:
        """Evict for a planned node; False when it is not worth that, or there is none to evict."""
        now_s = time.monotonic()
        nodes = {node.id: node for node in self._tree.nodes}
        family = Counter(node.lineage for node in nodes.values())
        stats = [node.stats(now_s, is_alone=family[node.lineage] == 1) for node in nodes.values()]
        free = (self._config.memory_mb << 20) - sum(node.unique_bytes for node in nodes.values())
        free -= sum(entry.bytes for entry in self.under_way if entry.has_memory)
        if self._config.policy == "measured" and not eviction.worth_making(plan, stats, free, self.limits):
            return False
        need = eviction.room_needed(plan, len(stats), free, self.limits)
        parents = {plan.parent_id, *(entry.parent.id for entry in self.under_way)}
        others = [node for node in stats if node.id not in parents]
        victims = [nodes[victim] for victim in POLICIES[self._config.policy](others, need, now_s)]
        if sum(victim.unique_bytes for victim in victims) < need:
            return False
        for victim in victims:
            self._tree.remove(victim)
        return True

    def begin(self, parent: ZygoteNode, plan: selection.NewNode) -> UnderWay:
        """Note that a Zygote is being made: until `end`, no other learner makes it, evicts its parent or takes its memory."""
        entry = UnderWay(f"under way: {id(plan)}", plan.imports, parent, plan.bytes)
        self.under_way.append(entry)
        return entry

    def end(self, entry: UnderWay) -> None:
        """Note that a Zygote is not being made any more."""
        self.under_way.remove(entry)
