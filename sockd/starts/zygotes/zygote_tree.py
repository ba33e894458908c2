"""The import cache: a tree of Zygotes, from which every sandbox is forked (SOCK 4.3).

`best` chooses the node that serves a function. `ImportLearner` creates better nodes in the background, so that no request waits
for an import in a Zygote. A node that fails is removed and the next best serves; the root is exec'd again. Knows nothing of
functions: it gets closures and returns nodes.

Owns the nodes (`ZygoteNodes`), and what makes and keeps them: `lineages` the roots and child Zygotes, `children` their sandboxes,
`spares` the sandboxes that wait for requests.
"""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict
from collections.abc import Mapping

from sockd.base.config import ZygoteConfig
from sockd.isolation.farm.control import ZygoteGone
from sockd.isolation.farm.farm import Farm
from sockd.isolation.farm.walled_networks import Wall
from sockd.isolation.roots.program import HOST_LINEAGE, OWN, Limits, Lineage, Network
from sockd.isolation.sandbox.foreign_farms import ForeignFarms
from sockd.isolation.sandbox.parts import Parts
from sockd.linux.processes import pidfds
from sockd.starts.zygotes.children import Children
from sockd.starts.zygotes.lineages import Lineages
from sockd.starts.zygotes.node_spares import NodeSpares
from sockd.starts.zygotes.rate import RATE_TAU_S, DemandMeter
from sockd.starts.zygotes.selection import best_node
from sockd.starts.zygotes.top_levels.soundness import ImportView
from sockd.starts.zygotes.zygote_node import Verifies, ZygoteNode
from sockd.starts.zygotes.zygote_nodes import ZygoteNodes

FARM_BYTES = 3 << 20
"""Memory of a farm's launcher and init."""


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
        self._nodes = nodes = ZygoteNodes()
        self._random = random.Random()
        self.demand: defaultdict[Lineage, DemandMeter] = defaultdict(lambda: DemandMeter(RATE_TAU_S))
        """The demand of the functions of each lineage."""
        self._verifier: Verifies | None = None
        self.lineages = Lineages(config, parts, farm, walls, foreign, nodes, base_uid=base_uid)
        self.children = Children(parts, foreign, nodes, self.lineages, spare_limits=spare_limits)
        self.spares = NodeSpares(config, parts.budget, nodes, self.children)
        self.lineages.made.append(self.spares.refill)

    @property
    def nodes(self) -> list[ZygoteNode]:
        """The roots first, the host's before the others."""
        return self._nodes.all

    def verify_with(self, verifier: Verifies) -> None:
        """Have nodes that are added from now on serve only what `verifier` has found to be alike."""
        self._verifier = verifier

    @property
    def most_levels(self) -> int:
        """How deep it may become, with the root."""
        return self._config.max_depth + 1

    async def open(self) -> None:
        """Exec the root Zygote. Raises: SandboxFailed."""
        await self.lineages.open()

    @property
    def root(self) -> ZygoteNode:
        """The root of functions with the worker's interpreter and the host's network. Raises: as `root_of`."""
        return self._nodes.root_of(HOST_LINEAGE)

    def root_of(self, lineage: Lineage) -> ZygoteNode:
        """Return the root of a lineage. Raises: ZygoteGone while it is being made."""
        return self._nodes.root_of(lineage)

    def nodes_of(self, lineage: Lineage) -> list[ZygoteNode]:
        """Return the nodes that serve functions of this lineage."""
        return self._nodes.of(lineage)

    def best(self, view: ImportView) -> ZygoteNode:
        """The node that serves a function with this view now. Raises: ZygoteGone."""
        best = self._nodes.root_of(view.lineage)  # without it, none qualifies
        if not self._config.enabled or view.top is None or not view.top.wanted:
            return best
        nodes = self._nodes.of(view.lineage)
        return best_node(
            nodes, view.top.wanted, self._random, lambda node: node.zygote.uids.has_uid and not node.refusal(view)
        )

    def passed_over(self, view: ImportView) -> list[tuple[ZygoteNode, str]]:
        """Nodes with more imports of this function than the one that serves it, which must not; and why. The largest first."""
        if view.top is None or view.lineage not in self._nodes.roots:
            return []
        fewest = len(self.best(view).imports)
        larger = [
            node
            for node in self._nodes.of(view.lineage)
            if len(node.imports) > fewest and node.imports <= view.top.asked_for
        ]
        larger.sort(key=lambda node: -len(node.imports))
        return [(node, reason) for node in larger if (reason := node.refusal(view))]

    def best_now(self, view: ImportView) -> ZygoteNode | None:
        """As `best`; None: there is no root of its lineage."""
        return self.best(view) if view.lineage in self._nodes.roots else None

    async def living_best(self, view: ImportView) -> ZygoteNode:
        """As `best`, once there is a root. Raises: ZygoteGone; SockdError: why there can be none."""
        await self.lineages.living_root(view.lineage)
        return self.best(view)

    def add(self, node: ZygoteNode) -> None:
        """A provisioned node serves from now on. Its parent may have been replaced or evicted while it imported.

        Raises: ZygoteGone: its image was lost meanwhile; then it is closed."""
        if not self.lineages.may_serve(node.zygote):
            node.close()
            raise ZygoteGone("the image of its interpreter was lost")
        if node.parent not in self._nodes.all:
            above = [other for other in self._nodes.of(node.lineage) if other.imports < node.imports]
            node.parent = max(above, key=lambda other: len(other.imports), default=None)
        node.verifier = self._verifier
        self._nodes.all.append(node)
        self.lineages.end_if_unused(node.lineage)  # its last function has gone while the node imported

    def remove(self, node: ZygoteNode) -> None:
        """Evict a node: its sandboxes and child Zygotes live on; the children hang below its parent from now on."""
        self._nodes.remove(node)

    def adjust(self) -> None:
        """End what no function needs, keep as many spares as recent use asks for, and measure new roots (called now and then)."""
        self.lineages.end_unused()
        self.spares.adjust()
        self._measure_roots()

    def _measure_roots(self) -> None:
        """Note the memory of new root Zygotes, some 10 MB; the other nodes are measured before they serve."""
        for root in self._nodes.roots.values():
            cgroup = root.zygote.cgroup
            if root.unique_bytes or cgroup is None:
                continue
            with contextlib.suppress(OSError):  # it has just ended
                for number in cgroup.pids()[:1]:
                    root.unique_bytes, root.shared_bytes = pidfds.memory_of(number)
                    root.unique_bytes += FARM_BYTES if root.lineage.interpreter != OWN else 0

    def close(self) -> None:
        """End all Zygotes and spares."""
        self.lineages.close()
        self.spares.close()
        self._nodes.close()
