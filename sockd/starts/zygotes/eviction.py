"""POLICY: which Zygotes are evicted when the import cache exceeds its memory. Pure; owns nothing, kills nothing.

Three rules with one signature, `(nodes, need_bytes, now_s) -> ids`, the first victim first:

`sock_heuristic` is SOCK's (USENIX ATC'18, section 4.3). Its sources, from sure to unsure:

- The evictor that the authors released, as its code intends (OpenLambda, October 2017,
  `worker/import-cache/evictor.go`): when the cache's
  memory cgroup is over its limit, the Zygote with the smallest hits / size goes, among those without children; a hit
  counts for all ancestors too, size is what was added to the parent's packages, from a table. That is
  `released_heuristic`, but for its sizes, which are measured here.
- The paper, as we remember it (its text was not at hand when this was written): the choice rests on an estimated
  benefit-to-cost ratio of evicting each Zygote. What eviction costs grows with the packages that the next best Zygote
  lacks
  and with how often this one was used of late; what it gains is the memory that is this one's alone.
- Our interpretation where that leaves room: the estimate is the product, each package as good as another (no
  import was timed), uses are an exponentially decaying rate, memory is measured private memory, victims are taken in
  order and not at random, and a Zygote with children may go, as in our tree children survive it.

`measured_benefit` uses what sockd measures: seconds of importing saved per second and byte, that is rate x import time
saved against the node that would serve instead, over private memory. A victim's requests fall to that node, which is
thereby worth more; so the choice is repeated after each victim.

All spare the roots of the worker's own interpreter, Zygotes still being made, and pinned ones. The root of another interpreter
goes last of its lineage, with its farm; what it saves is the time that making it took. But for the released one, none asks for
children or handlers: those live on, and pages that they share are not in `unique_bytes`, so that a parent in use is cheap to
keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sockd.starts.zygotes.selection import NewNode, TreeLimits


@dataclass(frozen=True, slots=True)
class NodeStats:
    """One Zygote, as an evictor sees it."""

    id: str
    parent_id: str | None
    """None: the root."""
    imports: frozenset[str]
    unique_bytes: int
    """Private memory, measured: what the host gets back."""
    recent_rate: float
    """Sandboxes started from it per second, recently."""
    import_seconds_saved: float
    """Import time a start is saved, against the Zygote that would serve it if this one were gone."""
    last_used_s: float = 0.0
    created_s: float = 0.0
    leases: int = 0
    """Living children and handlers; they survive, so no rule here asks."""
    hits: int = 0
    """Starts from it and from its descendants, ever (the released SOCK counts these)."""
    pinned: bool = False
    provisioning: bool = False
    lineage: object = None
    """What serves instead of it is of the same."""
    revivable: bool = False
    """A root that is alone in its lineage, and is made anew when a function needs it."""

    @property
    def evictable(self) -> bool:
        """False for a root that must be there, for pinned nodes and for those still being made."""
        return (self.parent_id is not None or self.revivable) and not self.pinned and not self.provisioning


Evict = Callable[[Sequence[NodeStats], int, float], list[str]]
"""The signature of an eviction rule."""


def sock_heuristic(nodes: Sequence[NodeStats], need_bytes: int, now_s: float) -> list[str]:
    """POLICY: SOCK's benefit-to-cost ratio, lowest first: recent uses x packages that would be missing, per private
    byte.

    Args:
        nodes: every Zygote.
        need_bytes: memory to free.
        now_s: the clock of `last_used_s`; no rule here reads it, as rates carry the time.
    Returns: ids; fewer bytes than needed when nothing evictable is left."""
    alive = {node.id: node for node in nodes}
    instead = {node.id: fallback(node, nodes) for node in nodes if node.evictable}
    victims: list[str] = []
    while need_bytes > 0 and (candidates := [node for node in alive.values() if node.evictable]):
        victim = min(candidates, key=lambda node: (_sock_ratio(node, instead[node.id]), node.last_used_s, node.id))
        victims.append(victim.id)
        need_bytes -= victim.unique_bytes
        del alive[victim.id]
        for node_id, other in instead.items():
            if other is victim and node_id in alive:
                instead[node_id] = fallback(alive[node_id], alive.values())
    return victims


def released_heuristic(nodes: Sequence[NodeStats], need_bytes: int, now_s: float) -> list[str]:
    """POLICY: the evictor of the released SOCK: fewest hits per byte first, and only Zygotes without children.

    Args and returns: as `sock_heuristic`."""
    alive = list(nodes)
    victims: list[str] = []
    while need_bytes > 0:
        parents = {node.parent_id for node in alive}
        candidates = [node for node in alive if node.evictable and node.id not in parents]
        if not candidates:
            break
        victim = min(candidates, key=lambda node: (node.hits / max(node.unique_bytes, 1), node.last_used_s, node.id))
        victims.append(victim.id)
        need_bytes -= victim.unique_bytes
        alive.remove(victim)
    return victims


def measured_benefit(nodes: Sequence[NodeStats], need_bytes: int, now_s: float) -> list[str]:
    """POLICY: import seconds saved per second and private byte, lowest first.

    Args and returns: as `sock_heuristic`."""
    return [victim.id for victim in _least_beneficial(nodes, need_bytes)]


def worth_making(plan: NewNode, nodes: Sequence[NodeStats], free_bytes: int, limits: TreeLimits) -> bool:
    """POLICY: does a planned Zygote save more than what `measured_benefit` would evict for it?

    Args:
        plan: from `next_node`.
        nodes: every Zygote.
        free_bytes: memory of the import cache not in use.
        limits: `min_gain` and `max_nodes`."""
    need_bytes = room_needed(plan, len(nodes), free_bytes, limits)
    if need_bytes <= 0:
        return True
    # Its parent must live until it is forked, and is what its import time was reckoned against.
    others = [replace(node, pinned=True) if node.id == plan.parent_id else node for node in nodes]
    victims = _least_beneficial(others, need_bytes)
    if sum(victim.unique_bytes for victim in victims) < need_bytes:
        return False
    return plan.benefit > limits.min_gain * sum(_benefit(victim) for victim in victims)


def room_needed(plan: NewNode, node_count: int, free_bytes: int, limits: TreeLimits) -> int:
    """Bytes that must be evicted before `plan` may be made; at least one when the tree has all the nodes it may
    have."""
    return max(plan.bytes - free_bytes, 1 if node_count >= limits.max_nodes else 0)


def fallback(node: NodeStats, nodes: Iterable[NodeStats]) -> NodeStats | None:
    """The Zygote that would serve if `node` were gone: most packages among the other subsets; None for a root."""
    best: NodeStats | None = None
    for other in nodes:
        if other.id == node.id or other.provisioning or not other.imports <= node.imports:
            continue
        if other.lineage != node.lineage:
            continue
        if best is None or len(other.imports) > len(best.imports):
            best = other
    return best


def _sock_ratio(node: NodeStats, instead: NodeStats | None) -> float:
    missing = len(node.imports) - (len(instead.imports) if instead else 0)
    return node.recent_rate * missing / max(node.unique_bytes, 1)


def _benefit(node: NodeStats) -> float:
    return node.recent_rate * node.import_seconds_saved


def _least_beneficial(nodes: Sequence[NodeStats], need_bytes: int) -> list[NodeStats]:
    alive = {node.id: node for node in nodes}
    victims: list[NodeStats] = []
    while need_bytes > 0 and (candidates := [node for node in alive.values() if node.evictable]):
        victim = min(candidates, key=lambda node: _order(node))
        victims.append(victim)
        need_bytes -= victim.unique_bytes
        del alive[victim.id]
        _hand_over(victim, alive)
    return victims


def _order(node: NodeStats) -> tuple[float, float, str]:
    return _benefit(node) / max(node.unique_bytes, 1), node.last_used_s, node.id


def _hand_over(victim: NodeStats, alive: dict[str, NodeStats]) -> None:
    """Account for an eviction: the starts of the victim fall to its fallback, and nodes that fell back on the victim fall to
    that, too."""
    heir = fallback(victim, alive.values())
    if heir is not None:
        alive[heir.id] = replace(heir, recent_rate=heir.recent_rate + victim.recent_rate)
    for node in list(alive.values()):
        if victim.imports < node.imports and fallback(node, [*alive.values(), victim]) is victim:
            saved = node.import_seconds_saved + victim.import_seconds_saved
            alive[node.id] = replace(node, import_seconds_saved=saved)
