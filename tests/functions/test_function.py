"""A function: what a request has used is put back before the next one looks for it; once, and whatever else fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sockd.base.config import SandboxConfig
from sockd.base.errors import NoCapacity
from sockd.base.invoke_request import InvokeRequest
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.serving.allowance import Allowance
from sockd.functions.serving.failed_inits import FailedInits
from sockd.functions.serving.function import WORTH_RECORDING_NS, Caches, Function
from sockd.functions.serving.leased import Leased, Outcome
from sockd.functions.serving.serving import Serving
from sockd.functions.serving.version import Version
from sockd.functions.serving.version_program import limits_of
from sockd.isolation.roots.program import Lineage, Program
from sockd.isolation.sandbox.exchange import Reply
from sockd.isolation.sandbox.lifecycle import State
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.linux.latency.latency import Latency
from sockd.starts.handler_cache import HandlerCache
from sockd.starts.packages.distribution import Closure
from sockd.starts.sources import Starts
from sockd.starts.zygotes.top_levels.soundness import NO_PACKAGES, ImportView
from sockd.starts.zygotes.zygote_node import ZygoteNode
from tests.functions.fake_sandbox import FakeSandbox

pytestmark = pytest.mark.anyio

Told = list[Outcome | BaseException]


class FakeTree:
    """Nothing can be forked from it."""

    most_levels = 1
    most = 0
    """Spares of a node."""

    def __init__(self) -> None:
        self.lineages = self.spares = self.children = self

    def expect(self, lineage: Lineage, *, at_once: bool) -> None:
        """Every root is there."""

    def release(self, lineage: Lineage) -> None:
        """Nothing ends with its last function."""

    async def living_best(self, view: ImportView) -> None:
        raise NoCapacity("no memory left")

    def refill(self, node: ZygoteNode) -> None:
        """No spares are kept."""


class Learning:
    """A learner and a verifier that note what they are asked to consider."""

    def __init__(self) -> None:
        self.adopted: list[ImportView] = []
        self.verified: list[ZygoteNode] = []
        self.left_out: list[str] = []

    def leave_out(self, view: ImportView, why: str) -> None:
        self.left_out.append(why)

    def forget_reason(self, view: ImportView) -> None:
        """Do nothing: no reason is kept for a version that is withdrawn."""

    forget = forget_reason

    def adopt(self, view: ImportView) -> None:
        self.adopted.append(view)

    def observe(self, *args: object, **options: object) -> None:
        """What was imported is noted for people."""

    def consider(self, *args: Any) -> None:
        if len(args) > 1:  # as a verifier
            self.verified.append(args[0])


class Harness:
    """A function with two idle sandboxes, and what it is served from."""

    def __init__(self, **settings: Any) -> None:
        config = FunctionConfig(**settings)
        program = Program(Path("/code"), b"", limits_of(config), init_timeout_s=1, timeout_s=1, log_bytes=0)
        record = FunctionRecord("f", 1, "0" * 64, 0, "f:f", config.to_json(), "", "", 0, 0)
        self.version = version = Version(record, config, Closure(), program, NO_PACKAGES, "$LATEST")
        budget = MemoryBudget(1 << 40)
        self.handlers = HandlerCache(SandboxConfig(pause_after_s=60), budget)
        tree = FakeTree()
        starts = Starts(self.handlers, tree)  # type: ignore[arg-type]
        self.learning = Learning()
        caches = SimpleNamespace(
            handlers=self.handlers,
            tree=tree,
            starts=starts,
            learner=self.learning,
            verifier=self.learning,
            initscripts=None,
            templates=None,
            failed_inits=FailedInits(),
            latency=Latency(),
        )
        self.function = Function(version, cast(Caches, caches), Allowance("f", config, budget))
        self.sandboxes = [FakeSandbox(program), FakeSandbox(program)]
        for sandbox in self.sandboxes:
            self.handlers.keep(sandbox, program)  # type: ignore[arg-type]

    def begin(self) -> Told:
        """Begin one request. Returns: the list that gets its outcome."""
        reported: Told = []
        Serving(self.function, InvokeRequest("f", b"{}", bytes(16), 0), reported.append).begin()
        return reported

    def asked(self) -> list[FakeSandbox]:
        """The sandboxes that have a request."""
        return [sandbox for sandbox in self.sandboxes if sandbox.done is not None]

    def answer(self, sandbox: FakeSandbox) -> None:
        """The sandbox has answered, and may be asked again."""
        done, sandbox.done = sandbox.done, None
        assert done is not None
        done(Reply(b"[]"))

    async def settled(self) -> bool:
        """Whether nothing of any request is left."""
        for _ in range(10):
            await asyncio.sleep(0)
        admission = self.function.admission
        starts = self.function.starts
        return not (
            self.function.running or admission.running or admission.waiting or starts.starting or starts.waiters
        )


@pytest.fixture
async def harness() -> AsyncIterator[Callable[..., Harness]]:
    harnesses: list[Harness] = []

    def make(**settings: Any) -> Harness:
        harnesses.append(Harness(**settings))
        return harnesses[-1]

    yield make
    for harness in harnesses:
        harness.handlers.close()


async def test_a_request_in_the_step_of_an_answer_gets_the_sandbox_that_gave_it(
    harness: Callable[..., Harness],
) -> None:
    f = harness(concurrency=3)
    f.begin()
    (first,) = f.asked()
    f.begin()
    reported = f.begin()  # for which there is no sandbox
    f.answer(first)
    f.begin()
    assert first.done is not None and f.handlers.misses == 1
    for sandbox in f.asked():
        f.answer(sandbox)
    assert await f.settled()
    assert isinstance(reported[0], NoCapacity) and f.handlers.counts()["idle"] == 2


async def test_where_no_one_may_wait_a_request_in_the_step_of_an_answer_has_its_place(
    harness: Callable[..., Harness],
) -> None:
    f = harness(concurrency=1, queue_depth=0)
    f.begin()
    (first,) = f.asked()
    f.answer(first)
    reported = f.begin()
    assert f.asked() == [first]
    f.answer(first)
    assert len(reported) == 1 and isinstance(reported[0], Outcome)
    assert await f.settled()


async def test_who_waits_goes_before_a_request_in_the_step_of_an_answer(harness: Callable[..., Harness]) -> None:
    f = harness(concurrency=1)
    f.begin()
    second, (first,) = f.begin(), f.asked()
    f.answer(first)
    third = f.begin()
    assert f.function.admission.waiting == 1
    await asyncio.sleep(0)
    assert f.asked() == [first]
    f.answer(first)
    await asyncio.sleep(0)
    assert (len(second), len(third)) == (1, 0)
    assert not await f.settled()
    f.answer(first)
    assert len(third) == 1 and await f.settled()


async def test_the_answer_goes_out_before_its_sandbox_is_destroyed(harness: Callable[..., Harness]) -> None:
    f = harness(reuse_sandbox=False)
    states: list[State] = []
    sandbox = f.sandboxes[-1]
    Serving(
        f.function, InvokeRequest("f", b"{}", bytes(16), 0), lambda _: states.append(sandbox.lifecycle.state)
    ).begin()
    f.answer(sandbox)
    assert states == [State.IDLE]
    assert await f.settled()
    assert sandbox.lifecycle.state is State.DEAD


async def test_what_cannot_be_put_back_is_no_affair_of_who_comes_next(harness: Callable[..., Harness]) -> None:
    f = harness(concurrency=2, reuse_sandbox=False)
    complaints: list[BaseException | None] = []
    f.function.loop.set_exception_handler(lambda _, context: complaints.append(context.get("exception")))
    last = FakeSandbox(f.function.version.program)
    f.begin()
    f.begin()
    f.sandboxes[1].cannot_end = OSError("no cgroup")
    f.handlers.keep(last, f.function.version.program)  # type: ignore[arg-type]
    for sandbox in reversed(f.sandboxes):
        f.answer(sandbox)
    reported = f.begin()
    assert complaints == [f.sandboxes[1].cannot_end] and f.sandboxes[0].lifecycle.is_dead
    assert f.function.running == f.function.admission.running == 1
    f.answer(last)
    assert isinstance(reported[0], Outcome) and await f.settled()
    assert len(complaints) == 1


async def test_a_function_that_is_closed_before_an_answer_ends_its_sandbox_and_is_drained(
    harness: Callable[..., Harness],
) -> None:
    f = harness()
    f.begin()
    (sandbox,) = f.asked()
    f.function.close()
    assert f.function.running == 1
    f.answer(sandbox)
    await asyncio.wait_for(f.function.drain(), 10)
    assert sandbox.lifecycle.state is State.DEAD and await f.settled()


A = "a-1-aaaaaaaaaaaa"
NODE, ROOT = (
    ZygoteNode(cast(Any, None), frozenset(), None, imports) for imports in (frozenset({f"a@{A}"}), frozenset())
)


@pytest.mark.parametrize(
    ("node", "imports", "init_ns", "is_verified"),
    [
        (ROOT, [], WORTH_RECORDING_NS - 100_000, False),
        (ROOT, [], WORTH_RECORDING_NS, True),
        (ROOT, None, WORTH_RECORDING_NS - 100_000, False),
        (ROOT, [(A, "a", 0.1)], 0, True),
        (NODE, [], 0, True),
    ],
)
async def test_the_top_level_of_a_quick_function_without_packages_is_not_recorded(
    harness: Callable[..., Harness], node: ZygoteNode, imports: Any, init_ns: int, is_verified: bool
) -> None:
    f = harness()
    assert f.learning.adopted == [f.version.view]
    sandbox: Any = f.sandboxes[0]
    sandbox.init.imports, sandbox.init.took_ns = imports, init_ns
    leased = Leased(sandbox, "zygote", node=node)
    assert f.function.admission.try_enter()
    f.function.running += 1
    f.function.put_back(leased, f.version)
    assert await f.settled()
    assert f.learning.verified == [node] * is_verified
    why = "it initializes in 9.9 ms without packages, and less than 10 ms is not worth it"
    assert f.learning.left_out == ([] if is_verified else [why])


async def test_the_view_of_each_version_is_known_to_the_learner(harness: Callable[..., Harness]) -> None:
    f = harness()
    old, view = f.version, ImportView(frozenset({A}))
    later = Version(old.record, old.config, old.closure, old.program, view, old.number)
    f.function.switch(later)
    assert f.learning.adopted == [old.view, view]
