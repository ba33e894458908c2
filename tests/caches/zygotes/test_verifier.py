"""The verifier alone: what it records and verifies, when, and what it makes of answers. The sandboxes here are scripts."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sockd.caches.zygotes import verifier as verifiers
from sockd.caches.zygotes.recordings import Recordings, load_learned, save_learned
from sockd.caches.zygotes.refusals import Refusals
from sockd.caches.zygotes.soundness import ImportView, Preimported
from sockd.caches.zygotes.top_level import Module, Step, TopLevel, import_id
from sockd.caches.zygotes.verifier import PENDING, Unverified, Verifier, pair_of
from sockd.caches.zygotes.zygote_node import ZygoteNode
from sockd.farm.control import ZygoteGone
from sockd.images.program import Limits, Lineage, Program
from sockd.plain.config import ZygoteConfig
from sockd.plain.errors import FunctionFailed, ImageUnavailable, NoCapacity, SandboxFailed, TimedOut
from sockd.sandbox.exchange import Reply
from sockd_zygote import protocol
from sockd_zygote.own_functions.checks import BEGUN

pytestmark = pytest.mark.anyio

A, B = "a-1-aaaaaaaaaaaa", "b-1-bbbbbbbbbbbb"
LIMITS = Limits(memory_bytes=128 << 20, pids=64, cpus=1.0, tmp_bytes=1 << 20, tmp_inodes=64)
INIT = protocol.encode_init({"name": "f", "handler": "f:f", "entry_file": "f.py", "env": {"X": "1"}})
PROGRAM = Program(Path("/none"), INIT, LIMITS, init_timeout_s=1, timeout_s=1, log_bytes=1, name="f")
STEPS: Any = [
    {"name": name, "key": key, "outer": -1, "before": "", "writes": [], "modules": [[key, name, 0.1]]}
    for name, key in (("a", A), ("b", B))
]
TOP = TopLevel(
    tuple(Step(each, key, -1, "", (), (Module(key, each, 0.1),)) for each, key in zip("ab", (A, B), strict=True))
)


def view_of(program: str = "p", *, is_recorded: bool = True, **options: Any) -> ImportView:
    """A version with A and B, whose top level imports both."""
    options = {"zygote": "packages", "program": program, **options}
    return ImportView(frozenset({A, B}), top=TOP if is_recorded else None, **options)


def node_of(name: str, parent: ZygoteNode | None, **keys: str) -> ZygoteNode:
    """A node that has imported these modules of these distributions."""
    imports = frozenset(import_id(module, key) for module, key in keys.items())
    shared = Preimported(frozenset(keys.values()), loaded=frozenset(keys), order=tuple(keys))
    zygote: Any = SimpleNamespace(name=name)
    return ZygoteNode(zygote, frozenset(keys.values()), parent, imports, shared=shared)


class FakeSandbox:
    def __init__(self, tree: FakeTree, node: ZygoteNode) -> None:
        self._tree, self._node = tree, node

    async def request(self, request_id: bytes, event: bytes) -> Reply:
        asked = msgspec.json.decode(event)
        self._tree.asked.append((self._node.id, asked))
        if self._tree.gate is not None:
            await self._tree.gate.wait()
        answer = self._tree.answer(self._node, asked)
        if isinstance(answer, Reply):
            return answer
        names = {name: {"x": [value, value]} for name, value in answer.items()}
        told = {"digests": answer, "names": names, "complete": self._tree.complete, "owners": {"a": A}, "pids": [7]}
        steps = self._tree.steps if asked["record"] else []
        return Reply(msgspec.json.encode({**told, "cpu_s": 0.5, "steps": steps, "failure": self._tree.failure}))

    async def why_lost(self) -> ImageUnavailable | None:
        return self._tree.lost

    def destroy(self) -> None:
        self._tree.open -= 1


class FakeTree:
    """As much of a ZygoteTree as the verifier sees: a root, a node with a, and one with both on top of it."""

    def __init__(self) -> None:
        self.root = node_of("root", None)
        self.node = node_of("of-a", self.root, a=A)
        self.both = node_of("of-both", self.node, a=A, b=B)
        self.nodes = [self.root, self.node]
        self.asked: list[tuple[str, Any]] = []
        self.open = 0
        self.is_learning = False
        self.gate: asyncio.Event | None = None
        self.harm: Exception | None = None
        self.lost: ImageUnavailable | None = None
        self.fork: Any = {"a": "1"}
        self.own: Any = {"a": "1"}
        self.steps, self.failure, self.complete = STEPS, "", True
        self.programs: list[Program] = []

    def root_of(self, lineage: Lineage) -> ZygoteNode:
        return self.root

    def answer(self, node: ZygoteNode, asked: Any) -> Any:
        return self.own if node is self.root else self.fork

    async def fork_apart(self, node: ZygoteNode, program: Program, *, deadline_s: float = 0.0) -> Any:
        if self.harm is not None:
            raise self.harm
        self.programs.append(program)
        self.open += 1
        return FakeSandbox(self, node)

    def best(self, view: ImportView) -> ZygoteNode:
        if view.top is None:
            return self.root
        wanted = view.top.wanted
        serving = [node for node in self.nodes if node.imports <= wanted and not (node.imports and node.refusal(view))]
        return max(serving, key=lambda node: len(node.imports))

    def passed_over(self, view: ImportView) -> list[tuple[ZygoteNode, str]]:
        if view.top is None:
            return []
        fewest = len(self.best(view).imports)
        larger = [node for node in self.nodes if fewest < len(node.imports) and node.imports <= view.top.asked_for]
        larger.sort(key=lambda node: -len(node.imports))
        return [(node, reason) for node in larger if (reason := node.refusal(view))]


class Later:
    """What the verifier tries again when the test says so. Stands for asyncio and its loop, and is both in all else."""

    def __init__(self) -> None:
        self.waiting: list[Later.Handle] = []

    class Handle:
        def __init__(self, later: Later, delay_s: float, callback: Callable[[Any], None], work: Any) -> None:
            self.later, self.delay_s = later, delay_s
            self.callback, self.work = callback, work

        def cancel(self) -> None:
            if self in self.later.waiting:  # it is over otherwise
                self.later.waiting.remove(self)

    def get_running_loop(self) -> Later:
        return self

    def call_later(self, delay_s: float, callback: Callable[[Any], None], work: Any) -> Later.Handle:
        self.waiting.append(self.Handle(self, delay_s, callback, work))
        return self.waiting[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio.get_running_loop() if name.startswith("create_") else asyncio, name)


class Ground:
    def __init__(self, recordings: Recordings, later: Later, **config: Any) -> None:
        self.tree = FakeTree()
        self.later = later
        self.recordings = recordings
        self.refused: list[tuple[str, bool]] = []
        self.recorded: list[tuple[ImportView, TopLevel]] = []
        tree: Any = self.tree
        self.verifier = Verifier(
            ZygoteConfig(**config),
            tree,
            recordings,
            on_recorded=self._record,
            is_learning=lambda: self.tree.is_learning,
            on_refused=lambda node, view, has_served: self.refused.append((node.id, has_served)),
        )
        for node in (*self.tree.nodes, self.tree.both):
            node.unverified = self.verifier.unverified

    def _record(self, view: ImportView, top: TopLevel) -> None:
        """As `ImportLearner.record`."""
        self.recorded.append((view, top))
        view.top = top
        for node in self.tree.nodes:
            node.verdicts.pop(view, None)

    def add(self, node: ZygoteNode) -> None:
        """A learner has made it."""
        self.tree.nodes.append(node)
        self.verifier.consider_node(node)

    def start(self, view: ImportView, node: ZygoteNode | None = None) -> None:
        """A cold start of a version is over."""
        self.verifier.consider(node or self.tree.root, view, PROGRAM, "f@1")

    async def settle(self) -> None:
        while self.verifier.pending:
            await asyncio.sleep(0)

    async def again(self) -> None:
        """The time of all that waits to be tried again has come."""
        for handle in list(self.later.waiting):
            handle.cancel()
            handle.callback(handle.work)
        await self.settle()

    def let_refusals_expire(self) -> None:
        (refused,) = self.verifier.refused()
        self.verifier._refusals._clock = lambda: refused.refusal.retry_s + 1
        assert self.verifier.refused() == []

    def delays(self) -> list[float]:
        """After how many seconds what failed is tried again."""
        return [handle.delay_s for handle in self.later.waiting]

    async def verify(self, view: ImportView) -> str:
        """What its node says of a view when that has been verified."""
        self.start(view)
        await self.settle()
        return str(self.tree.node.refusal(view))

    def counted(self) -> dict[str, int]:
        return {outcome: count for outcome, count in self.verifier.outcomes.items() if count}

    def where(self) -> list[str]:
        """The Zygotes of all trials, in order."""
        return [where for where, _ in self.tree.asked]


@asynccontextmanager
async def ground(
    monkeypatch: pytest.MonkeyPatch, recordings: Recordings | None = None, **config: Any
) -> AsyncIterator[Ground]:
    monkeypatch.setattr(verifiers, "APART_S", 0.0)
    later = Later()
    monkeypatch.setattr(verifiers, "asyncio", later)
    made = Ground(recordings or Recordings(Path("/none")), later, **config)
    try:
        yield made
    finally:
        await made.verifier.aclose()
        assert made.tree.open == 0, "a sandbox was left"


# -- recordings


async def test_the_first_start_of_a_version_is_recorded_in_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        g.tree.nodes.remove(g.tree.node)
        view = view_of(is_recorded=False, variables=frozenset({("X", "1")}))
        g.start(view)
        await g.settle()
        assert g.where() == ["root"] and g.counted() == {"recorded": 1}
        ((recorded, top),) = g.recorded
        assert recorded is view and [step.id for step in top.steps] == [import_id("a", A), import_id("b", B)]
        assert top.closure == view.closure and not top.standard_only
        (_, asked), (program,) = g.tree.asked[0], g.tree.programs
        assert asked["record"] is True and asked["variables"] == ["X"]
        assert asked["function"] == {"handler": "f:f", "code": "", "entry_file": "f.py", "app": ""}
        init = protocol.decode_init(program.init)
        assert (init["handler"], init["entry_file"], init["env"]) == (verifiers.HANDLER, "", {b"X": b"1"})
        g.start(view)
        assert g.verifier.pending == 0, "once is enough"


@pytest.mark.parametrize(("zygote", "standard_only"), [("packages", False), ("stdlib", True)])
async def test_a_recording_knows_whether_packages_may_be_imported_ahead(
    monkeypatch: pytest.MonkeyPatch, zygote: str, standard_only: bool
) -> None:
    async with ground(monkeypatch) as g:
        g.start(view_of(is_recorded=False, zygote=zygote))
        await g.settle()
        assert g.recorded[0][1].standard_only is standard_only


async def test_nothing_is_recorded_for_a_function_that_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        g.start(view_of(is_recorded=False, zygote="none"))
        g.verifier.consider(None, view_of(is_recorded=False), PROGRAM, "f@1")  # a program of an image
        assert g.verifier.pending == 0


async def test_what_was_recorded_is_verified_at_once_with_the_start_that_was_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ground(monkeypatch) as g:
        view = view_of(is_recorded=False)
        g.start(view)
        await g.settle()
        assert g.where() == ["root", "of-a"] and g.counted() == {"recorded": 1, "alike": 1}
        assert [asked["record"] for _, asked in g.tree.asked] == [True, False]
        assert g.tree.best(view) is g.tree.node


FAILS = Reply(error=FunctionFailed("ValueError", "a secret"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"failure": "ModuleNotFoundError"}, "it raises ModuleNotFoundError"),
        ({"own": FAILS}, "a start of its own did not come to its end: ValueError"),
        ({"steps": [{"name": "a"}]}, "the answer of a trial is no recording"),
        ({"steps": [{**STEPS[0], "key": "c-1-cccccccccccc"}]}, "distributions that the function does not have"),
        ({"own": Reply(b"[]")}, "the answer of a trial is not a fingerprint"),
    ],
)
async def test_a_top_level_that_cannot_be_recorded_is_tried_again_later_and_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, change: dict[str, Any], words: str
) -> None:
    async with ground(monkeypatch) as g:
        view, before = view_of(is_recorded=False), {name: getattr(g.tree, name) for name in change}
        vars(g.tree).update(change)
        g.start(view)
        await g.settle()
        assert g.recorded == [] and g.delays() == [10]
        assert words in caplog.text and "a secret" not in caplog.text
        why = g.verifier.why_unrecorded(view)
        assert why.startswith("its top level could not be recorded: ") and words in why
        assert why.endswith("; it is tried again in 10 s or after its next cold start") and "a secret" not in why
        assert not g.verifier.has_work, "nobody waits for what has failed"
        for delay_s in (20, 40):
            await g.again()
            assert g.delays() == [delay_s]
        vars(g.tree).update(before)
        g.start(view)
        assert g.verifier.pending == 1 and g.delays() == [], "a start of the function does not wait for that"
        await g.settle()
        assert g.recorded[0][0] is view and g.counted() == {"late": 3, "recorded": 1, "alike": 1}
        assert "could not" not in g.verifier.why_unrecorded(view)


async def test_why_a_version_is_not_recorded_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        view = view_of(is_recorded=False)
        assert g.verifier.why_unrecorded(view) == "its top level is recorded after its next cold start"
        g.verifier.leave_out(view, "it initializes in 1.0 ms")
        assert g.verifier.why_unrecorded(view) == "its top level is not recorded: it initializes in 1.0 ms"
        g.tree.gate = asyncio.Event()
        g.start(view)
        assert g.verifier.why_unrecorded(view) == "its top level waits to be recorded" and g.verifier.has_work
        while not g.tree.asked:
            await asyncio.sleep(0)
        assert g.verifier.why_unrecorded(view) == "its top level is being recorded" and g.verifier.has_work
        g.tree.gate.set()
        await g.settle()
        assert not g.verifier.has_work
    async with ground(monkeypatch, enabled=False) as g:
        assert "zygote.enabled" in g.verifier.why_unrecorded(view)


async def test_a_recording_waits_for_no_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, "LOOK_S", 0.0)
    async with ground(monkeypatch, verifiers=1) as g:
        g.tree.is_learning = True
        g.start(view_of("one"))
        g.start(view_of("two"))
        g.start(view_of("three", is_recorded=False))
        while not g.recorded:
            await asyncio.sleep(0)
        assert g.where() == ["root"] and g.tree.asked[0][1]["record"] and g.verifier.pending >= 2
        g.tree.is_learning = False
        await g.settle()
        assert g.counted() == {"recorded": 1, "alike": 3}


async def test_recordings_and_verifications_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while learners are busy, as they are with what was recorded."""
    async with ground(monkeypatch, verifiers=1) as g:
        g.tree.is_learning, g.tree.gate = True, asyncio.Event()
        known = [view_of(name) for name in ("one", "two")]
        fresh = [view_of(name, is_recorded=False) for name in ("three", "four", "five")]
        for view in (*fresh, *known):
            g.start(view)
        g.tree.gate.set()
        while len(g.recorded) < len(fresh):
            await asyncio.sleep(0)
        assert [asked["record"] for _, asked in g.tree.asked] == [True, False, False, True, False, False, True]
        assert g.where() == ["root", "root", "of-a", "root", "root", "of-a", "root"]
        assert [view for view, _ in g.recorded] == fresh, "the one that has waited longest first"
        g.tree.is_learning = False
        await g.settle()
        assert g.counted() == {"recorded": 3, "alike": 5}


