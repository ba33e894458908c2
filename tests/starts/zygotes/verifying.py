"""What tests of the verifier need: versions, nodes, and a tree whose sandboxes are scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sockd.base.config import ZygoteConfig
from sockd.base.errors import ImageUnavailable
from sockd.isolation.roots.program import Limits, Lineage, Program
from sockd.isolation.sandbox.exchange import Reply
from sockd.starts.zygotes.top_levels.recordings import Recordings
from sockd.starts.zygotes.top_levels.soundness import ImportView, Preimported
from sockd.starts.zygotes.top_levels.top_level import Module, Step, TopLevel, import_id
from sockd.starts.zygotes.verification import agenda, trials
from sockd.starts.zygotes.verification.verifier import Verifier
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd_zygote import protocol

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
        self.process = SimpleNamespace(peak_bytes=lambda: tree.peak_bytes)

    async def request(self, request_id: bytes, event: bytes) -> Reply:
        asked = msgspec.json.decode(event)
        self._tree.asked.append((self._node.id, asked))
        if self._tree.gate is not None:
            await self._tree.gate.wait()
        answer = self._tree.answer(self._node, asked)
        if isinstance(answer, Reply):
            return answer
        names = {name: {"x": [value, value]} for name, value in answer.items()}
        reported = {"digests": answer, "names": names, "complete": self._tree.complete, "owners": {"a": A}, "pids": [7]}
        reported |= self._tree.says
        steps = self._tree.steps if asked["record"] else []
        return Reply(msgspec.json.encode({**reported, "cpu_s": 0.5, "steps": steps, "failure": self._tree.failure}))

    async def why_lost(self) -> ImageUnavailable | None:
        return self._tree.lost

    def destroy(self) -> None:
        self._tree.open -= 1


class FakeTree:
    """As much of a ZygoteTree as the verifier sees: a root, a node with a, and one with both on top of it."""

    def __init__(self) -> None:
        self.children = self
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
        self.peak_bytes = 0
        self.says: dict[str, Any] = {}
        """Answered besides."""
        self.programs: list[Program] = []

    def root_of(self, lineage: Lineage) -> ZygoteNode:
        return self.root

    def answer(self, node: ZygoteNode, asked: Any) -> Any:
        return self.own if node is self.root else self.fork

    async def fork_for_verification(self, node: ZygoteNode, program: Program, *, deadline_s: float = 0.0) -> Any:
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


class Jail:
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
            node.verifier = self.verifier

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
        while self.verifier.agenda.pending:
            await asyncio.sleep(0)

    async def again(self) -> None:
        """The time of all that waits to be tried again has come."""
        for handle in list(self.later.waiting):
            handle.cancel()
            handle.callback(handle.work)
        await self.settle()

    def let_refusals_expire(self) -> None:
        (refused,) = self.verifier.refused.current()
        self.verifier.refused.refusals._clock = lambda: refused.refusal.retry_s + 1
        assert self.verifier.refused.current() == []

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
async def jail(
    monkeypatch: pytest.MonkeyPatch, recordings: Recordings | None = None, **config: Any
) -> AsyncIterator[Jail]:
    monkeypatch.setattr(trials, "CLOCK_STEP_S", 0.0)
    later = Later()
    monkeypatch.setattr(agenda, "asyncio", later)
    made = Jail(recordings or Recordings(Path("/none")), later, **config)
    try:
        yield made
    finally:
        await made.verifier.aclose()
        assert made.tree.open == 0, "a sandbox was left"
