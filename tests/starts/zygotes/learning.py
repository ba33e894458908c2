"""What tests of the learner need: versions, recordings, and a tree whose Zygotes are scripts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from sockd.base.config import FunctionDefaults, ZygoteConfig
from sockd.isolation.farm.control import ZygoteLate
from sockd.isolation.farm.imported import Imported, ImportRequest, Observed
from sockd.isolation.roots import environment as environments
from sockd.isolation.roots.program import HOST_LINEAGE, Limits, Lineage, Program
from sockd.isolation.sandbox.exchange import Reply
from sockd.starts.packages.distribution import name_of
from sockd.starts.packages.provided_names import Provided
from sockd.starts.zygotes.learning.import_learner import ImportLearner
from sockd.starts.zygotes.rate import DemandMeter
from sockd.starts.zygotes.top_levels.soundness import ImportView
from sockd.starts.zygotes.top_levels.top_level import Module, Step, TopLevel, import_id
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd_zygote.top_levels import checks

A, B, C = "a-1-aaaaaaaaaaaa", "b-1-bbbbbbbbbbbb", "c-1-cccccccccccc"
SECONDS = {A: 0.1, B: 0.2}
ASYNCIO = Step("asyncio", "", -1, "", (), (Module("", "asyncio", 0.05),))


class FakeUids:
    """A block of uids that has some of each kind, unless a test says otherwise."""

    has_uid = has_child = True


class FakeZygote:
    """A Zygote that does what the test's `Tree` says modules do."""

    def __init__(self, tree: Tree, number: int, inherited: Sequence[str] = ()) -> None:
        self.tree = tree
        self.name = f"zygote-{number}"
        self.pidfd = os.pidfd_open(os.getpid())
        self.imported = list(inherited)
        self.closed = False
        self.uids = FakeUids()

    async def import_modules(self, request: ImportRequest, *, deadline_s: float) -> Imported:
        self.tree.imports.append((sorted(request.paths), list(request.modules)))
        failed: dict[str, str] = {}
        threads = 1
        new = [module for module in request.modules if module not in self.imported]
        for module in new:
            self.imported.append(module)
            harm = self.tree.harms.get(module)
            if isinstance(harm, Exception):
                raise harm
            if isinstance(harm, str):
                failed[module] = harm
            threads += harm == 1
        seen = Observed(missed=frozenset(name for each in new for name in self.tree.missed.get(each, ())))
        return Imported(0.1, threads, failed, seen=seen, loaded=tuple((each, frozenset({each})) for each in new))

    @property
    def alive(self) -> bool:
        return not self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self.pidfd)


class FakeSpare:
    """A fork that says of each check of a canary that all is well, but for what it is given."""

    process = SimpleNamespace(limits=Limits(16 << 20, 8, 1.0, 1 << 20, 8))

    def __init__(self, reply: Reply | None = None) -> None:
        self.reply = reply or Reply(msgspec.json.encode(dict.fromkeys(checks.CHECKED, checks.WORKS)))
        self.on_death: Callable[[Any], None] = lambda spare: None
        self.destroyed = False
        self.program: Program | None = None

    def become(self, program: Program) -> None:
        self.program = program

    async def request(self, request_id: bytes, event: bytes) -> Reply:
        return self.reply

    def destroy(self) -> None:
        self.destroyed = True
        self.on_death(self)

    async def aclose(self, deadline_s: float) -> None:
        self.destroy()