# -- verifications


async def test_a_node_serves_a_version_when_the_start_of_its_own_is_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        view = view_of(variables=frozenset({("X", "1")}))
        assert g.tree.node.refusal(view) == PENDING and g.tree.best(view) is g.tree.root
        assert await g.verify(view) == ""
        assert g.tree.best(view) is g.tree.node
        assert g.counted() == {"alike": 1} and g.verifier.cpu_s == 1.0
        assert g.tree.node.refusal(view_of()) == "", "another view of the same version"
        assert g.tree.node.refusal(view_of("q")) == PENDING, "what else the same packages are imported for is another"
        assert g.where() == ["root", "of-a"]
        assert {tuple(asked["variables"]) for _, asked in g.tree.asked} == {("X",)}


async def test_the_version_that_a_zygote_was_made_for_is_verified_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        view = view_of()
        g.start(view)
        await g.settle()
        g.add(g.tree.both)  # which has all imports of this version and no others
        assert g.tree.both.refusal(view) == PENDING and g.verifier.pending == 1
        g.tree.fork = {"a": "2"}
        await g.settle()
        assert "a.x: 2 instead of 1" in g.tree.both.refusal(view)
        assert g.tree.best(view) is g.tree.node


async def test_the_start_of_a_versions_own_is_made_once_for_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        view = view_of(is_recorded=False)
        g.start(view)
        await g.settle()
        g.add(g.tree.both)
        await g.settle()
        assert g.where() == ["root", "of-a", "of-both"] and g.tree.best(view) is g.tree.both


