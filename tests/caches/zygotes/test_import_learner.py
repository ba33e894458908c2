"""The learner alone: which Zygotes it makes of what was seen, and what it does when a package misbehaves in one.

The Zygotes here are scripts; the learner, its policies and its record are real."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sockd.caches.packages.distribution import name_of
from sockd.caches.packages.provided_names import Provided
from sockd.caches.zygotes import canary, import_learner
from sockd.caches.zygotes.import_learner import ImportLearner
from sockd.caches.zygotes.rate import DemandMeter
from sockd.caches.zygotes.soundness import ImportView
from sockd.caches.zygotes.top_level import Module, Step, TopLevel, import_id, path_id
from sockd.caches.zygotes.zygote_node import ZygoteNode
from sockd.farm.control import ZygoteGone, ZygoteLate
from sockd.farm.imported import Imported, ImportRequest, Observed
from sockd.images import environment as environments
from sockd.images.program import HOST_LINEAGE, Limits, Lineage, Program
from sockd.plain.config import ZygoteConfig
from sockd.plain.errors import InitFailed, NoCapacity, SandboxDied, SandboxFailed, TimedOut
from sockd.sandbox.exchange import Reply
from sockd_zygote import protocol
from sockd_zygote.own_functions import checks

pytestmark = pytest.mark.anyio

A, B, C = "a-1-aaaaaaaaaaaa", "b-1-bbbbbbbbbbbb", "c-1-cccccccccccc"
SECONDS = {A: 0.1, B: 0.2}


class FakeZygote:
    """A Zygote that does what the test's `Tree` says modules do."""

    def __init__(self, tree: Tree, number: int, inherited: Sequence[str] = ()) -> None:
        self.tree = tree
        self.name = f"zygote-{number}"
        self.pidfd = os.pidfd_open(os.getpid())
        self.imported = list(inherited)
        self.closed = False
        self.may_spawn = self.may_fork = True

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
    learner: Any = ImportLearner(ZygoteConfig(**config), tree, path, offer_of, open_files=1024)  # type: ignore[arg-type]
    try:
        yield learner
    finally:
        await learner.aclose()
        tree.close()


async def settled(learner: ImportLearner) -> None:
    """Until the learner has nothing more to do: its learners wait for the next closure."""
    async with asyncio.timeout(5):
        while learner._waiting or learner._under_way or learner._wake.is_set():
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
    """Of the imports of distributions."""
    return {import_id(name_of(key), key) for key in keys}


async def recorded(learner: ImportLearner, *keys: str, program: str = "f", top: TopLevel | None = None) -> ImportView:
    view = view_of(*keys, program=program)
    learner.record(view, top or top_of(*keys))
    await settled(learner)
    return view


async def test_what_a_top_level_imports_becomes_a_node_that_has_done_the_same(tmp_path: Path) -> None:
    made: list[ZygoteNode] = []
    tree = Tree()
    async with learner_of(tree, tmp_path) as learner:
        learner.on_made.append(made.append)
        view = await recorded(learner, B, A)
        assert tree.packages() == [set(), {A, B}]
        assert tree.imports == [([f"/packages/{A}", f"/packages/{B}"], ["b", "a"])], "in the function's order"
        node = tree.nodes[1]
        assert made == [node] and node.imports == ids(A, B)
        assert node.shared.loaded == {"a", "b"} and node.shared.order == ("b", "a")
        assert len(node.spares) == 1 and node.unique_bytes > 0
        assert node.refusal(view) == "", "it serves the version that it was made for, as far as its imports saw"
        await recorded(learner, A, B, program="g", top=top_of(B, A))
        assert len(tree.imports) == 1  # the same imports are served


async def test_a_node_on_top_of_another_has_what_that_has_loaded_and_seen(tmp_path: Path) -> None:
    tree = Tree()
    tree.missed = {"a": ["x"], "b": ["y"]}
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A)
        view = await recorded(learner, A, B, program="g")
        one, both = tree.nodes[1:]
        assert one.imports == ids(A) and both.imports == ids(A, B) and both.parent is one
        assert both.shared.order == ("a", "b") and both.shared.loaded == {"a", "b"}
        assert both.shared.seen.missed == {"x", "y"}
        assert both.refusal(view) == "" and both.packages == {A, B}
        await recorded(learner, A, B, C, program="h", top=top_of(C, B, A))
        assert tree.nodes[3].parent is both and tree.nodes[3].shared.order == ("a", "b", "c"), "as it was imported"


