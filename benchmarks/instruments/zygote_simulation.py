"""Plays a trace of requests against the real selection and eviction policies: `python -m
benchmarks.instruments.zygote_simulation`.

Pure: no process, no clock but the trace's. Only the machinery around the policies is simulated; its constants are
measured:

- a warm or paused handler answers in 0.2 ms; a fork takes 1.0 ms plus 0.05 ms per MB its Zygote imported;
- what the Zygote lacks is imported in the handler, at the trace's cost per package;
- a new Zygote is made off the critical path, two at a time at most, and serves when its imports are done;
- memory is as in `simulated_tree`; a handler's own memory (2.5 MB and what it imported itself) counts against the
  handler cache,
  an LRU with a limit of its own. Pages that handlers keep of an evicted Zygote are not counted.

Every policy sees the same trace, limits and statistics. Runs are reproducible: ties are broken by a seeded generator.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import fsum
from random import Random
from typing import Any

import msgspec

from benchmarks.instruments.simulated_tree import SimulatedNode, SimulatedTree
from sockd.isolation.farm.imported import Observed
from sockd.starts.packages.distribution import name_of
from sockd.starts.packages.provided_names import Provided
from sockd.starts.zygotes.eviction import (
    Evict,
    NodeStats,
    measured_benefit,
    released_heuristic,
    room_needed,
    sock_heuristic,
    worth_making,
)
from sockd.starts.zygotes.rate import RATE_TAU_S, DemandMeter
from sockd.starts.zygotes.selection import (
    BY_SUBSET,
    Demand,
    NewNode,
    PackageCost,
    SharingView,
    TreeLimits,
    best_node,
    next_node,
    sock_next_node,
)
from sockd.starts.zygotes.top_levels.sharing import Sharing
from sockd.starts.zygotes.top_levels.soundness import OF_TOP_LEVELS, ImportView, Preimported, difference
from sockd.starts.zygotes.top_levels.top_level import Module, Step, TopLevel, key_of_import, name_of_import

MB = 1 << 20
WARM_S = 0.0002
FORK_S = 0.0010
FORK_S_PER_BYTE = 0.00005 / MB
HANDLER_BYTES = 5 * MB // 2
MAKING_AT_ONCE = 2
DEMANDS = 128
"""How many of the sets most in demand a plan looks at; with 32 the measured policy loses some 10 % at 1 GB."""
REFRESH_S = 5.0
"""How often the list of the sets most in demand is drawn up anew."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to run the import cache."""

    plan: str
    """Which Zygote to make: none | exact (SOCK) | own (measured, whole closures only) | shared (measured)."""
    evict: Evict
    is_sound: bool = False
    """A Zygote serves only where its imports would have gone the same way (`soundness`); else by SOCK's rule, a subset."""


