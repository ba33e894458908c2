"""The learner alone: which Zygotes it makes of what was recorded. Its policies and its record are real."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import msgspec
import pytest

from sockd.base.errors import NoCapacity
from sockd.starts.packages.distribution import name_of
from sockd.starts.zygotes.learning import import_learner, zygote_planner
from sockd.starts.zygotes.top_levels.top_level import Module, TopLevel, import_id, path_id
from sockd.starts.zygotes.zygote_node import ZygoteNode
from tests.starts.zygotes.learning import (
    ASYNCIO,
    SECONDS,
    A,
    B,
    C,
    HangingTree,
    Tree,
    ids,
    learner_of,
    recorded,
    settled,
    top_of,
    view_of,
)

pytestmark = pytest.mark.anyio


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


async def test_why_a_version_has_no_zygote_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        for may_spawn, words in ((False, zygote_planner.NO_UIDS), (True, import_learner.NO_ROOM)):
            tree.zygotes[0].uids.has_child = may_spawn
            learner.consider(view)
            await settled(learner)
            assert learner.why_unmade(view) == words
        learner.recordings.note_failed(import_id("b", B), "ImportError: no such library")
        view = await recorded(learner, B, program="h")
        assert learner.why_unmade(view) == "b fails in a Zygote: ImportError: no such library"
        learner.refused.refuse(B, "it starts threads", module="b")
        assert learner.why_unmade(view) == "b is refused: b: it starts threads"
        view = await recorded(learner, C, program="i")
        learner._planner.limits = dataclasses.replace(learner._planner.limits, max_nodes=8)
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


async def test_more_nodes_than_allowed_are_not_made(tmp_path: Path) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path, max_nodes=2, policy="sock") as learner:
        await recorded(learner, A)
        await recorded(learner, B, program="g")
        assert len(tree.nodes) <= 2


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


async def test_a_zygote_of_imports_that_took_long_on_a_busy_host_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorded start used 20 MB, however long it took."""
    tree = Tree()
    monkeypatch.setitem(SECONDS, A, 60.0)
    async with learner_of(tree, tmp_path, memory_mb=96) as learner:
        await recorded(learner, A, top=top_of(A, peak_bytes=20 << 20))
        assert tree.packages() == [set(), {A}]


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


@pytest.mark.parametrize("policy", ["measured", "sock"])
async def test_a_zygote_without_uids_for_children_is_no_parent(tmp_path: Path, policy: str) -> None:
    tree = Tree()
    async with learner_of(tree, tmp_path, policy=policy) as learner:
        await recorded(learner, A)
        tree.zygotes[1].uids.has_child = False
        await recorded(learner, A, B, program="g")
        assert tree.packages() == [set(), {A}, {A, B}] and tree.nodes[2].depth == 1
        tree.zygotes[0].uids.has_child = False
        await recorded(learner, B, program="h")
        assert len(tree.nodes) == 3 and len(tree.zygotes) == 3
