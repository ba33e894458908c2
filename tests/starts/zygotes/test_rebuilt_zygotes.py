"""The learner alone: what it knows after a restart, and the Zygotes that it makes again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sockd.isolation.farm.control import ZygoteGone
from tests.starts.zygotes.learning import A, B, C, HangingTree, Tree, ids, learner_of, recorded, settled, view_of

pytestmark = pytest.mark.anyio


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
        assert learner._planner.under_way == [] and all(
            zygote.closed for zygote in after.zygotes[1:] if "a" in zygote.imported
        )


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
