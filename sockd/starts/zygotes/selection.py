"""POLICY: which Zygote serves a function, and which new Zygote is worth its cost. Pure; owns nothing, starts
nothing.

What is chosen are sets of *imports*: opaque names of what a Zygote imports ahead (`top_level.import_id`). SOCK's are packages.

`best_node` is SOCK's rule (USENIX ATC'18, section 4.2-4.3): of the Zygotes whose packages are a subset of what the
function asked for, the one with the most of them, ties broken at random. A superset is never used: it would run code
that the function did not request. The root Zygote has no packages, so there is always a result.

SOCK then replicates a new Zygote for every request that found no exact match. `next_node` replaces that with what is
measured. Its candidates are the function's own packages and the parts that it shares with other functions in demand
(shared prefixes; simulated, they take 6-9 % off the mean latency). Each is worth the seconds of importing that
it would save per second, over all functions it may serve, less what the Zygotes of today already save; the best value
per byte wins, and only if it also pays for its own making and for whatever must be evicted for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from random import Random
from typing import NamedTuple, Protocol, TypeVar

NODE_OVERHEAD_BYTES = 3 << 20
"""What a Zygote costs before it imports anything: the pages of its parent that it dirties, and page tables."""


class NodeView(Protocol):
    """What selection needs to know of a Zygote."""

    @property
    def id(self) -> str:
        """Its name in the tree."""

    @property
    def imports(self) -> frozenset[str]:
        """What it has imported, with what its ancestors have."""


N = TypeVar("N", bound=NodeView)


class SharingView(Protocol):
    """What selection needs to know of which imports may be imported for which functions (`sharing.Sharing`)."""

    def serves(self, imports: frozenset[str], closure: frozenset[str]) -> bool:
        """Whether a Zygote of these imports may serve functions with this closure."""

    def closed(self, wanted: frozenset[str], ours: frozenset[str], theirs: frozenset[str]) -> frozenset[str]:
        """Return the wanted imports that import alike in both closures, with all that they require."""


class SharedBySubset:
    """SOCK's rule alone: what nothing is known of imports alike everywhere."""

    def serves(self, imports: frozenset[str], closure: frozenset[str]) -> bool:
        return imports <= closure

    def closed(self, wanted: frozenset[str], ours: frozenset[str], theirs: frozenset[str]) -> frozenset[str]:
        return wanted & ours & theirs


BY_SUBSET = SharedBySubset()


class PackageCost(NamedTuple):
    """What importing one distribution was measured to cost, its dependencies not included."""

    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Demand:
    """One set of imports that functions ask for, and how often a sandbox is started for it."""

    closure: frozenset[str]
    rate: float
    """Cold starts per second."""


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """Bounds on the tree and on what is worth a Zygote."""

    max_nodes: int = 64
    max_depth: int = 4
    min_saving_s: float = 0.003
    """A Zygote that saves a start less than this is not made (a fork alone takes 1-4 ms)."""
    horizon_s: float = 1200.0
    """A Zygote must save its own making within this time at the present rate. Twice the time constant of the rates
    (`rate.RATE_TAU_S`), so that while there is room one cold start is reason enough; without room, `min_gain`
    decides."""
    min_gain: float = 1.2
    """How many times the benefit of what it displaces it must be worth: hysteresis against churn."""


@dataclass(frozen=True, slots=True)
class NewNode:
    """A Zygote worth making: fork `parent_id`, import `added`."""

    parent_id: str
    imports: frozenset[str]
    added: frozenset[str]
    seconds_saved: float
    """Import time that the triggering function would be saved, against the Zygote that serves it now."""
    rate: float
    """Starts per second that it is expected to serve: the first value of its `recent_rate`."""
    benefit: float
    """Seconds of importing saved per second, over all demands."""
    bytes: int
    """Expected private memory."""