async def test_of_many_versions_the_last_starts_of_their_own_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, "MOST_OWN", 2)
    async with ground(monkeypatch) as g:
        views = [view_of(str(number)) for number in range(3)]
        for view in views:
            await g.verify(view)
        g.tree.nodes.append(g.tree.both)
        del g.tree.asked[:]
        for view in reversed(views):
            g.start(view, g.tree.node)
            await g.settle()
        assert g.where() == ["of-both", "of-both", "root", "of-both"]


async def test_a_new_node_is_verified_for_the_versions_that_it_would_serve_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ground(monkeypatch) as g:
        one, other, unrecorded = view_of("one"), view_of("other"), view_of("three", is_recorded=False)
        apart = view_of("apart", network="none")
        less = view_of("less")
        less.top = TopLevel(TOP.steps[:1])
        g.tree.gate = asyncio.Event()
        for view in (one, other, unrecorded, apart, less):
            g.start(view)
        gone = view_of("gone")
        g.start(gone)
        g.tree.gate.set()
        await g.settle()
        unrecorded.top = None
        del gone, view
        gc.collect()
        del g.tree.asked[:]
        g.add(g.tree.both)
        assert g.verifier.pending == 2
        await g.settle()
        assert g.where() == ["of-both", "of-both"]
        assert [g.tree.best(view) for view in (one, other)] == [g.tree.both] * 2


