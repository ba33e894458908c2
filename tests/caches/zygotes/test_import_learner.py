"""The learner alone: which Zygotes it makes of what was seen, and what it does when a package misbehaves in one.

The Zygotes here are scripts; the learner, its policies and its record are real."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sockd.caches.packages.distribution import name_of
from sockd.caches.packages.provided_names import NOTHING
from sockd.caches.zygotes import canary
from sockd.caches.zygotes.import_learner import ImportLearner
from sockd.caches.zygotes.rate import DemandMeter
from sockd.caches.zygotes.soundness import ImportView
from sockd.caches.zygotes.zygote_node import ZygoteNode
from sockd.farm.control import ZygoteGone, ZygoteLate
from sockd.farm.imported import Imported, ImportRequest
from sockd.images import environment as environments
from sockd.images.program import HOST_LINEAGE, Limits, Lineage, Program
from sockd.plain.config import ZygoteConfig
from sockd.plain.errors import InitFailed, NoCapacity, SandboxDied, SandboxFailed, TimedOut
from sockd.sandbox.exchange import Reply
from sockd_zygote import protocol
from sockd_zygote.own_functions import checks

pytestmark = pytest.mark.anyio

A, B = "a-1-aaaaaaaaaaaa", "b-1-bbbbbbbbbbbb"
SEEN = {A: (A, "a", 0.1), B: (B, "b", 0.2)}


class FakeZygote:
    """A Zygote that does what the test's `Tree` says modules do."""

    def __init__(self, tree: Tree, number: int) -> None:
        self.tree = tree
        self.name = f"zygote-{number}"
        self.pidfd = os.pidfd_open(os.getpid())
        self.imported: list[str] = []
        self.closed = False
        self.may_spawn = self.may_fork = True

    async def import_modules(self, request: ImportRequest, *, deadline_s: float) -> Imported:
        self.tree.imports.append((sorted(request.paths), list(request.modules)))
        failed: dict[str, str] = {}
        threads = 1
        for module in request.modules:
            self.imported.append(module)
            harm = self.tree.harms.get(module)
            if isinstance(harm, Exception):
                raise harm
            if isinstance(harm, str):
                failed[module] = harm
            threads += harm == 1
        return Imported(0.1, threads, failed)

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
        self.nodes: list[Any] = []
        self.demand = {HOST_LINEAGE: DemandMeter(60.0)}
        self.imports: list[tuple[list[str], list[str]]] = []
        self.harms: dict[str, Exception | str | int] = {}
        """What happens when a module is imported: raised, failed with words, or 1: a thread is started."""
        self.canary_harms: dict[str, Exception | Reply] = {}
        self.ends_behind_a_canary: set[str] = set()
        """Modules with which a Zygote ends when it has forked one."""
        self.spares: list[FakeSpare] = []
        self.spawn_harm: Exception | None = None
        self.zygotes: list[FakeZygote] = []
        self.nodes.append(ZygoteNode(self._zygote(), frozenset(), None))

    def _zygote(self) -> Any:
        self.zygotes.append(FakeZygote(self, len(self.zygotes)))
        return self.zygotes[-1]

    def nodes_of(self, lineage: Lineage) -> list[Any]:
        return [node for node in self.nodes if node.lineage == lineage]

    def standard_library_of(self, lineage: Lineage) -> None:
        return None

    async def spawn(self, parent: ZygoteNode) -> Any:
        if self.spawn_harm is not None:
            raise self.spawn_harm
        return self._zygote()

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

    def replace(self, old: ZygoteNode, new: ZygoteNode) -> None:
        self.nodes.append(new)
        self.remove(old)

    def remove(self, node: ZygoteNode) -> None:
        self.nodes.remove(node)
        node.close()

    def packages(self) -> list[set[str]]:
        return [set(node.packages) for node in self.nodes]

    def close(self) -> None:
        for zygote in self.zygotes:
            zygote.close()