def best_node(
    nodes: Iterable[N], closure: frozenset[str], rng: Random, serves: Callable[[N], bool] = lambda node: True
) -> N:
    """POLICY (SOCK 4.3): the node with the most imports among those with none that `closure` lacks.

    Args:
        nodes: ready Zygotes, the root (no imports) among them.
        closure: distribution keys that the function asked for.
        rng: breaks ties.
        serves: whether a node with imports may serve the function (`soundness`).
    Raises: ValueError when no node qualifies, which without a root Zygote is a bug."""
    most, best = -1, []
    for node in nodes:
        imports = node.imports
        count = len(imports)
        if count >= most and imports <= closure and (not count or serves(node)):
            if count > most:
                most, best = count, [node]
            else:
                best.append(node)
    if not best:
        raise ValueError("no Zygote qualifies: the root Zygote is missing")
    return best[0] if len(best) == 1 else rng.choice(best)


def next_node(
    nodes: Sequence[NodeView],
    closure: frozenset[str],
    demands: Sequence[Demand],
    *,
    costs: Mapping[str, PackageCost],
    refused: Collection[str] = frozenset(),
    depths: Mapping[str, int],
    limits: TreeLimits,
    sharing: SharingView = BY_SUBSET,
) -> NewNode | None:
    """POLICY: the Zygote most worth making when `closure` was served by less than an exact match, or None.

    Args:
        nodes: every Zygote, also those under way (so that none is made twice).
        closure: what the function asked for.
        demands: the sets most in demand, this one among them; a few dozen are enough.
        costs: per distribution that a function was seen importing; one that is absent was never imported and is left
            out.
        refused: distributions recorded as not cacheable.
        depths: depth of each node that can be forked now, by id; the root has 0. One that is absent is no parent.
        limits: bounds; making room within `max_nodes` and the memory is `eviction.worth_making`'s and the evictor's
            part.
        sharing: which imports may be imported for which functions.
    Cost: some 1 ms for 64 nodes and 64 demands, so it belongs off the critical path."""
    wanted = sharing.closed(_cacheable(closure, costs, refused), closure, closure)
    if not sharing.serves(wanted, closure):  # it was tried: some import sees what was not wanted
        wanted = sharing.closed(closure - frozenset(refused), closure, closure)
    served = _served(nodes, wanted, closure, demands, costs, sharing)
    saved_now = _saved_now(nodes, closure, costs, sharing)[1]
    existing = {node.imports for node in nodes}
    best: NewNode | None = None
    for imports in ({wanted} | {demand.shared for demand in served}) - existing - {frozenset()}:
        if not sharing.serves(imports, closure):
            continue
        plan = _plan(nodes, imports, saved_now, served, costs, depths, limits, sharing)
        if plan and (best is None or _rank(plan) > _rank(best)):
            best = plan
    return best


def sock_next_node(
    nodes: Sequence[NodeView],
    closure: frozenset[str],
    *,
    costs: Mapping[str, PackageCost],
    refused: Collection[str] = frozenset(),
    depths: Mapping[str, int],
    limits: TreeLimits,
    rng: Random,
    sharing: SharingView = BY_SUBSET,
) -> NewNode | None:
    """POLICY (SOCK 4.2): a Zygote for exactly what was asked, replicated from the best match, whatever it would save.

    Args: as `next_node`; `rng` breaks ties between parents. None when an exact one exists or the bounds forbid it."""
    imports = sharing.closed(_cacheable(closure, costs, refused), closure, closure)
    if not imports or any(node.imports == imports for node in nodes) or not sharing.serves(imports, closure):
        return None
    parents = [
        node
        for node in nodes
        if depths.get(node.id, limits.max_depth) < limits.max_depth and sharing.serves(node.imports, imports)
    ]
    if not parents:
        return None
    parent = best_node(parents, imports, rng)
    return new_node(parent, imports, costs)


