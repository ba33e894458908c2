"""The learner alone: what it does when a package misbehaves in a Zygote, and whom it blames."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sockd.base.errors import InitFailed, NoCapacity, SandboxDied, SandboxFailed, TimedOut
from sockd.isolation.farm.control import ZygoteGone
from sockd.isolation.farm.imported import Imported, ImportRequest
from sockd.isolation.sandbox.exchange import Reply
from sockd.starts.zygotes.learning import canary
from sockd.starts.zygotes.top_levels.top_level import TopLevel
from sockd_zygote import protocol
from sockd_zygote.top_levels import checks
from tests.starts.zygotes.learning import ASYNCIO, A, B, FakeSpare, FakeZygote, Tree, learner_of, recorded, top_of

pytestmark = pytest.mark.anyio


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


@pytest.mark.parametrize("reported", [{**WELL, "numpy.dot": checks.ABSENT}, WELL])
def test_what_is_not_there_need_not_work(reported: dict[str, str]) -> None:
    assert canary.failures(msgspec.json.encode(reported)) == ""


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