@asynccontextmanager
async def learner_of(tree: Tree, path: Path, **config: Any) -> AsyncIterator[ImportLearner]:
    learner: Any = ImportLearner(ZygoteConfig(**config), tree, path, lambda key: NOTHING, open_files=1024)  # type: ignore[arg-type]
    try:
        yield learner
    finally:
        await learner.aclose()
        tree.close()


async def settled(learner: ImportLearner) -> None:
    """Until the learner has nothing more to do: its learners wait for the next closure."""
    async with asyncio.timeout(5):
        while learner._waiting or learner._stale or learner._under_way or learner._wake.is_set():
            await asyncio.sleep(0)


async def observed(learner: ImportLearner, tree: Tree, *keys: str, function: str = "f") -> None:
    learner.observe(function, ImportView(frozenset(keys)), tree.nodes[0], [SEEN[key] for key in keys])
    await settled(learner)


async def test_what_a_function_imported_becomes_a_node_with_its_modules(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path / "learned.json") as learner:
        await observed(learner, tree, A, B)
        assert tree.packages() == [set(), {A, B}]
        assert tree.imports == [([f"/packages/{A}", f"/packages/{B}"], ["a", "b"])]
        node = tree.nodes[1]
        assert node.modules == {"a", "b"} and len(node.spares) == 1 and node.unique_bytes > 0
        await observed(learner, tree, A, B, function="g")
        assert len(tree.imports) == 1  # the same closure is served


async def test_a_node_is_made_anew_when_its_users_keep_importing_more_of_its_packages(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path / "learned.json") as learner:
        await observed(learner, tree, A)
        old = tree.nodes[1]
        for seconds in (0.009, 0.009):  # a tenth of the 0.1 s that its import took is 0.01
            assert tree.nodes[1] is old
            learner.observe("f", ImportView(frozenset({A})), old, [(A, "a.late", seconds)])
            await settled(learner)
        assert tree.packages() == [set(), {A}]
        assert tree.nodes[1] is not old and tree.nodes[1].modules == {"a", "a.late"}


async def test_a_node_that_cannot_be_made_anew_stays_and_is_left_alone(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path / "learned.json") as learner:
        await observed(learner, tree, A)
        old = tree.nodes[1]
        tree.harms["a.late"] = 1
        for _ in range(3):
            learner.observe("f", ImportView(frozenset({A})), old, [(A, "a.late", 0.1)])
            await settled(learner)
        assert tree.nodes[1] is old and not learner.refused.keys
        assert [modules for _, modules in tree.imports] == [["a"], ["a", "a.late"]]  # tried once


async def test_a_function_without_packages_or_without_imports_makes_no_node(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path / "learned.json") as learner:
        learner.consider(ImportView(frozenset()))
        learner.consider(ImportView(frozenset({A})))
        learner.observe("f", ImportView(frozenset({A})), tree.nodes[0], [])
        await settled(learner)
        assert tree.packages() == [set()] and tree.imports == []


async def test_switched_off_it_only_remembers(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path / "learned.json", enabled=False) as learner:
        await observed(learner, tree, A)
        assert tree.packages() == [set()]
        assert learner.profile.modules_for([A]) == ["a"]


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (ZygoteGone("the Zygote died"), "the Zygote died"),
        ("ValueError: not here", "b: it cannot be imported in a Zygote: ValueError: not here"),
        (1, "it starts threads when it is imported, and a fork has only one"),
    ],
)
async def test_a_package_that_harms_a_zygote_is_found_among_others_and_recorded(
    tmp_path: Path, harm: Any, reason: str
) -> None:
    tree = Tree()
    tree.harms["b"] = harm
    async with learner_of(tree, tmp_path / "learned.json") as learner:
        await observed(learner, tree, A, B)
        assert [(entry.key, entry.reason) for entry in learner.refused.list()] == [(B, reason)]
        assert tree.packages() == [set()]
        assert all(zygote.closed for zygote in tree.zygotes[1:])
        await observed(learner, tree, A, B, function="g")
        assert tree.packages() == [set(), {A}]  # without it


