"""Plays a trace of requests against the real selection and eviction policies: `python -m sockd.caches.simulation`.

Pure: no process, no clock but the trace's. Only the machinery around the policies is simulated; its constants are
measured (research/limits.md section 9):

- a warm or paused handler answers in 0.2 ms; a fork takes 1.0 ms plus 0.05 ms per MB its Zygote imported;
- what the Zygote lacks is imported in the handler, at the trace's cost per package;
- a new Zygote is made off the critical path, two at a time at most, and serves when its imports are done;
- memory: what one Zygote imported is shared by all its descendants and freed with the last of them; each Zygote has
  3 MB of its own. A handler's own memory (2.5 MB and what it imported itself) counts against the handler cache,
  an LRU with a limit of its own. Pages that handlers keep of an evicted Zygote are not counted.

Every policy sees the same trace, limits and statistics. Runs are reproducible: ties are broken by a seeded generator.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

from sockd.caches.eviction import (
    Evict,
    NodeStats,
    measured_benefit,
    released_heuristic,
    room_needed,
    sock_heuristic,
    worth_making,
)
from sockd.caches.rate import DecayingRate, DemandMeter
from sockd.caches.selection import (
    NODE_OVERHEAD_BYTES,
    Demand,
    NewNode,
    PackageCost,
    TreeLimits,
    best_node,
    next_node,
    sock_next_node,
)

MB = 1 << 20
WARM_S = 0.0002
FORK_S = 0.0010
FORK_S_PER_BYTE = 0.00005 / MB
HANDLER_BYTES = 5 * MB // 2
CANARY_S = 0.02
"""Making a Zygote beyond its imports: fork, canary fork, accounting."""
MAKING_AT_ONCE = 2
RATE_TAU_S = 600.0
DEMANDS = 96
REFRESH_S = 5.0
"""How often the list of the sets most in demand is drawn up anew."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to run the import cache."""

    plan: str
    """Which Zygote to make: none | exact (SOCK) | own (measured, whole closures only) | shared (measured)."""
    evict: Evict


POLICIES: dict[str, Policy] = {
    "none": Policy("none", sock_heuristic),
    "released": Policy("exact", released_heuristic),
    "sock": Policy("exact", sock_heuristic),
    "sock, measured eviction": Policy("exact", measured_benefit),
    "measured, sock eviction": Policy("shared", sock_heuristic),
    "measured, no shared prefixes": Policy("own", measured_benefit),
    "measured": Policy("shared", measured_benefit),
}
"""By the name they have in the table; `sock` and `measured` are those of the configuration, the others take them apart."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace, parsed."""

    costs: dict[str, PackageCost]
    functions: list[frozenset[str]]
    times: list[float]
    calls: list[int]

    @classmethod
    def parse(cls, data: dict[str, Any]) -> Trace:
        """From the JSON that the benchmark writes: packages as [key, seconds, bytes], functions as package indices,
        times in s and calls as function indices. Raises: KeyError, ValueError, IndexError or TypeError when it is not that."""
        keys = [key for key, _, _ in data["packages"]]
        costs = {key: PackageCost(float(seconds), int(size)) for key, seconds, size in data["packages"]}
        functions = [frozenset(keys[index] for index in function) for function in data["functions"]]
        if len(data["times"]) != len(data["calls"]) or max(data["calls"], default=0) >= len(functions):
            raise ValueError("a trace has one time for each call, and calls only functions that it has")
        return cls(costs, functions, list(data["times"]), list(data["calls"]))


@dataclass(frozen=True, slots=True)
class Summary:
    """What one policy made of one trace; latencies in ms, memory in MB."""

    policy: str
    limit_mb: int
    requests: int
    warm: float
    """Shares of all requests: an idle handler served; of the cold ones below: where they came from."""
    exact: float
    partial: float
    root: float
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    cold_mean_ms: float
    cold_p50_ms: float
    cold_p99_ms: float
    mean_mb: float
    peak_mb: float
    zygotes_made: int
    making_s: float
    """CPU spent on importing in new Zygotes."""
    cdf_ms: list[float]
    """Latency at 0, 1, ... 100 % of all requests."""