async def test_a_node_that_has_imported_in_another_order_is_no_parent_where_that_matters(tmp_path: Path) -> None:
    """Else a Zygote is made for a function that may not use it, and none after it."""
    tree = Tree()
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A)
        first, second = top_of(B, A).steps
        writes = msgspec.structs.replace(second, writes=("warnings.filters",))
        view = await recorded(learner, A, B, program="g", top=TopLevel((first, writes), frozenset({A, B})))
        assert "in another order" in tree.nodes[1].refusal(view)
        made = tree.nodes[2]
        assert made.shared.order == ("b", "a") and made.refusal(view) == "" and made.parent is tree.nodes[0]


async def test_a_node_whose_import_missed_what_the_function_has_is_no_parent(tmp_path: Path) -> None:
    """Its child has that on sys.path, but the import was done without."""
    tree = Tree()
    tree.missed["a"] = ["b"]
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A)
        view = await recorded(learner, A, B, program="g")
        assert "looked for b" in tree.nodes[1].refusal(view)
        made = tree.nodes[2]
        assert made.imports >= ids(A, B) and made.parent is tree.nodes[0] and made.refusal(view) == ""


async def test_a_function_without_imports_or_without_a_recording_makes_no_node(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path) as learner:
        learner.consider(view_of(A))
        await recorded(learner, A, top=TopLevel((), frozenset({A})))
        learner.observe("f", view_of(A), tree.nodes[0], [(A, "a", 0.1)])
        changed = msgspec.structs.replace(top_of(A).steps[0], before="os.environ")
        await recorded(learner, A, program="g", top=TopLevel((changed,), frozenset({A})))
        await recorded(learner, A, program="h", top=top_of(A, standard_only=True))
        await settled(learner)
        assert tree.packages() == [set()] and tree.imports == []


async def test_imports_behind_own_code_are_left_to_the_function(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path) as learner:
        first, second = top_of(A, B).steps
        top = TopLevel((first, msgspec.structs.replace(second, before="os.environ")), frozenset({A, B}))
        view = await recorded(learner, A, B, top=top)
        assert [modules for _, modules in tree.imports] == [["a"]] and tree.nodes[1].refusal(view) == ""


async def test_a_slow_module_of_the_standard_library_is_imported_ahead(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path) as learner:
        top = TopLevel((ASYNCIO, *top_of(A).steps), frozenset({A}), standard_only=True)
        view = await recorded(learner, A, top=top)
        assert [modules for _, modules in tree.imports] == [["asyncio"]]
        assert tree.nodes[1].packages == set() and tree.nodes[1].refusal(view) == ""


async def test_why_a_version_has_no_zygote_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Tree()
    monkeypatch.setitem(SECONDS, A, 0.001)
    async with learner_of(tree, tmp_path, max_nodes=1) as learner:
        view = await recorded(learner, A)
        assert learner.why_unmade(view) == "its imports take 1.0 ms, and a Zygote must save 3 ms"
        one, two = top_of(A, B).steps
        top = TopLevel((one, msgspec.structs.replace(two, before="os.environ['X']")), frozenset({A, B}))
        view = await recorded(learner, A, B, program="changing", top=top)
        assert learner.why_unmade(view) == (
            "the imports that may be shared take 1.0 ms, and a Zygote must save 3 ms: "
            "the function's own code changes os.environ['X'] before it imports b"
        )
        view = await recorded(learner, B, program="g")
        assert learner.why_unmade(view).startswith("there is no room for it")
        for may_spawn, words in ((False, import_learner.NO_UIDS), (True, import_learner.NO_ROOM)):
            tree.zygotes[0].may_spawn = may_spawn
            learner.consider(view)
            await settled(learner)
            assert learner.why_unmade(view) == words
        learner.recordings.note_failed(import_id("b", B), "ImportError: no such library")
        view = await recorded(learner, B, program="h")
        assert learner.why_unmade(view) == "b fails in a Zygote: ImportError: no such library"
        learner.refused.refuse(B, "it starts threads", module="b")
        assert learner.why_unmade(view) == "b is refused: b: it starts threads"
        view = await recorded(learner, C, program="i")
        learner._limits = dataclasses.replace(learner._limits, max_nodes=8)
        learner.consider(view)
        assert learner.why_unmade(view) == "one is being made" and learner.is_learning
        tree.spawn_harm = NoCapacity("no memory for a Zygote")
        await settled(learner)
        assert learner.why_unmade(view) == "it cannot be made: no memory for a Zygote"
        tree.spawn_harm = None
        learner.consider(view)
        await settled(learner)
        assert tree.nodes[1].refusal(view) == ""
        assert learner.why_unmade(view) == "it is considered after its next cold start"