async def test_a_canary_that_does_not_answer_refuses_the_package(tmp_path: Path) -> None:
    tree = Tree()
    tree.canary_harms["a"] = TimeoutError()
    async with learner_of(tree, tmp_path / "learned.json") as learner:
        await observed(learner, tree, A)
        assert [entry.reason for entry in learner.refused.list()] == ["a fork of it did not answer in time"]
        assert tree.packages() == [set()] and tree.zygotes[1].closed


BEGUN_SSL = f"{checks.BEGUN}a thread\n{checks.BEGUN}ssl\n".encode()
WELL = dict.fromkeys(checks.CHECKED, checks.WORKS)


@pytest.mark.parametrize(
    ("reply", "reason", "by_deadline"),
    [
        (
            Reply(msgspec.json.encode({**WELL, "ssl": "SSLError", "fork": "ends with -11"})),
            "in a fork of it fork fails: ends with -11; ssl fails: SSLError",
            False,
        ),
        (Reply(msgspec.json.encode({"fork": checks.WORKS})), "in a fork of it a thread was not tried", False),
        (Reply(b"[]"), "in a fork of it the answer is no list of checks", False),
        (Reply(error=TimedOut("late", "timeout_s"), log=BEGUN_SSL), "ssl: a fork of it did not answer in time", True),
        (Reply(error=SandboxDied("died"), log=BEGUN_SSL), "ssl: a fork of it failed: died", False),
        (Reply(error=InitFailed("ValueError", "no")), "the first call of a handler: a fork of it failed: no", False),
    ],
)
async def test_what_does_not_work_in_a_canary_refuses_the_package(
    tmp_path: Path, reply: Reply, reason: str, by_deadline: bool
) -> None:
    tree = Tree()
    tree.canary_harms["a"] = reply
    async with learner_of(tree, tmp_path / "learned.json") as learner:
        await observed(learner, tree, A)
        (refusal,) = learner.refused.list()
        assert refusal.reason.startswith(reason) and refusal.by_deadline == by_deadline
        assert tree.packages() == [set()] and tree.zygotes[1].closed


@pytest.mark.parametrize("told", [{**WELL, "numpy.dot": checks.ABSENT}, WELL])
def test_what_is_not_there_need_not_work(told: dict[str, str]) -> None:
    assert canary.failures(msgspec.json.encode(told)) == ""


async def test_a_canary_has_the_packages_of_its_zygote_and_no_code(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path / "learned.json") as learner:
        await observed(learner, tree, A)
        tried, spare = tree.spares
        assert tried.destroyed and tried.program is not None and tried.program.code is None
        init = protocol.decode_init(tried.program.init)
        assert (init["handler"], init["paths"], init["entry_file"]) == (canary.HANDLER, [f"/packages/{A}"], "")
        assert list(tree.nodes[1].spares) == [spare] and not spare.destroyed


async def test_a_zygote_that_ends_behind_its_canary_leaves_no_sandbox(tmp_path: Path) -> None:
    tree = Tree()
    tree.ends_behind_a_canary.add("a")
    async with learner_of(tree, tmp_path / "learned.json") as learner:
        await observed(learner, tree, A)
        assert tree.packages() == [set()] and tree.spares
        assert [spare for spare in tree.spares if not spare.destroyed] == []


async def test_packages_that_only_harm_together_are_all_refused(tmp_path: Path) -> None:
    class Together(Tree):
        async def fork_spare(self, zygote: FakeZygote) -> Any:
            if len(self.zygotes) in (2, 4):  # the first try and the last, not the search between them
                raise SandboxFailed("too much")
            return FakeSpare()

    tree = Together()
    async with learner_of(tree, tmp_path / "learned.json") as learner:
        await observed(learner, tree, A, B)
        assert {entry.key for entry in learner.refused.list()} == {A, B}
        assert {entry.reason for entry in learner.refused.list()} == {"only together with others: too much"}