async def test_the_largest_node_is_verified_first_and_makes_the_others_needless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ground(monkeypatch) as g:
        g.tree.nodes.append(g.tree.both)
        view = view_of()
        g.start(view)
        await g.settle()
        g.start(view, g.tree.both)
        assert g.verifier.pending == 0
        assert g.where() == ["root", "of-both"] and g.tree.best(view) is g.tree.both


async def test_a_smaller_node_is_verified_while_the_larger_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        g.tree.nodes.append(g.tree.both)
        g.tree.answer = lambda node, asked: {"a": "2" if node is g.tree.both else "1"}  # type: ignore[method-assign]
        view = view_of()
        for _ in range(2):
            g.start(view)
            await g.settle()
        assert g.tree.best(view) is g.tree.node and g.refused == [("of-both", False)]


async def test_what_soundness_refuses_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        changed = msgspec.structs.replace(TOP.steps[0], before="os.environ")
        view = view_of()
        view.top = TopLevel((changed, TOP.steps[1]))
        g.start(view)
        assert g.verifier.pending == 0 and not isinstance(g.tree.node.refusal(view), Unverified)


async def test_a_start_costs_a_look_at_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        view = view_of()
        await g.verify(view)
        made = len(g.tree.programs)
        g.tree.node.unverified = lambda node, view: "it was asked again"
        for _ in range(100):
            assert g.tree.node.refusal(view) == ""
            g.start(view, g.tree.node)
        assert len(g.tree.programs) == made and g.verifier.pending == 0