@dataclass(slots=True, eq=False)
class _Node:
    id: str
    parent_id: str | None
    packages: frozenset[str]
    depth: int
    blocks: list[_Block]
    bytes: int
    created_s: float
    ready_s: float
    rate: DecayingRate
    last_used_s: float = 0.0
    hits: int = 0


@dataclass(slots=True, eq=False)
class _Block:
    """The pages of what one Zygote imported, shared by it and its descendants."""

    bytes: int
    holders: int = 0


@dataclass(slots=True)
class Simulation:
    """One policy, one trace, one limit."""

    trace: Trace
    policy_name: str
    limit_bytes: int
    handler_bytes: int
    limits: TreeLimits = field(default_factory=TreeLimits)
    seed: int = 1
    _policy: Policy = field(init=False)
    _rng: Random = field(init=False)
    _nodes: dict[str, _Node] = field(init=False)
    _making: list[_Node] = field(default_factory=list)
    _made: int = 0
    _making_s: float = 0.0
    _demand: DemandMeter = field(default_factory=lambda: DemandMeter(RATE_TAU_S))
    _demands: list[Demand] = field(default_factory=list)
    _demands_at_s: float = -REFRESH_S
    _handlers: OrderedDict[int, int] = field(default_factory=OrderedDict)
    _handler_use: int = 0
    _used: int = NODE_OVERHEAD_BYTES

    def __post_init__(self) -> None:
        self._policy = POLICIES[self.policy_name]
        self._rng = Random(self.seed)
        root = _Node("root", None, frozenset(), 0, [], 0, 0.0, 0.0, DecayingRate(RATE_TAU_S))
        self._nodes = {root.id: root}

    def run(self) -> Summary:
        """Plays the whole trace."""
        latencies: list[float] = []
        cold: list[float] = []
        origins = {"warm": 0, "exact": 0, "partial": 0, "root": 0}
        memory = 0.0
        peak = last = 0.0
        for now_s, call in zip(self.trace.times, self.trace.calls, strict=True):
            memory += self._used * (now_s - last)
            peak, last = max(peak, self._used), now_s
            origin, latency = self._request(call, now_s)
            origins[origin] += 1
            latencies.append(latency * 1e3)
            if origin != "warm":
                cold.append(latency * 1e3)
        count = max(len(latencies), 1)
        ordered, cold = sorted(latencies), sorted(cold)
        return Summary(
            policy=self.policy_name,
            limit_mb=self.limit_bytes // MB,
            requests=len(latencies),
            **{name: round(number / count, 4) for name, number in origins.items()},
            mean_ms=round(sum(latencies) / count, 3),
            p50_ms=_quantile(ordered, 0.5),
            p90_ms=_quantile(ordered, 0.9),
            p99_ms=_quantile(ordered, 0.99),
            cold_mean_ms=round(sum(cold) / max(len(cold), 1), 3),
            cold_p50_ms=_quantile(cold, 0.5),
            cold_p99_ms=_quantile(cold, 0.99),
            mean_mb=round(memory / max(last, 1e-9) / MB, 1),
            peak_mb=round(peak / MB, 1),
            zygotes_made=self._made,
            making_s=round(self._making_s, 1),
            cdf_ms=[_quantile(ordered, percent / 100) for percent in range(101)],
        )

    def _request(self, call: int, now_s: float) -> tuple[str, float]:
        if call in self._handlers:
            self._handlers.move_to_end(call)
            return "warm", WARM_S
        if self._making:
            self._making = [node for node in self._making if node.ready_s > now_s]
        closure = self.trace.functions[call]
        ready = self._nodes.values()
        if self._making:
            ready = [node for node in ready if node.ready_s <= now_s]
        node = best_node(ready, closure, self._rng)
        self._count_use(node, now_s)
        missing = closure - node.packages
        latency = FORK_S + FORK_S_PER_BYTE * node.bytes + self._seconds(missing)
        self._keep_handler(call, HANDLER_BYTES + self._bytes(missing))
        self._demand.hit(closure, now_s)
        if missing and self._policy.plan != "none" and len(self._making) < MAKING_AT_ONCE:
            self._grow(closure, now_s)
        return ("exact" if not missing else "partial" if node.packages else "root"), latency

    def _count_use(self, node: _Node, now_s: float) -> None:
        node.rate.hit(now_s)
        node.last_used_s = now_s
        above: _Node | None = node
        while above is not None:
            above.hits += 1
            above = self._nodes.get(above.parent_id or "")

    def _keep_handler(self, call: int, size: int) -> None:
        self._handlers[call] = size
        self._handler_use += size
        while self._handler_use > self.handler_bytes and self._handlers:
            self._handler_use -= self._handlers.popitem(last=False)[1]

    def _grow(self, closure: frozenset[str], now_s: float) -> None:
        """Asks the policy for a new Zygote and, if it wants one and room can be made, starts it."""
        plan = self._plan(closure, now_s)
        if plan is None:
            return
        free = self.limit_bytes - self._used
        if self._policy.plan != "exact" and not worth_making(plan, self._stats(now_s), free, now_s, self.limits):
            return
        if self._make_room(plan, now_s):
            self._start(plan, now_s)

    def _plan(self, closure: frozenset[str], now_s: float) -> NewNode | None:
        nodes = list(self._nodes.values())
        depths = {node.id: node.depth for node in nodes if node.ready_s <= now_s}
        costs = self.trace.costs
        if self._policy.plan == "exact":
            # A Zygote still being made cannot be forked, but must not be made twice.
            ready = [node for node in nodes if node.ready_s <= now_s]
            if any(node.packages == closure for node in nodes):
                return None
            return sock_next_node(
                ready, closure, costs=costs, depths=depths, limits=self.limits, rng=self._rng
            )
        if now_s - self._demands_at_s >= REFRESH_S:
            self._demands, self._demands_at_s = self._demand.top(DEMANDS, now_s), now_s
        demands: Sequence[Demand] = self._demands
        if not any(demand.closure == closure for demand in demands):
            demands = [*demands, Demand(closure, self._demand.rate(closure, now_s))]
        if self._policy.plan == "own":
            demands = [demand for demand in demands if closure <= demand.closure]
        return next_node(nodes, closure, demands, costs=costs, depths=depths, limits=self.limits)

    def _make_room(self, plan: NewNode, now_s: float) -> bool:
        """Evicts for `plan`; False when that cannot be enough, and then nothing is evicted."""
        need = room_needed(plan, len(self._nodes), self.limit_bytes - self._used, self.limits)
        if need <= 0:
            return True
        stats = [replace(node, pinned=True) if node.id == plan.parent_id else node for node in self._stats(now_s)]
        if sum(node.unique_bytes for node in stats if node.evictable) < need:
            return False
        for victim in self._policy.evict(stats, need, now_s):
            self._evict(victim)
        return room_needed(plan, len(self._nodes), self.limit_bytes - self._used, self.limits) <= 0

    def _start(self, plan: NewNode, now_s: float) -> None:
        parent = self._nodes[plan.parent_id]
        added_bytes, making_s = self._bytes(plan.added), self._seconds(plan.added)
        self._made += 1
        self._making_s += making_s
        node = _Node(
            f"zygote-{self._made}",
            parent.id,
            plan.packages,
            parent.depth + 1,
            [*parent.blocks, _Block(added_bytes)],
            parent.bytes + added_bytes,
            now_s,
            now_s + CANARY_S + making_s,
            # A node starts with what is known: the demand it was planned for, or (SOCK) the one use that it was made for.
            DecayingRate(RATE_TAU_S, now_s=now_s, rate=max(plan.rate, 1 / RATE_TAU_S)),
            last_used_s=now_s,
            hits=1,
        )
        for block in node.blocks:
            block.holders += 1
        self._used += NODE_OVERHEAD_BYTES + added_bytes
        self._nodes[node.id] = node
        self._making.append(node)

    def _evict(self, node_id: str) -> None:
        node = self._nodes.pop(node_id)
        self._used -= NODE_OVERHEAD_BYTES
        for block in node.blocks:
            block.holders -= 1
            if not block.holders:
                self._used -= block.bytes

    def _stats(self, now_s: float) -> list[NodeStats]:
        stats = []
        for node in self._nodes.values():
            private = sum(block.bytes for block in node.blocks if block.holders == 1)
            most: frozenset[str] = frozenset()
            for other in self._nodes.values():
                if len(other.packages) > len(most) and other.packages < node.packages:
                    most = other.packages
            stats.append(
                NodeStats(
                    node.id,
                    node.parent_id,
                    node.packages,
                    NODE_OVERHEAD_BYTES + private,
                    node.rate.at(now_s),
                    self._seconds(node.packages - most),
                    node.last_used_s,
                    node.created_s,
                    hits=node.hits,
                    provisioning=node.ready_s > now_s,
                )
            )
        return stats

    def _seconds(self, keys: frozenset[str]) -> float:
        return sum(self.trace.costs[key].seconds for key in keys)

    def _bytes(self, keys: frozenset[str]) -> int:
        return sum(self.trace.costs[key].bytes for key in keys)