async def test_with_the_last_function_that_may_use_it_a_zygote_ends(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path) as learner:
        views = {key: await recorded(learner, key, program=key) for key in (A, B, C)}
        fresh = view_of(C, program="new")
        learner.end_unused([views[A], fresh])
        assert tree.packages() == [set(), {A}, {C}], "what is not recorded yet may use what has its packages"
        assert [zygote.closed for zygote in tree.zygotes] == [False, False, True, False]
        learner.end_unused([dataclasses.replace(views[A], network="none"), dataclasses.replace(fresh, zygote="none")])
        assert tree.packages() == [set()] and not tree.zygotes[0].closed


async def test_switched_off_it_only_remembers(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path, enabled=False) as learner:
        view = await recorded(learner, A)
        assert learner.why_unmade(view) == "none is made: zygote.enabled is false"
        assert tree.packages() == [set()]
        assert view.top is not None and learner.recordings.find("f") is view.top


async def test_a_recording_is_known_to_the_next_daemon_and_to_no_other_version(tmp_path: Path) -> None:
    async with learner_of(Tree(), tmp_path) as learner:
        await recorded(learner, A)
    tree = Tree()
    async with learner_of(tree, tmp_path) as learner:
        again, other, apart = view_of(A), view_of(A, program="g"), view_of(A)
        apart.zygote = "none"
        for view in (again, other, apart):
            learner.adopt(view)
        assert again.top is not None and other.top is apart.top is None
        learner.consider(again)
        await settled(learner)
        assert tree.packages() == [set(), {A}] and tree.nodes[1].refusal(again) == ""


async def test_a_recording_that_cannot_be_written_is_used_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tree = Tree()
    (tmp_path / "recordings").write_text("")
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A)
        assert tree.packages() == [set(), {A}] and "a recording cannot be saved" in caplog.text


async def test_with_a_recording_each_node_is_asked_again(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A)
        view = view_of(A, program="g")
        assert "not recorded yet" in tree.nodes[1].refusal(view)
        learner.record(view, top_of(A))
        assert tree.nodes[1].refusal(view) == ""


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
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A, B)
        assert [(entry.key, entry.reason) for entry in learner.refused.list()] == [(B, reason)]
        assert tree.packages() == [set()]
        assert all(zygote.closed for zygote in tree.zygotes[1:])
        await recorded(learner, A, B, program="g")
        assert tree.packages() == [set(), {A}]  # without it


async def test_a_canary_that_does_not_answer_refuses_the_package(tmp_path: Path) -> None:
    tree = Tree()
    tree.canary_harms["a"] = TimeoutError()
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A)
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
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A)
        (refusal,) = learner.refused.list()
        assert refusal.reason.startswith(reason) and refusal.by_deadline == by_deadline
        assert tree.packages() == [set()] and tree.zygotes[1].closed


@pytest.mark.parametrize("told", [{**WELL, "numpy.dot": checks.ABSENT}, WELL])
def test_what_is_not_there_need_not_work(told: dict[str, str]) -> None:
    assert canary.failures(msgspec.json.encode(told)) == ""


async def test_a_canary_has_the_packages_of_its_zygote_and_no_code(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A)
        tried, spare = tree.spares
        assert tried.destroyed and tried.program is not None and tried.program.code is None
        init = protocol.decode_init(tried.program.init)
        assert (init["handler"], init["paths"], init["entry_file"]) == (canary.HANDLER, [f"/packages/{A}"], "")
        assert list(tree.nodes[1].spares) == [spare] and not spare.destroyed