@pytest.mark.parametrize("packages", [(A,), (A, B)])
async def test_a_failure_that_does_not_come_again_is_blamed_on_no_package(
    tmp_path: Path, packages: tuple[str, ...]
) -> None:
    class Once(Tree):
        async def fork_spare(self, zygote: FakeZygote) -> Any:
            if len(self.zygotes) == 2:
                raise OSError(5, "Input/output error")
            return FakeSpare()

    tree = Once()
    async with learner_of(tree, tmp_path / "learned.json") as learner:
        await observed(learner, tree, *packages)
        assert learner.refused.list() == []
        assert tree.packages() == [set(), set(packages)]
        assert [zygote.closed for zygote in tree.zygotes] == [False, True, True, False]


@pytest.mark.parametrize("where", ["spawn", "canary"])
async def test_a_lack_of_memory_is_blamed_on_no_package(tmp_path: Path, where: str) -> None:
    tree = Tree()
    if where == "spawn":
        tree.spawn_harm = NoCapacity("no memory")
    else:
        tree.canary_harms["a"] = NoCapacity("no memory for a spare")
    async with learner_of(tree, tmp_path / "learned.json") as learner:
        await observed(learner, tree, A)
        assert learner.refused.list() == [] and tree.packages() == [set()]
        tree.spawn_harm = None
        tree.canary_harms.clear()
        await observed(learner, tree, A, function="g")
        assert tree.packages() == [set(), {A}]


async def test_a_parent_that_dies_meanwhile_is_blamed_on_no_package(tmp_path: Path) -> None:
    tree = Tree()
    tree.spawn_harm = ZygoteGone("the Zygote is gone")
    async with learner_of(tree, tmp_path / "learned.json") as learner:
        await observed(learner, tree, A)
        assert learner.refused.list() == []


async def test_a_parent_that_ends_during_the_search_is_blamed_on_no_package(tmp_path: Path) -> None:
    class Lost(Tree):
        async def import_modules(self, zygote: FakeZygote, request: ImportRequest, *, deadline_s: float) -> Imported:
            if len(self.zygotes) > 2:  # those of the root and of the first try
                self.nodes.clear()
            raise ZygoteGone("the Zygote died")

    tree = Lost()
    async with learner_of(tree, tmp_path / "learned.json") as learner:
        await observed(learner, tree, A)
        assert not tree.nodes and learner.refused.list() == []


async def test_modules_that_fail_in_a_lost_image_are_not_remembered_for_it(tmp_path: Path) -> None:
    class Lost(Tree):
        async def import_modules(self, zygote: FakeZygote, request: ImportRequest, *, deadline_s: float) -> Imported:
            imported = await super().import_modules(zygote, request, deadline_s=deadline_s)
            self.nodes.clear()
            return imported

    tree = Lost()
    tree.harms["a.late"] = "OSError: [Errno 5] Input/output error"
    async with learner_of(tree, tmp_path / "learned.json") as learner:
        learner.observe("f", ImportView(frozenset({A})), tree.nodes[0], [SEEN[A], (A, "a.late", 0.1)])
        await settled(learner)
        assert tree.imports and not tree.nodes
        assert learner.profile.modules_for({A}) == ["a", "a.late"]


async def test_more_nodes_than_allowed_are_not_made(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path / "learned.json", max_nodes=2, policy="sock") as learner:
        await observed(learner, tree, A)
        await observed(learner, tree, B, function="g")
        assert len(tree.nodes) <= 2


async def test_what_was_learned_is_on_the_disk_and_read_by_the_next(tmp_path: Path) -> None:
    tree = Tree()
    tree.harms["b"] = ZygoteGone("the Zygote died")
    path = tmp_path / "learned.json"
    async with learner_of(tree, path) as learner:
        await observed(learner, tree, A, B)
    assert json.loads(path.read_text())["refused"][0][0] == B
    after = Tree()
    async with learner_of(after, path) as learner:
        assert learner.refused.is_refused(B)
        learner.consider(ImportView(frozenset({A, B})))
        await settled(learner)
        assert after.packages() == [set(), {A}] and after.imports[0][1] == ["a"]
    assert os.listdir(tmp_path) == ["learned.json"]


