"""The verifier alone: what it queues, what it makes of answers, what it forgets. The sandboxes here are scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sockd.caches.zygotes import verifier as verifiers
from sockd.caches.zygotes.soundness import ImportView, Preimported
from sockd.caches.zygotes.verifier import PENDING, Verifier, key_of
from sockd.caches.zygotes.zygote_node import ZygoteNode
from sockd.farm.imported import Observed
from sockd.images.program import Limits, Lineage, Program
from sockd.plain.config import ZygoteConfig
from sockd.plain.errors import ImageUnavailable, NoCapacity, SandboxFailed, TimedOut
from sockd.sandbox.exchange import Reply
from sockd_zygote import protocol
from sockd_zygote.own_functions.checks import BEGUN

pytestmark = pytest.mark.anyio

A, B = "a-1-aaaaaaaaaaaa", "b-1-bbbbbbbbbbbb"
LIMITS = Limits(memory_bytes=128 << 20, pids=64, cpus=1.0, tmp_bytes=1 << 20, tmp_inodes=64)
INIT = protocol.encode_init({"name": "f", "handler": "f:f", "entry_file": "f.py", "env": {"X": "1"}})
WITH_B = ImportView(frozenset({A, B}))
WITH_X = ImportView(frozenset({A}), environment={"X": "1"}, variables=frozenset({("X", "1")}))
SAME = ImportView(frozenset({A}))


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
        told = {"digests": answer, "names": names, "complete": True, "owners": {"a": A}, "pids": [7], "cpu_s": 0.5}
        return Reply(msgspec.json.encode(told))

    async def why_lost(self) -> ImageUnavailable | None:
        return self._tree.lost

    def destroy(self) -> None:
        self._tree.open -= 1


class FakeTree:
    """As much of a ZygoteTree as the verifier sees: a root and a node of A."""

    def __init__(self) -> None:
        self.root = ZygoteNode(zygote("root"), frozenset(), None)
        self.node = ZygoteNode(
            zygote("of-a"), frozenset({A}), self.root, shared=Preimported(frozenset({A}), {}, Observed())
        )
        self.node.order = ("a", "a.b")
        self.nodes = [self.root, self.node]
        self.asked: list[tuple[str, Any]] = []
        self.open = 0
        self.is_learning = False
        self.gate: asyncio.Event | None = None
        self.harm: Exception | None = None
        self.lost: ImageUnavailable | None = None
        self.fork: dict[str, str] = {"a": "1"}
        self.own: Any = {"a": "1"}
        self.programs: list[Program] = []

    def root_of(self, lineage: Lineage) -> ZygoteNode:
        return self.root

    def answer(self, node: ZygoteNode, asked: Any) -> Any:
        return self.fork if node is self.node else self.own

    async def fork_apart(self, node: ZygoteNode, program: Program) -> Any:
        if self.harm is not None:
            raise self.harm
        self.programs.append(program)
        self.open += 1
        return FakeSandbox(self, node)

    def best(self, view: ImportView) -> ZygoteNode:
        serving = [node for node in self.nodes if node.packages <= view.closure and not node.refusal(view)]
        return max(serving, key=lambda node: len(node.packages))

    def passed_over(self, view: ImportView) -> list[tuple[ZygoteNode, str]]:
        return [(node, reason) for node in self.nodes[1:] if (reason := node.refusal(view))]


def zygote(name: str) -> Any:
    return SimpleNamespace(name=name)


class Ground:
    def __init__(self, **config: Any) -> None:
        self.tree = FakeTree()
        self.refused: list[tuple[str, bool]] = []
        tree: Any = self.tree
        self.verifier = Verifier(
            ZygoteConfig(**config),
            tree,
            lambda function, modules: [*modules, "own"],
            is_learning=lambda: self.tree.is_learning,
            on_refused=lambda node, view, has_served: self.refused.append((node.id, has_served)),
        )
        for node in self.tree.nodes:
            node.unverified = self.verifier.unverified

    def start(self, view: ImportView, node: ZygoteNode | None = None) -> None:
        """A cold start of a function with this view is over."""
        program = Program(Path("/none"), INIT, LIMITS, init_timeout_s=1, timeout_s=1, log_bytes=1, name="f")
        self.verifier.consider(node or self.tree.root, view, program, "f@1")

    async def settle(self) -> None:
        while self.verifier.pending:
            await asyncio.sleep(0)

    async def verify(self, view: ImportView) -> str:
        """What its node says of a view when that has been verified."""
        self.tree.node.refusal(view)
        self.start(view)
        await self.settle()
        return str(self.tree.node.refusal(view))


@asynccontextmanager
async def ground(monkeypatch: pytest.MonkeyPatch, **config: Any) -> AsyncIterator[Ground]:
    monkeypatch.setattr(verifiers, "APART_S", 0.0)
    made = Ground(**config)
    try:
        yield made
    finally:
        await made.verifier.aclose()
        assert made.tree.open == 0, "a sandbox was left"


@pytest.mark.parametrize("view", [WITH_B, WITH_X])
async def test_a_pair_that_is_alike_serves(monkeypatch: pytest.MonkeyPatch, view: ImportView) -> None:
    async with ground(monkeypatch) as g:
        assert g.tree.node.refusal(view) == PENDING
        assert await g.verify(view) == ""
        assert g.verifier.outcomes["alike"] == 1 and g.verifier.cpu_s == 1.0
        again = ImportView(view.closure, environment=view.environment, variables=view.variables)
        assert g.tree.node.refusal(again) == "", "another version with this closure and these variables"
        (fork, asked), (root, of_root) = g.tree.asked
        assert (fork, root) == ("of-a", "root")
        assert asked["modules"] == ["a", "a.b", "own"] == of_root["modules"] and of_root["expected"] == {"a": "1"}
        assert (asked["pids"], of_root["pids"]) == ([], [7])
        assert asked["variables"] == [name for name, _ in view.variables]
        told = protocol.decode_init(g.tree.programs[0].init)
        assert (told["handler"], told["entry_file"], told["env"]) == (
            "sockd_zygote.own_functions.trial:answer",
            "",
            {b"X": b"1"},
        )


async def test_a_start_costs_a_look_at_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        await g.verify(WITH_B)
        made = len(g.tree.programs)
        g.tree.node.unverified = lambda node, view: "it was asked again"
        for _ in range(100):
            assert g.tree.node.refusal(WITH_B) == ""
            g.start(WITH_B, g.tree.node)
        assert len(g.tree.programs) == made and g.verifier.pending == 0


async def test_what_it_was_made_from_serves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        assert g.tree.node.refusal(SAME) == ""
        g.start(SAME, g.tree.node)
        assert g.verifier.pending == 0


async def test_what_was_made_on_top_of_others_waits_for_its_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        deep = ZygoteNode(zygote("of-both"), frozenset({A, B}), g.tree.node)
        deep.shared = Preimported(frozenset({A, B}), before=frozenset({A}))
        deep.unverified = g.verifier.unverified
        g.tree.nodes.append(deep)
        assert deep.refusal(WITH_B) == PENDING
        assert key_of(deep, WITH_B) != key_of(
            ZygoteNode(zygote("apart"), frozenset({A, B}), None, shared=Preimported(frozenset({A, B}))), WITH_B
        ), "made from the root Zygote it is another"


async def test_a_difference_is_the_reason_until_it_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        g.tree.own = {"a": "2"}
        assert await g.verify(WITH_B) == "a start of its own differs: a.x: 1 instead of 2"
        assert g.refused == [("of-a", False)]
        assert [asked["moved"] for _, asked in g.tree.asked] == [0, 0, 0, 1, 2, 3], "compared with several starts"
        g.start(WITH_B)
        assert g.verifier.pending == 0, "it is not tried again before its time"
        (refused,) = g.verifier.refused()
        assert (refused.owner, refused.refusal.node, refused.refusal.by_deadline) == (A, "a", False)
        assert g.verifier.forgive("none") == []
        assert g.verifier.forgive("a") == [A]
        assert g.tree.node.refusal(WITH_B) == PENDING
        g.tree.own = {"a": "1"}
        assert await g.verify(WITH_B) == ""


async def test_what_two_starts_have_otherwise_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        times = iter("234")
        g.tree.answer = lambda node, asked: {"a": "1" if node is g.tree.node else next(times)}  # type: ignore[method-assign]
        assert await g.verify(WITH_B) == ""
        assert [asked["moved"] for _, asked in g.tree.asked] == [0, 0, 0, 1]


LATE = Reply(error=TimedOut("Task timed out", "timeout_s"), log=f"\n{BEGUN}import a\n".encode())


async def test_a_trial_that_does_not_end_is_tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        g.tree.own = LATE
        assert "import a: a start of its own did not come to its end" in await g.verify(WITH_B)
        (refused,) = g.verifier.refused()
        assert refused.refusal.by_deadline and g.verifier.outcomes["late"] == 1
        g.verifier._refusals._clock = lambda: refused.refusal.retry_s + 1
        g.tree.own = {"a": "1"}
        g.start(WITH_B)
        assert g.verifier.pending == 1 and g.tree.node.refusal(WITH_B) == PENDING
        await g.settle()
        assert g.tree.node.refusal(WITH_B) == ""


async def test_a_trial_that_ends_with_its_image_says_nothing_of_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        g.tree.own, g.tree.lost = LATE, ImageUnavailable("the agent is gone")
        assert await g.verify(WITH_B) == PENDING
        assert g.verifier.refused() == [] and g.verifier.outcomes["postponed"] == 1


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]"])
async def test_nonsense_is_a_failure(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    async with ground(monkeypatch) as g:
        g.tree.own = Reply(body)
        assert "not a fingerprint" in await g.verify(WITH_B)


@pytest.mark.parametrize("harm", [NoCapacity("full"), SandboxFailed("gone"), OSError(2, "no code")])
async def test_what_cannot_be_tried_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, harm: Exception) -> None:
    async with ground(monkeypatch) as g:
        g.tree.harm = harm
        assert await g.verify(WITH_B) == PENDING
        assert g.verifier.outcomes["postponed"] == 1 and g.verifier.refused() == []
        g.tree.harm = None
        assert await g.verify(WITH_B) == ""


async def test_each_pair_waits_once_and_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, "MOST_WAITING", 3)
    async with ground(monkeypatch) as g:
        g.tree.gate = asyncio.Event()
        for number in range(5):
            view = ImportView(frozenset({A, f"c{number}-1-aaaaaaaaaaaa"}))
            for _ in range(2):
                g.tree.node.refusal(view)
                g.start(view)
        assert g.verifier.pending == 3
        await asyncio.sleep(0)
        g.tree.gate.set()
        await g.settle()
        assert g.verifier.outcomes["alike"] == 3


async def test_a_pair_that_serves_is_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch, verify_again_after=3) as g:
        for _ in range(3):
            assert g.verifier.pending == 0
            g.start(SAME, g.tree.node)
        g.tree.own = {"a": "2"}
        await g.settle()
        assert "a.x: 1 instead of 2" in g.tree.node.refusal(SAME)
        assert g.refused == [("of-a", True)]


async def test_a_node_that_is_gone_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        g.tree.node.refusal(WITH_B)
        g.start(WITH_B)
        g.tree.nodes.remove(g.tree.node)
        await g.settle()
        assert g.tree.asked == [] and sum(g.verifier.outcomes.values()) == 0


async def test_learners_go_first_and_what_they_made_need_not_be_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, "LOOK_S", 0.0)
    async with ground(monkeypatch) as g:
        g.tree.is_learning = True
        g.tree.node.refusal(WITH_B)
        g.start(WITH_B)
        for _ in range(20):
            await asyncio.sleep(0)
        assert g.verifier.pending == 1 and g.tree.asked == []
        made = ZygoteNode(zygote("of-both"), frozenset({A, B}), g.tree.node, shared=Preimported(frozenset({A, B})))
        g.tree.nodes.append(made)
        g.tree.is_learning = False
        await g.settle()
        assert g.tree.asked == []


async def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch, verify=False) as g:
        assert g.tree.node.refusal(WITH_B) == ""
        g.start(WITH_B)
        assert g.verifier.pending == 0


async def test_it_ends_in_the_middle_of_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ground(monkeypatch) as g:
        g.tree.gate = asyncio.Event()
        g.tree.node.refusal(WITH_B)
        g.start(WITH_B)
        while not g.tree.asked:
            await asyncio.sleep(0)