async def test_a_zygote_that_ends_behind_its_canary_leaves_no_sandbox(tmp_path: Path) -> None:
    tree = Tree()
    tree.ends_behind_a_canary.add("a")
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A)
        assert tree.packages() == [set()] and tree.spares
        assert [spare for spare in tree.spares if not spare.destroyed] == []


async def test_packages_that_only_harm_together_are_all_refused(tmp_path: Path) -> None:
    class Together(Tree):
        async def fork_spare(self, zygote: FakeZygote) -> Any:
            if len(self.zygotes) in (2, 4):  # the first try and the last, not the search between them
                raise SandboxFailed("too much")
            return FakeSpare()

    tree = Together()
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A, B)
        assert {entry.key for entry in learner.refused.list()} == {A, B}
        assert {entry.reason for entry in learner.refused.list()} == {"only together with others: too much"}


async def test_a_place_on_sys_path_is_no_package_that_could_be_refused(tmp_path: Path) -> None:
    class Together(Tree):
        async def fork_spare(self, zygote: FakeZygote) -> Any:
            if len(self.zygotes) in (3, 5):  # the second node's first try and its last, not the search between them
                raise SandboxFailed("too much")
            return FakeSpare()

    tree = Together()
    tree.missed["a"] = ["b"]
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A)
        beside = TopLevel(top_of(A).steps, frozenset({A, B}))
        await recorded(learner, A, B, program="g", top=beside)
        assert len(tree.zygotes) == 5 and tree.packages() == [set(), {A}]
        assert {entry.key for entry in learner.refused.list()} == {A} and not learner.recordings.failed


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
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, *packages)
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
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A)
        assert learner.refused.list() == [] and tree.packages() == [set()]
        tree.spawn_harm = None
        tree.canary_harms.clear()
        await recorded(learner, A, program="g")
        assert tree.packages() == [set(), {A}]


async def test_a_parent_that_dies_meanwhile_is_blamed_on_no_package(tmp_path: Path) -> None:
    tree = Tree()
    tree.spawn_harm = ZygoteGone("the Zygote is gone")
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A)
        assert learner.refused.list() == []


async def test_a_parent_that_ends_during_the_search_is_blamed_on_no_package(tmp_path: Path) -> None:
    class Lost(Tree):
        async def import_modules(self, zygote: FakeZygote, request: ImportRequest, *, deadline_s: float) -> Imported:
            if len(self.zygotes) > 2:  # those of the root and of the first try
                self.nodes.clear()
            raise ZygoteGone("the Zygote died")

    tree = Lost()
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A)
        assert not tree.nodes and learner.refused.list() == []


ASYNCIO = Step("asyncio", "", -1, "", (), (Module("", "asyncio", 0.05),))


async def test_a_module_of_the_standard_library_that_fails_is_left_to_functions(tmp_path: Path) -> None:
    tree, top = Tree(), TopLevel((ASYNCIO, *top_of(A).steps), frozenset({A}))
    tree.harms["asyncio"] = "OSError: not here"
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A, top=top)
        reason = "asyncio: it cannot be imported in a Zygote: OSError: not here"
        assert learner.recordings.failed == {ASYNCIO.id: reason.partition(": ")[2]} and learner.refused.list() == []
        await recorded(learner, A, program="g", top=top)
        assert tree.nodes[1].shared.order == ("a",)
    later = Tree()
    async with learner_of(later, tmp_path) as learner:
        await recorded(learner, A, program="h", top=top)
        assert later.nodes[1].shared.order == ("a",)
        assert learner.forgive("a") == [] and learner.recordings.failed
        learner.forgive(None)
        await recorded(learner, A, program="i", top=top)
        assert later.nodes[-1].shared.loaded == {"asyncio", "a"}