class Tree:
    """As much of a ZygoteTree as the learner sees, and an event for each change."""

    def __init__(self) -> None:
        self.lineages = self.children = self
        self.nodes: list[Any] = []
        self.demand = {HOST_LINEAGE: DemandMeter(60.0)}
        self.imports: list[tuple[list[str], list[str]]] = []
        self.harms: dict[str, Exception | str | int] = {}
        """What happens when a module is imported: raised, failed with words, or 1: a thread is started."""
        self.missed: dict[str, list[str]] = {}
        """Names that a module looks for when it is imported, and does not find."""
        self.canary_harms: dict[str, Exception | Reply] = {}
        self.ends_behind_a_canary: set[str] = set()
        """Modules with which a Zygote ends when it has forked one."""
        self.spares: list[FakeSpare] = []
        self.spawn_harm: Exception | None = None
        self.zygotes: list[FakeZygote] = []
        self.nodes.append(ZygoteNode(self._zygote(), frozenset(), None))

    def _zygote(self, inherited: Sequence[str] = ()) -> Any:
        self.zygotes.append(FakeZygote(self, len(self.zygotes), inherited))
        return self.zygotes[-1]

    def nodes_of(self, lineage: Lineage) -> list[Any]:
        return [node for node in self.nodes if node.lineage == lineage]

    async def spawn(self, parent: ZygoteNode) -> Any:
        if self.spawn_harm is not None:
            raise self.spawn_harm
        zygote: Any = parent.zygote
        return self._zygote(zygote.imported)

    async def import_modules(self, zygote: FakeZygote, request: ImportRequest, *, deadline_s: float) -> Imported:
        return await zygote.import_modules(request, deadline_s=deadline_s)

    async def fork_spare(self, zygote: FakeZygote) -> Any:
        for module in zygote.imported:
            harm = self.canary_harms.get(module)
            if isinstance(harm, Exception):
                raise harm
            if harm is not None:
                return FakeSpare(harm)
        if self.ends_behind_a_canary.intersection(zygote.imported):
            zygote.close()
        self.spares.append(FakeSpare())
        return self.spares[-1]

    def add(self, node: ZygoteNode) -> None:
        self.nodes.append(node)

    def remove(self, node: ZygoteNode) -> None:
        self.nodes.remove(node)
        node.close()

    def packages(self) -> list[set[str]]:
        return [set(node.packages) for node in self.nodes]

    def close(self) -> None:
        for zygote in self.zygotes:
            zygote.close()


def offer_of(key: str) -> Provided:
    """What a distribution has: a module of its name."""
    return Provided(modules=frozenset((name_of(key),)))


@asynccontextmanager
async def learner_of(tree: Tree, path: Path, **config: Any) -> AsyncIterator[ImportLearner]:
    learner: Any = ImportLearner(ZygoteConfig(**config), tree, path, offer_of, defaults=FunctionDefaults())  # type: ignore[arg-type]
    try:
        yield learner
    finally:
        await learner.aclose()
        tree.close()


async def settled(learner: ImportLearner) -> None:
    """Until the learner has nothing more to do: its learners wait for the next closure."""
    async with asyncio.timeout(5):
        while learner._waiting or learner._planner.under_way or learner._wake.is_set():
            await asyncio.sleep(0)


def top_of(*keys: str, **options: Any) -> TopLevel:
    """A top level that imports a module of each distribution, which has its name."""
    steps = [Step(name_of(key), key, -1, "", (), (Module(key, name_of(key), SECONDS.get(key, 0.5)),)) for key in keys]
    return TopLevel(tuple(steps), frozenset(keys), **options)


def view_of(*keys: str, program: str = "f") -> ImportView:
    """A version with these distributions, of which nothing is recorded yet."""
    offers = {key: offer_of(key) for key in keys}
    return ImportView(frozenset(keys), offers, environment=environments.BASE, zygote="packages", program=program)


def ids(*keys: str) -> set[str]:
    """Return the ids of the imports of distributions."""
    return {import_id(name_of(key), key) for key in keys}


async def recorded(learner: ImportLearner, *keys: str, program: str = "f", top: TopLevel | None = None) -> ImportView:
    view = view_of(*keys, program=program)
    learner.record(view, top or top_of(*keys))
    await settled(learner)
    return view


class HangingTree(Tree):
    """One in which modules with an h hang until the test lets their deadline pass."""

    def __init__(self) -> None:
        self.hangs = asyncio.Semaphore(0)
        self._waiters: list[asyncio.Event] = []
        super().__init__()

    def pass_deadline(self) -> None:
        for waiter in self._waiters:
            waiter.set()
        self._waiters.clear()

    def _zygote(self, inherited: Sequence[str] = ()) -> Any:
        tree = self

        class Hanging(FakeZygote):
            async def import_modules(self, request: ImportRequest, *, deadline_s: float) -> Imported:
                if any(module.startswith("h") for module in request.modules):
                    waiter = asyncio.Event()
                    tree._waiters.append(waiter)
                    tree.hangs.release()
                    await waiter.wait()
                    raise ZygoteLate("no answer in time")
                return await super().import_modules(request, deadline_s=deadline_s)

        self.zygotes.append(Hanging(self, len(self.zygotes), inherited))
        return self.zygotes[-1]