async def test_a_forgotten_package_takes_its_nodes_along_and_may_be_tried_again(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path / "learned.json") as learner:
        await observed(learner, tree, A)
        await observed(learner, tree, A, B, function="g")
        learner.refused.refuse(B, "once")
        learner.forget(A)
        learner.forget(B)
        assert tree.packages() == [set()]
        assert learner.profile.modules_for([A]) == [] and not learner.refused.is_refused(B)


async def test_what_differs_because_of_its_parent_is_made_from_another(tmp_path: Path) -> None:
    tree, view = Tree(), ImportView(frozenset({A, B}), environment=environments.BASE)
    async with learner_of(tree, tmp_path / "learned.json") as learner:
        await observed(learner, tree, A)
        for befores in ({A}, set()):
            learner.observe("g", view, tree.nodes[0], [SEEN[A], SEEN[B]])
            await settled(learner)
            (made,) = (node for node in tree.nodes if node.packages == {A, B})
            assert made.shared.before == befores and made.parent.packages == befores
            learner.differs(made, view.closure)
        assert made in tree.nodes, "it may serve others"


async def test_a_hanging_import_delays_no_other_zygote(tmp_path: Path) -> None:
    """Three distributions hang, one after the other; meanwhile others are learned, as failed plans reserve no memory."""
    tree, hanging = HangingTree(), [f"h{number}-1-aaaaaaaaaaaa" for number in range(3)]
    async with learner_of(tree, tmp_path / "learned.json", memory_mb=300) as learner:
        for key in hanging:
            learner.observe(key, ImportView(frozenset({key})), tree.nodes[0], [(key, name_of(key), 0.5)])
        async with asyncio.timeout(5):
            for _ in range(2):  # both learners try one; what fails by its deadline is searched for by one of them only
                await tree.hangs.acquire()
            tree.pass_deadline()
            while len(learner._failed) + learner._searching < 2:
                await asyncio.sleep(0)
            learner.observe("f", ImportView(frozenset({A})), tree.nodes[0], [SEEN[A]])
            tree.pass_deadline()
            while {A} not in tree.packages():
                tree.pass_deadline()
                await asyncio.sleep(0)
            assert learner._searching <= 1
            while len(learner.refused.list()) < 3:
                tree.pass_deadline()
                await asyncio.sleep(0)
        assert {entry.by_deadline for entry in learner.refused.list()} == {True}
        assert {entry.key for entry in learner.refused.list()} == set(hanging)


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

    def _zygote(self) -> Any:
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

        self.zygotes.append(Hanging(self, len(self.zygotes)))
        return self.zygotes[-1]


async def test_a_forgiven_package_is_tried_again(tmp_path: Path) -> None:
    tree = Tree()
    tree.harms["b"] = ZygoteGone("the Zygote died")
    async with learner_of(tree, tmp_path / "learned.json") as learner:
        await observed(learner, tree, B)
        assert [(entry.key, entry.node) for entry in learner.refused.list()] == [(B, "b")]
        tree.harms.clear()
        assert learner.forgive("a") == [] and learner.forgive("b") == [B]
        await observed(learner, tree, B, function="g")
        assert tree.packages() == [set(), {B}]


@pytest.mark.parametrize("policy", ["measured", "sock"])
async def test_a_zygote_without_uids_for_children_is_no_parent(tmp_path: Path, policy: str) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path / "learned.json", policy=policy) as learner:
        await observed(learner, tree, A)
        tree.zygotes[1].may_spawn = False
        await observed(learner, tree, A, B, function="g")
        assert tree.packages() == [set(), {A}, {A, B}] and tree.nodes[2].depth == 1
        tree.zygotes[0].may_spawn = False
        await observed(learner, tree, B, function="h")
        assert len(tree.nodes) == 3 and len(tree.zygotes) == 3