# -- differences


async def test_a_difference_is_the_reason_until_it_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        view = view_of()
        g.tree.own = {"a": "2"}
        assert await g.verify(view) == "a start of its own differs: a.x: 1 instead of 2"
        assert g.refused == [("of-a", False)] and g.counted() == {"different": 1}
        g.start(view)
        assert g.verifier.pending == 0, "it is not tried again before its time"
        (refused,) = g.verifier.refused()
        assert (refused.owner, refused.refusal.node, refused.refusal.by_deadline) == (A, "a", False)
        assert g.verifier.forgive("none") == []
        assert g.verifier.forgive("a") == [A]
        assert g.tree.node.refusal(view) == PENDING
        g.tree.own = {"a": "1"}
        g.verifier._own.clear()
        assert await g.verify(view) == ""


async def test_a_difference_is_one_from_all_of_several_starts_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What depends on addresses may be equal in two starts by chance: they are moved, another number in each."""
    async with ground(monkeypatch) as g:
        g.tree.own = {"a": "2"}
        await g.verify(view_of())
        assert g.where() == ["root", "of-a", "of-a", *["root"] * verifiers.SURE]
        assert [asked["moved"] for _, asked in g.tree.asked] == [0, 0, 0, *range(verifiers.SURE)]
        assert [asked["names_of"] for _, asked in g.tree.asked] == [[], [], *[["a"]] * (1 + verifiers.SURE)]
        assert [asked["pids"] for _, asked in g.tree.asked] == [[], [], *[[7]] * (1 + verifiers.SURE)]


@pytest.mark.parametrize("alike_in", range(verifiers.SURE))
async def test_what_one_of_them_has_as_the_fork_is_no_difference(
    monkeypatch: pytest.MonkeyPatch, alike_in: int
) -> None:
    async with ground(monkeypatch) as g:
        values = iter(["2", *("1" if number == alike_in else "2" for number in range(verifiers.SURE))])
        g.tree.answer = lambda node, asked: {"a": "1" if node is g.tree.node else next(values)}  # type: ignore[method-assign]
        assert await g.verify(view_of()) == ""
        assert g.where().count("root") == 2 + alike_in


async def test_what_two_starts_have_otherwise_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        times = iter("234")
        g.tree.answer = lambda node, asked: {"a": "1" if node is g.tree.node else next(times)}  # type: ignore[method-assign]
        assert await g.verify(view_of()) == ""
        assert [asked["moved"] for _, asked in g.tree.asked] == [0, 0, 0, 0, 1]


async def test_starts_whose_clocks_are_compared_are_more_than_a_second_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        waited: list[str] = []

        async def until(time_s: float) -> None:
            waited.append(g.where()[-1])

        monkeypatch.setattr(g.verifier, "_until", until)
        g.tree.own = {"a": "2"}
        await g.verify(view_of())
        assert waited == ["root"], "once, behind the first of them"


async def test_more_differences_than_can_be_told_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        g.tree.own, g.tree.complete = {"a": "2", "b": "2"}, False
        assert await g.verify(view_of()) == "a start of its own differs: 2 modules differ, a for one"


# -- what goes wrong

LATE = Reply(error=TimedOut("Task timed out", "timeout_s"), log=f"\n{BEGUN}import a\n".encode())


async def test_a_trial_that_does_not_end_is_tried_again_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        view, g.tree.fork = view_of(), LATE
        assert "import a: a fork did not come to its end: Task timed out" in await g.verify(view)
        (refused,) = g.verifier.refused()
        assert refused.refusal.by_deadline and g.counted() == {"late": 1}
        assert g.delays() == [refused.refusal.retry_s - refused.refusal.time_s]
        g.let_refusals_expire()
        g.tree.fork = {"a": "1"}
        await g.again()
        assert g.tree.node.refusal(view) == "" and g.tree.best(view) is g.tree.node


async def test_a_refusal_whose_time_is_over_is_verified_at_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        view, g.tree.fork = view_of(), {"a": "2"}
        await g.verify(view)
        g.start(view)
        assert g.verifier.pending == 0
        g.let_refusals_expire()
        g.tree.fork = {"a": "1"}
        g.start(view)
        assert g.verifier.pending == 1 and g.tree.node.refusal(view) == PENDING
        await g.settle()
        assert g.tree.node.refusal(view) == ""


async def test_a_trial_that_ends_with_its_image_says_nothing_of_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        g.tree.own, g.tree.lost = LATE, ImageUnavailable("the agent is gone")
        assert await g.verify(view_of()) == PENDING
        assert g.verifier.refused() == [] and g.counted() == {"postponed": 1}


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]"])
async def test_nonsense_is_a_failure(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    async with ground(monkeypatch) as g:
        g.tree.fork = Reply(body)
        assert "a fork: the answer of a trial is not a fingerprint" in await g.verify(view_of())


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_work_of_a_version_that_was_removed_is_dropped(
    monkeypatch: pytest.MonkeyPatch, is_recorded: bool
) -> None:
    async with ground(monkeypatch) as g:
        g.tree.harm = FileNotFoundError(2, "open_tree: No such file or directory", str(PROGRAM.code))
        g.start(view_of(is_recorded=is_recorded))
        await g.settle()
        assert g.delays() == [] and g.counted() == {}


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize(
    "harm", [NoCapacity("full"), SandboxFailed("gone"), ZygoteGone("gone"), OSError(5, "a bad disk"), TimeoutError()]
)
async def test_what_cannot_be_tried_is_never_dropped(
    monkeypatch: pytest.MonkeyPatch, harm: Exception, is_recorded: bool
) -> None:
    async with ground(monkeypatch) as g:
        view = view_of(is_recorded=is_recorded)
        g.tree.harm = harm
        g.start(view)
        await g.settle()
        assert g.tree.best(view) is g.tree.root and g.verifier.refused() == []
        assert g.counted() == {"postponed": 1} and g.delays() == [2]
        assert g.verifier.has_work and g.verifier.pending == 0, "it waits for memory"
        why = f"waits to be recorded: {getattr(harm, 'strerror', None) or str(harm) or 'its sandbox was not there in time'};"
        assert is_recorded or why in g.verifier.why_unrecorded(view)
        for delay_s in (4, 8, 16, 32, 64, 128, 256, 300, 300):
            await g.again()
            assert g.delays() == [delay_s]
        g.tree.harm = None
        await g.again()
        assert g.tree.best(view) is g.tree.node and g.delays() == [] and not g.verifier.has_work


async def test_what_is_to_be_tried_again_is_tried_at_once_when_the_function_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ground(monkeypatch) as g:
        view, g.tree.harm = view_of(), NoCapacity("full")
        await g.verify(view)
        g.tree.harm = None
        assert g.verifier.pending == 0 and g.delays() == [2]
        assert await g.verify(view) == "" and g.delays() == []


async def test_each_pair_waits_once_and_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, "MOST_WAITING", 3)
    async with ground(monkeypatch) as g:
        g.tree.gate = asyncio.Event()
        views = [view_of(str(number)) for number in range(5)]
        for view in views:
            for _ in range(2):
                g.start(view)
        assert g.verifier.pending == 3
        await asyncio.sleep(0)
        for view in views[:2]:
            g.start(view)  # what is under way is not queued again
        g.tree.gate.set()
        await g.settle()
        assert g.counted() == {"alike": 3}
        assert [str(g.tree.node.refusal(view)) for view in views] == ["", "", "", PENDING, PENDING]
        g.start(views[3])
        await g.settle()
        assert g.tree.node.refusal(views[3]) == "", "considered again at its next start"


async def test_an_error_in_one_verification_ends_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch, verifiers=1) as g:
        g.tree.harm = AssertionError("a bug")
        await g.verify(view_of())
        g.tree.harm = None
        assert await g.verify(view_of()) == ""


async def test_a_node_that_is_gone_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        g.start(view_of())
        g.tree.nodes.remove(g.tree.node)
        await g.settle()
        assert g.tree.asked == [] and g.counted() == {} and g.delays() == []


async def test_a_node_that_goes_while_its_sandbox_is_made_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:

        async def fork_apart(node: ZygoteNode, program: Program) -> Any:
            g.tree.nodes.remove(g.tree.node)
            raise ZygoteGone("the Zygote is gone")

        monkeypatch.setattr(g.tree, "fork_apart", fork_apart)
        g.start(view_of())
        await g.settle()
        assert g.delays() == [] and g.verifier.pending == 0


async def test_learners_go_first_and_what_they_made_is_verified_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, "LOOK_S", 0.0)
    async with ground(monkeypatch, verifiers=1) as g:
        view, g.tree.is_learning = view_of(), True
        g.start(view)
        for _ in range(20):
            await asyncio.sleep(0)
        assert g.verifier.pending == 1 and g.tree.asked == []
        g.recordings.note_verified(pair_of(g.tree.both, view))
        g.tree.nodes.append(g.tree.both)
        g.tree.is_learning = False
        await g.settle()
        assert g.tree.asked == [] and g.tree.best(view) is g.tree.both


async def test_a_learner_that_does_not_end_holds_nothing_up_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, "LOOK_S", 0.0)
    monkeypatch.setattr(verifiers, "LONGEST_LEARNING_S", 0.0)
    async with ground(monkeypatch) as g:
        g.tree.is_learning = True
        assert await g.verify(view_of()) == ""


# -- verdicts


async def test_zygotes_that_are_made_again_are_verified_for_versions_without_a_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An earlier daemon was killed before it had compared them: nobody starts the versions."""
    async with ground(monkeypatch) as g:
        known, missing = view_of("known"), view_of("missing")
        g.recordings.note_verified(pair_of(g.tree.node, known))
        for view in (known, missing, view_of("new", is_recorded=False), view_of("none", zygote="none")):
            g.verifier.know(view, PROGRAM, "f@1")
        g.tree.nodes.remove(g.tree.node)
        g.add(g.tree.node)
        assert g.verifier.pending == 1 and g.verifier.has_work
        await g.settle()
        assert g.counted() == {"alike": 1} and g.where() == ["root", "of-a"]
        assert g.tree.best(missing) is g.tree.best(known) is g.tree.node