def simulate(
    trace: Trace,
    policy: str,
    *,
    limit_bytes: int,
    handler_bytes: int = 1024 * MB,
    limits: TreeLimits | None = None,
    seed: int = 1,
) -> Summary:
    """Plays a trace under one of POLICIES.

    Args:
        trace: the requests.
        policy: a name in POLICIES.
        limit_bytes: memory of the import cache, the root Zygote included.
        handler_bytes: memory of the handler cache.
        limits: bounds of the tree.
        seed: of the ties.
    Raises: KeyError for an unknown policy."""
    return Simulation(trace, policy, limit_bytes, handler_bytes, limits or TreeLimits(), seed).run()


def main(arguments: Sequence[str] | None = None, *, write: Callable[[str], object] = print) -> None:
    """Reads a trace from a file or standard input, plays it under each policy and limit, prints one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m sockd.caches.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("trace", nargs="?", type=argparse.FileType("r"), default=sys.stdin, help="JSON (default: stdin)")
    parser.add_argument("--json", action="store_true", help="the CDFs too")
    parser.add_argument("--policy", action="append", choices=list(POLICIES), help="default: all")
    parser.add_argument("--limit-mb", type=int, action="append", help="memory of the import cache (default: 512)")
    parser.add_argument("--handler-mb", type=int, default=1024, help="memory of the handler cache")
    parser.add_argument("--max-nodes", type=int, default=TreeLimits().max_nodes)
    parser.add_argument("--seed", type=int, default=1, help="of the ties")
    options = parser.parse_args(arguments)
    trace = Trace.parse(json.load(options.trace))
    limits = TreeLimits(max_nodes=options.max_nodes)
    rows = []
    for limit_mb in options.limit_mb or [512]:
        for policy in options.policy or POLICIES:
            summary = simulate(
                trace,
                policy,
                limit_bytes=limit_mb * MB,
                handler_bytes=options.handler_mb * MB,
                limits=limits,
                seed=options.seed,
            )
            row = asdict(summary)
            if not options.json:
                del row["cdf_ms"]
            rows.append(row)
    write(json.dumps({"rows": rows}))


def _quantile(ordered: Sequence[float], share: float) -> float:
    return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)], 3) if ordered else 0.0


if __name__ == "__main__":
    main()