async def test_modules_that_fail_in_a_lost_image_are_not_remembered_for_it(tmp_path: Path) -> None:
    class Lost(Tree):
        async def import_modules(self, zygote: FakeZygote, request: ImportRequest, *, deadline_s: float) -> Imported:
            imported = await super().import_modules(zygote, request, deadline_s=deadline_s)
            if len(self.zygotes) > 2:  # the search has begun
                self.nodes.clear()
            return imported

    tree = Lost()
    tree.harms["asyncio"] = "OSError: [Errno 5] Input/output error"
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A, top=TopLevel((ASYNCIO,), frozenset({A})))
        assert tree.imports and not tree.nodes
        assert not learner.recordings.failed


async def test_more_nodes_than_allowed_are_not_made(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path, max_nodes=2, policy="sock") as learner:
        await recorded(learner, A)
        await recorded(learner, B, program="g")
        assert len(tree.nodes) <= 2


async def test_what_was_learned_is_on_the_disk_and_read_by_the_next(tmp_path: Path) -> None:
    tree = Tree()
    tree.harms["b"] = ZygoteGone("the Zygote died")
    async with learner_of(tree, tmp_path) as learner:
        learner.recordings.note_verified("node/f")
        await recorded(learner, A, B)
    assert json.loads((tmp_path / "learned.json").read_text())["refused"][0][0] == B
    after = Tree()
    async with learner_of(after, tmp_path) as learner:
        assert learner.refused.is_refused(B) and list(learner.recordings.verified) == ["node/f"]
        view = view_of(A, B)
        learner.adopt(view)
        learner.consider(view)
        await settled(learner)
        assert after.packages() == [set(), {A}] and after.imports[0][1] == ["a"]
    assert sorted(os.listdir(tmp_path)) == ["learned.json", "recordings"]


async def test_the_zygotes_of_the_last_daemon_are_made_again_as_they_were(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, B)
        await recorded(learner, A, B, program="g")
        await recorded(learner, C, program="gone")
        before = {node.identity: node.imports for node in tree.nodes[1:3]}
        assert [node.shared.order for node in tree.nodes[1:]] == [("b",), ("b", "a"), ("c",)]
    after = Tree()
    async with learner_of(after, tmp_path) as learner:
        views = [view_of(B), view_of(A, B, program="g"), view_of(C, program="another"), view_of(A, program="new")]
        for view in views:
            learner.adopt(view)
        await learner.rebuild(views, deadline_s=5.0)
        assert {node.identity: node.imports for node in after.nodes[1:]} == before, "what was verified holds for them"
        child = next(node for node in after.nodes if len(node.imports) == 2)
        assert child.parent.imports == ids(B) and after.imports[0][1] == ["b"]
        assert [node.refusal(view) for node, view in zip(after.nodes[1:], views, strict=False)] == ["", ""]
        await learner.rebuild(views, deadline_s=5.0)
        assert len(after.nodes) == 3, "once"


async def test_a_zygote_that_fails_now_is_not_made_again_and_stops_no_other(tmp_path: Path) -> None:
    async with learner_of(Tree(), tmp_path) as learner:
        await recorded(learner, A)
        await recorded(learner, B, program="g")
    after = Tree()
    after.harms["a"] = ZygoteGone("the Zygote died")
    async with learner_of(after, tmp_path) as learner:
        views = [view_of(A), view_of(B, program="g")]
        for view in views:
            learner.adopt(view)
        await learner.rebuild(views, deadline_s=5.0)
        assert after.packages() == [set(), {B}]
        assert learner._under_way == [] and all(zygote.closed for zygote in after.zygotes[1:] if "a" in zygote.imported)


async def test_a_daemon_that_ends_while_zygotes_are_made_again_keeps_them_for_the_next(tmp_path: Path) -> None:
    async with learner_of(Tree(), tmp_path) as learner:
        await recorded(learner, "h-1-aaaaaaaaaaaa")
    for _ in range(2):
        hanging = HangingTree()
        async with learner_of(hanging, tmp_path) as learner:
            view = view_of("h-1-aaaaaaaaaaaa")
            learner.adopt(view)
            await learner.rebuild([view], deadline_s=0.0)
            await hanging.hangs.acquire()
        assert hanging.packages() == [set()] and all(zygote.closed for zygote in hanging.zygotes)
        assert [node["program"] for node in json.loads((tmp_path / "learned.json").read_text())["nodes"]] == ["f"]