@pytest.mark.parametrize(("save_s", "saved"), [(0.0, [1, 2, 3]), (3600.0, [3])])
async def test_verdicts_are_saved_while_others_wait(
    monkeypatch: pytest.MonkeyPatch, save_s: float, saved: list[int]
) -> None:
    """A daemon that is killed loses what is not."""
    monkeypatch.setattr(verifiers, "SAVE_S", save_s)
    found: list[int] = []
    async with ground(monkeypatch, verifiers=1) as g:
        g.verifier._save = lambda: found.append(len(g.recordings.verified))
        for name in ("one", "two", "three"):
            g.start(view_of(name))
        await g.settle()
        assert found == saved


async def test_verdicts_are_there_for_the_next_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recordings = Recordings(tmp_path)
    async with ground(monkeypatch, recordings) as g:
        assert await g.verify(view_of()) == ""
    save_learned(tmp_path / "learned.json", recordings, Refusals())
    later = Recordings(tmp_path)
    load_learned(tmp_path / "learned.json", later)
    async with ground(monkeypatch, later) as g:
        view = view_of()
        assert g.tree.node.refusal(view) == "" and g.tree.best(view) is g.tree.node
        assert g.tree.node.refusal(view_of("q")) == PENDING
        g.start(view, g.tree.node)
        assert g.verifier.pending == 0
        other = node_of("of-a", g.tree.root, a=A)
        other.shared = Preimported(frozenset({A}), loaded=frozenset({"a", "a.late"}), order=("a",))
        assert g.verifier.unverified(other, view) == PENDING, "a Zygote with another module is another"