def new_node(
    parent: NodeView, imports: frozenset[str], costs: Mapping[str, PackageCost], *, rate: float = 0.0
) -> NewNode:
    """A Zygote that is to be made whatever it would save. Args: rate: starts per second that it is expected to serve."""
    added = imports - parent.imports
    saved = _seconds(added, costs)
    size = NODE_OVERHEAD_BYTES + sum(costs[key].bytes for key in added if key in costs)
    return NewNode(parent.id, imports, added, saved, rate, rate * saved, size)


def _rank(plan: NewNode) -> tuple[float, int, list[str]]:
    """Value per byte; ties by the smaller set, then by name, so that the answer does not depend on hash order."""
    return plan.benefit / plan.bytes, -len(plan.imports), sorted(plan.imports)


def _cacheable(closure: frozenset[str], costs: Mapping[str, PackageCost], refused: Collection[str]) -> frozenset[str]:
    return frozenset(key for key in closure if key in costs and key not in refused)


def _seconds(keys: Iterable[str], costs: Mapping[str, PackageCost]) -> float:
    # fsum, as a sum in hash order would differ in its last bit from run to run, and ties with it.
    return fsum(costs[key].seconds for key in keys if key in costs)


def _saved_now(
    nodes: Sequence[NodeView], closure: frozenset[str], costs: Mapping[str, PackageCost], sharing: SharingView
) -> tuple[int, float]:
    """Packages and seconds that the present tree saves a start of `closure`; its node is chosen as `best_node`
    would."""
    most: frozenset[str] = frozenset()
    for node in nodes:
        if len(node.imports) > len(most) and node.imports <= closure and sharing.serves(node.imports, closure):
            most = node.imports
    return len(most), _seconds(most, costs)


@dataclass(frozen=True, slots=True)
class _Served:
    """What a demand has in common with the set that a Zygote is wanted for, and what the present tree does for it."""

    closure: frozenset[str]
    shared: frozenset[str]
    rate: float
    imports_now: int
    seconds_now: float


def _served(
    nodes: Sequence[NodeView],
    wanted: frozenset[str],
    closure: frozenset[str],
    demands: Sequence[Demand],
    costs: Mapping[str, PackageCost],
    sharing: SharingView,
) -> list[_Served]:
    served = []
    for demand in demands:
        if not wanted & demand.closure or demand.rate <= 0:
            continue
        shared = sharing.closed(wanted, closure, demand.closure)
        if shared:
            now = _saved_now(nodes, demand.closure, costs, sharing)
            served.append(_Served(demand.closure, shared, demand.rate, *now))
    return served


def _plan(
    nodes: Sequence[NodeView],
    imports: frozenset[str],
    saved_now: float,
    served: Sequence[_Served],
    costs: Mapping[str, PackageCost],
    depths: Mapping[str, int],
    limits: TreeLimits,
    sharing: SharingView,
) -> NewNode | None:
    """What a Zygote of `imports` would bring; None when it is not worth making."""
    seconds, count = _seconds(imports, costs), len(imports)
    if seconds - saved_now < limits.min_saving_s:
        return None
    # Selection counts imports, not seconds: a demand moves to the new node only if that one has more of them.
    movers = [
        demand
        for demand in served
        if count > demand.imports_now and imports <= demand.shared and sharing.serves(imports, demand.closure)
    ]
    benefit = sum(demand.rate * (seconds - demand.seconds_now) for demand in movers)
    parents = [
        node
        for node in nodes
        if node.imports <= imports
        and depths.get(node.id, limits.max_depth) < limits.max_depth
        and sharing.serves(node.imports, imports)
    ]
    if not parents:
        return None
    parent = max(parents, key=lambda node: (_seconds(node.imports, costs), len(node.imports), node.id))
    added = imports - parent.imports
    if benefit * limits.horizon_s < _seconds(added, costs):
        return None
    size = NODE_OVERHEAD_BYTES + sum(costs[key].bytes for key in added if key in costs)
    rate = sum(demand.rate for demand in movers)
    return NewNode(parent.id, imports, added, seconds - saved_now, rate, benefit, size)