async def test_a_forgotten_package_takes_its_nodes_along_and_may_be_tried_again(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A)
        await recorded(learner, A, B, program="g")
        learner.refused.refuse(B, "once")
        learner.forget(A)
        learner.forget(B)
        assert tree.packages() == [set()]
        assert learner.recordings.find("f") is None and not learner.refused.is_refused(B)
        assert os.listdir(tmp_path / "recordings") == []


async def test_what_differs_is_made_with_its_own_path_and_then_without_its_parent(tmp_path: Path) -> None:
    tree, view, path = Tree(), view_of(A, B, program="g"), path_id(frozenset({A, B}))
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A)
        learner.record(view, top_of(A, B))
        made = []
        for _ in range(4):
            await settled(learner)
            node = tree.nodes[-1]
            made.append((node.imports - ids(A, B), node.parent.imports if node.parent else None))
            learner.differs(node, view)
            learner.consider(view)
        assert made[:3] == [(set(), ids(A)), ({path}, ids(A)), ({path}, set())]
        assert made[3] == made[2], "nothing else is left to be tried: it may serve others"


async def test_a_node_that_differs_serves_others(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, A)
        view = await recorded(learner, A, C, program="g")
        shared = tree.nodes[1]
        learner.differs(shared, view)
        assert view.top is not None
        assert shared in tree.nodes and not learner._sharing.serves(shared.imports, view.top.wanted)
        assert learner._sharing.serves(shared.imports, top_of(A).wanted)


async def test_what_new_sandboxes_imported_is_kept_for_people_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_learner, "MAX_SEEN", 3)
    tree, view = Tree(), view_of(A)
    async with learner_of(tree, tmp_path) as learner:
        for number in range(5):
            learner.observe(f"f{number}", view, tree.nodes[0], [(A, "a", 0.1), (B, "b", 0.1)])
        assert list(learner.seen) == ["f2", "f3", "f4"]
        assert learner.seen["f2"] == [Module(A, "a", 0.1)], "of a distribution that it does not have none is believed"
        learner.observe("f2", view, tree.nodes[0], [])
        assert learner.seen["f2"], "a start that inherited everything does not hide what it imports"
        learner.observe("f5", view, tree.nodes[0], [])
        assert learner.seen["f5"] == [] and len(learner.seen) == 3


async def test_a_hanging_import_delays_no_other_zygote(tmp_path: Path) -> None:
    """Three distributions hang, one after the other; meanwhile others are learned, as failed plans reserve no memory."""
    tree, hanging = HangingTree(), [f"h{number}-1-aaaaaaaaaaaa" for number in range(3)]
    async with learner_of(tree, tmp_path, memory_mb=300) as learner:
        for key in hanging:
            learner.record(view_of(key, program=name_of(key)), top_of(key))
        async with asyncio.timeout(5):
            for _ in range(2):  # both learners try one; what fails by its deadline is searched for by one of them only
                await tree.hangs.acquire()
            tree.pass_deadline()
            while len(learner._failed) + learner._searching < 2:
                await asyncio.sleep(0)
            learner.record(view_of(A), top_of(A))
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


async def test_a_forgiven_package_is_tried_again(tmp_path: Path) -> None:
    tree = Tree()
    tree.harms["b"] = ZygoteGone("the Zygote died")
    async with learner_of(tree, tmp_path) as learner:
        await recorded(learner, B)
        assert [(entry.key, entry.node) for entry in learner.refused.list()] == [(B, "b")]
        tree.harms.clear()
        assert learner.forgive("a") == [] and learner.forgive("b") == [B]
        await recorded(learner, B, program="g")
        assert tree.packages() == [set(), {B}]


@pytest.mark.parametrize("policy", ["measured", "sock"])
async def test_a_zygote_without_uids_for_children_is_no_parent(tmp_path: Path, policy: str) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path, policy=policy) as learner:
        await recorded(learner, A)
        tree.zygotes[1].may_spawn = False
        await recorded(learner, A, B, program="g")
        assert tree.packages() == [set(), {A}, {A, B}] and tree.nodes[2].depth == 1
        tree.zygotes[0].may_spawn = False
        await recorded(learner, B, program="h")
        assert len(tree.nodes) == 3 and len(tree.zygotes) == 3