async def test_no_value_of_a_variable_is_in_the_name_of_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        variables = frozenset({("TOKEN", "hunter2")})
        assert "hunter2" not in pair_of(g.tree.node, view_of(environment=dict(variables), variables=variables))


async def test_a_pair_that_serves_is_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch, verify_again_after=3) as g:
        view = view_of()
        await g.verify(view)
        for _ in range(3):
            assert g.verifier.pending == 0
            g.start(view, g.tree.node)
        g.tree.fork = {"a": "2"}
        await g.settle()
        assert "a.x: 2 instead of 1" in g.tree.node.refusal(view)
        assert g.refused == [("of-a", True)], "it has served: those sandboxes are dropped"
        assert pair_of(g.tree.node, view) not in g.recordings.verified


async def test_what_is_not_verified_may_be_switched_off_and_is_recorded_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ground(monkeypatch, verify=False, verify_again_after=1) as g:
        view = view_of(is_recorded=False)
        g.start(view)
        await g.settle()
        assert g.counted() == {"recorded": 1} and g.tree.best(view) is g.tree.node
        g.start(view, g.tree.node)
        assert g.verifier.pending == 0


async def test_without_zygotes_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch, enabled=False) as g:
        g.start(view_of(is_recorded=False))
        assert g.verifier.pending == 0


async def test_it_ends_in_the_middle_of_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        g.tree.gate = asyncio.Event()
        g.start(view_of())
        while not g.tree.asked:
            await asyncio.sleep(0)


async def test_what_is_to_be_tried_again_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        g.tree.harm = NoCapacity("full")
        await g.verify(view_of())
        assert len(g.delays()) == 1
    assert g.delays() == []