POLICIES: dict[str, Policy] = {
    "none": Policy("none", sock_heuristic),
    "released": Policy("exact", released_heuristic),
    "sock": Policy("exact", sock_heuristic),
    "sock, measured eviction": Policy("exact", measured_benefit),
    "measured, sock eviction": Policy("shared", sock_heuristic),
    "measured, no shared prefixes": Policy("own", measured_benefit),
    "measured": Policy("shared", measured_benefit),
    "measured, sound": Policy("shared", measured_benefit, is_sound=True),
}
"""By the name they have in the table; `sock` and `measured` are those of the configuration, the others take them
apart. The worker's Zygotes always serve by the sound rule; what that takes off the hits is the last row beside `measured`."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace, parsed."""

    costs: dict[str, PackageCost]
    """By import id."""
    provided: dict[str, Provided]
    """What each package offers: a module of its name."""
    looks_for: dict[str, frozenset[str]]
    """Modules, by the name of their package, that the imports of each package look for and go on without."""
    functions: list[TopLevel]
    imports: list[frozenset[str]]
    """What each function imports, by import id."""
    times: list[float]
    calls: list[int]

    @classmethod
    def parse(cls, data: dict[str, Any]) -> Trace:
        """From the JSON that the benchmark writes: packages as [key, seconds, bytes]; functions as lists, one for each import of
        the function's code, of package indices: the package and what it imports in turn; times in s and calls as function
        indices; by key, where there are any, the names that packages require and look for, and what their imports change outside
        of them (`top_level.Step.writes`). Raises: KeyError, ValueError, IndexError or TypeError when it is not that."""
        keys = [key for key, _, _ in data["packages"]]
        requires, looks_for, writes = data.get("requires", {}), data.get("looks_for", {}), data.get("writes", {})
        costs = {key: PackageCost(float(seconds), int(size)) for key, seconds, size in data["packages"]}
        steps = {
            key: Step(name_of(key), key, -1, "", tuple(writes.get(key, ())), (Module(key, name_of(key), cost.seconds),))
            for key, cost in costs.items()
        }
        functions = [
            top_level([[steps[keys[index]] for index in import_] for import_ in function])
            for function in data["functions"]
        ]
        if len(data["times"]) != len(data["calls"]) or max(data["calls"], default=0) >= len(functions):
            raise ValueError("a trace has one time for each call, and calls only functions that it has")
        provided = {
            key: Provided(
                modules=frozenset((name_of(key),)),
                requires=frozenset(requires.get(key, ())),
            )
            for key in keys
        }
        return cls(
            {steps[key].id: cost for key, cost in costs.items()},
            provided,
            {key: frozenset(looks_for.get(key, ())) for key in keys},
            functions,
            [frozenset(step.id for step in function.steps) for function in functions],
            list(data["times"]),
            list(data["calls"]),
        )

    def preimported(
        self, parent: Preimported, imports: frozenset[str], path: frozenset[str], top: TopLevel
    ) -> Preimported:
        """What a Zygote has seen that was forked from another and made for a function. Args: path: the packages on sys.path."""
        names = [name for name in top.in_order(imports) if name not in parent.order]
        groups = (*parent.groups, *((name, top.whole[name]) for name in names))
        loaded = frozenset().union(*(modules for _, modules in groups))
        keys = (step.key for step in top.steps if step.name in loaded)
        missed = frozenset().union(*(self.looks_for[key] for key in keys)) - loaded
        seen, order = Observed(found=loaded, missed=missed), (*parent.order, *names)
        return Preimported(path, seen=seen, loaded=loaded, order=order, groups=groups)


def whole_costs(trace: Trace) -> dict[str, PackageCost]:
    """What each import of functions' code costs where nothing is loaded yet: the most of all functions."""
    own = {key_of_import(import_): cost for import_, cost in trace.costs.items()}
    costs: dict[str, PackageCost] = {}
    for top in trace.functions:
        for step, _ in top.outer_steps():
            parts = [own[key] for key in sorted(top.keys_of(step))]
            cost = PackageCost(fsum(part.seconds for part in parts), sum(part.bytes for part in parts))
            costs[step.id] = max(cost, costs.get(step.id, cost))
    return costs


def top_level(imports: Sequence[Sequence[Step]]) -> TopLevel:
    """The recording of a function that imports packages, each with what it imports in turn, unless it is there already."""
    steps: dict[str, Step] = {}
    for asked, *within in imports:
        if asked.id not in steps:
            number = len(steps)
            steps[asked.id] = asked
            for step in within:
                steps.setdefault(step.id, msgspec.structs.replace(step, outer=number, writes=()))
    return TopLevel(tuple(steps.values()), frozenset(step.key for step in steps.values()))


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


@dataclass(slots=True)
class Simulation:
    """One policy, one trace, one limit."""

    trace: Trace
    policy_name: str
    limit_bytes: int
    handler_bytes: int
    limits: TreeLimits = field(default_factory=TreeLimits)
    seed: int = 1
    tree: SimulatedTree = field(init=False)
    _policy: Policy = field(init=False)
    _sharing: SharingView = field(init=False)
    _wanted: list[frozenset[str]] = field(init=False)
    """The set of imports that each function is known by."""
    _known: Sharing | None = field(init=False)
    _costs: dict[str, PackageCost] = field(init=False)
    """The cost of what a Zygote imports: by the sound rule, a package with all that it imports in turn."""
    _shared: dict[str, Preimported] = field(default_factory=dict)
    """What each Zygote has imported, by its id."""
    _rng: Random = field(init=False)
    _making: list[SimulatedNode] = field(default_factory=list)
    _demand: DemandMeter = field(default_factory=lambda: DemandMeter(RATE_TAU_S))
    _demands: list[Demand] = field(default_factory=list)
    _demands_at_s: float = -REFRESH_S
    _handlers: OrderedDict[int, int] = field(default_factory=OrderedDict)
    _handlers_bytes: int = 0

    def __post_init__(self) -> None:
        self._policy = POLICIES[self.policy_name]
        self._known = Sharing(self.trace.provided.__getitem__, frozenset) if self._policy.is_sound else None
        self._sharing = self._known or BY_SUBSET
        tops = self.trace.functions
        self._wanted = [self._known.know(top) for top in tops] if self._known is not None else self.trace.imports
        self._rng = Random(self.seed)
        self._costs = whole_costs(self.trace) if self._known is not None else self.trace.costs
        self.tree = SimulatedTree(self._costs)

    def run(self) -> Summary:
        """Plays the whole trace."""
        answers: list[tuple[str, float]] = []
        byte_seconds = last_s = 0.0
        peak = 0
        for now_s, call in zip(self.trace.times, self.trace.calls, strict=True):
            byte_seconds += self.tree.used_bytes * (now_s - last_s)
            peak, last_s = max(peak, self.tree.used_bytes), now_s
            answers.append(self._request(call, now_s))
        return self._summary(answers, byte_seconds / max(last_s, 1e-9), max(peak, self.tree.used_bytes))

    def _request(self, call: int, now_s: float) -> tuple[str, float]:
        """Answers one call: where from, and in how many seconds."""
        if call in self._handlers:
            self._handlers.move_to_end(call)
            return "warm", WARM_S
        self._making = [node for node in self._making if node.ready_s > now_s]
        wanted = self._wanted[call]
        ready: Iterable[SimulatedNode] = self.tree.nodes.values()
        if self._making:
            ready = [node for node in ready if node.ready_s <= now_s]
        node = best_node(ready, wanted, self._rng, lambda node: self._serves(node, wanted, call))
        self.tree.count_use(node, now_s)
        missing = self._missing(node, call)
        self._keep_handler(call, HANDLER_BYTES + sum(self.trace.costs[each].bytes for each in missing))
        self._demand.hit(wanted, now_s)
        if missing and len(self._making) < MAKING_AT_ONCE:
            self._grow(wanted, call, now_s)
        latency = FORK_S + FORK_S_PER_BYTE * node.bytes + fsum(self.trace.costs[each].seconds for each in missing)
        return ("exact" if not missing else "partial" if node.imports else "root"), latency

    def _serves(self, node: SimulatedNode, wanted: frozenset[str], call: int) -> bool:
        verdict = node.verdicts.get(wanted)
        if verdict is None:
            top, shared = self.trace.functions[call], self._shared.get(node.id, Preimported())
            view = ImportView(top.closure, top=top)
            verdict = self._sharing.serves(node.imports, wanted) and not difference(shared, view, OF_TOP_LEVELS)
            node.verdicts[wanted] = verdict
        return verdict

    def _missing(self, node: SimulatedNode, call: int) -> frozenset[str]:
        """The packages that a start imports itself, by import id."""
        imports = self.trace.imports[call]
        if self._known is None:
            return imports - node.imports
        loaded = self._shared[node.id].loaded if node.id in self._shared else frozenset()
        return frozenset(each for each in imports if name_of_import(each) not in loaded)

    def _keep_handler(self, call: int, size: int) -> None:
        self._handlers[call] = size
        self._handlers_bytes += size
        while self._handlers_bytes > self.handler_bytes and self._handlers:
            self._handlers_bytes -= self._handlers.popitem(last=False)[1]

    def _grow(self, wanted: frozenset[str], call: int, now_s: float) -> None:
        """Asks the policy for a new Zygote and, if it wants one and room can be made, starts it."""
        plan = self._plan(wanted, now_s)
        if plan is None:
            return
        # The parent must live until it is forked.
        stats = [replace(node, pinned=node.id == plan.parent_id) for node in self.tree.stats(now_s)]
        free = self.limit_bytes - self.tree.used_bytes
        if self._policy.plan != "exact" and not worth_making(plan, stats, free, self.limits):
            return
        if self._make_room(plan, stats, now_s):
            node = self.tree.start(plan, now_s)
            self._making.append(node)
            if self._known is not None:
                parent, top = self._shared.get(plan.parent_id, Preimported()), self.trace.functions[call]
                path = self._known.path_of(plan.imports, top)
                shared = self._shared[node.id] = self.trace.preimported(parent, plan.imports, path, top)
                self._known.learn(plan.imports, shared)

    def _plan(self, wanted: frozenset[str], now_s: float) -> NewNode | None:
        if self._policy.plan == "none":
            return None
        nodes, costs = list(self.tree.nodes.values()), self._costs
        # A Zygote still being made cannot be forked, but must not be made twice.
        depths = {node.id: node.depth for node in nodes if node.ready_s <= now_s}
        if self._policy.plan == "exact":
            return sock_next_node(
                nodes,
                wanted,
                costs=costs,
                depths=depths,
                limits=self.limits,
                rng=self._rng,
                sharing=self._sharing,
            )
        if now_s - self._demands_at_s >= REFRESH_S:
            self._demands, self._demands_at_s = self._demand.top(DEMANDS, now_s), now_s
        demands: Sequence[Demand] = self._demands
        if not any(demand.closure == wanted for demand in demands):
            demands = [*demands, Demand(wanted, self._demand.rate(wanted, now_s))]
        if self._policy.plan == "own":
            demands = [demand for demand in demands if wanted <= demand.closure]
        return next_node(nodes, wanted, demands, costs=costs, depths=depths, limits=self.limits, sharing=self._sharing)

    def _make_room(self, plan: NewNode, stats: Sequence[NodeStats], now_s: float) -> bool:
        """Evicts for `plan`; False when that cannot be enough, and then nothing is evicted."""
        need = self._room_needed(plan)
        if need > sum(node.unique_bytes for node in stats if node.evictable):
            return False
        if need > 0:
            for victim in self._policy.evict(stats, need, now_s):
                self.tree.evict(victim)
        return self._room_needed(plan) <= 0

    def _room_needed(self, plan: NewNode) -> int:
        return room_needed(plan, len(self.tree.nodes), self.limit_bytes - self.tree.used_bytes, self.limits)

    def _summary(self, answers: Sequence[tuple[str, float]], mean_bytes: float, peak_bytes: int) -> Summary:
        count = max(len(answers), 1)
        every = sorted(latency * 1e3 for _, latency in answers)
        cold = sorted(latency * 1e3 for origin, latency in answers if origin != "warm")
        origins = Counter(origin for origin, _ in answers)
        return Summary(
            policy=self.policy_name,
            limit_mb=self.limit_bytes // MB,
            requests=len(answers),
            warm=round(origins["warm"] / count, 4),
            exact=round(origins["exact"] / count, 4),
            partial=round(origins["partial"] / count, 4),
            root=round(origins["root"] / count, 4),
            mean_ms=round(fsum(every) / count, 3),
            p50_ms=_quantile(every, 0.5),
            p90_ms=_quantile(every, 0.9),
            p99_ms=_quantile(every, 0.99),
            cold_mean_ms=round(fsum(cold) / max(len(cold), 1), 3),
            cold_p50_ms=_quantile(cold, 0.5),
            cold_p99_ms=_quantile(cold, 0.99),
            mean_mb=round(mean_bytes / MB, 1),
            peak_mb=round(peak_bytes / MB, 1),
            zygotes_made=self.tree.made,
            making_s=round(self.tree.making_s, 1),
            cdf_ms=[_quantile(every, percent / 100) for percent in range(101)],
        )


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
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.instruments.zygote_simulation", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "trace", nargs="?", type=argparse.FileType("r"), default=sys.stdin, help="JSON (default: stdin)"
    )
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
