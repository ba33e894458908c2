"""The verifier alone: what it verifies, when, what it makes of answers, and what becomes of its verdicts."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from sockd.base.errors import NoCapacity
from sockd.starts.zygotes.top_levels.recordings import Recordings, load_learned, save_learned
from sockd.starts.zygotes.top_levels.refusals import Refusals
from sockd.starts.zygotes.top_levels.soundness import Preimported
from sockd.starts.zygotes.top_levels.top_level import TopLevel
from sockd.starts.zygotes.verification import trials
from sockd.starts.zygotes.verification import verifier as verifiers
from sockd.starts.zygotes.verification.verifier import PENDING, Unverified, pair_of
from tests.starts.zygotes.verifying import PROGRAM, TOP, A, jail, node_of, view_of

pytestmark = pytest.mark.anyio


async def test_a_node_serves_a_version_when_the_start_of_its_own_is_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        view = view_of(variables=frozenset({("X", "1")}))
        assert g.tree.node.refusal(view) == PENDING and g.tree.best(view) is g.tree.root
        assert await g.verify(view) == ""
        assert g.tree.best(view) is g.tree.node
        assert g.counted() == {"alike": 1} and g.verifier.trials.cpu_s == 1.0
        assert g.tree.node.refusal(view_of()) == "", "another view of the same version"
        assert g.tree.node.refusal(view_of("q")) == PENDING, "what else the same packages are imported for is another"
        assert g.where() == ["root", "of-a"]
        assert {tuple(asked["variables"]) for _, asked in g.tree.asked} == {("X",)}


async def test_the_version_that_a_zygote_was_made_for_is_verified_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        view = view_of()
        g.start(view)
        await g.settle()
        g.add(g.tree.both)  # which has all imports of this version and no others
        assert g.tree.both.refusal(view) == PENDING and g.verifier.agenda.pending == 1
        g.tree.fork = {"a": "2"}
        await g.settle()
        assert "a.x: 2 instead of 1" in g.tree.both.refusal(view)
        assert g.tree.best(view) is g.tree.node


async def test_the_start_of_a_versions_own_is_made_once_for_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        view = view_of(is_recorded=False)
        g.start(view)
        await g.settle()
        g.add(g.tree.both)
        await g.settle()
        assert g.where() == ["root", "of-a", "of-both"] and g.tree.best(view) is g.tree.both


async def test_of_many_versions_the_last_starts_of_their_own_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "MOST_OWN", 2)
    async with jail(monkeypatch) as g:
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
    async with jail(monkeypatch) as g:
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
        assert g.verifier.agenda.pending == 2
        await g.settle()
        assert g.where() == ["of-both", "of-both"]
        assert [g.tree.best(view) for view in (one, other)] == [g.tree.both] * 2


async def test_the_largest_node_is_verified_first_and_makes_the_others_needless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with jail(monkeypatch) as g:
        g.tree.nodes.append(g.tree.both)
        view = view_of()
        g.start(view)
        await g.settle()
        g.start(view, g.tree.both)
        assert g.verifier.agenda.pending == 0
        assert g.where() == ["root", "of-both"] and g.tree.best(view) is g.tree.both


async def test_a_smaller_node_is_verified_while_the_larger_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        g.tree.nodes.append(g.tree.both)
        g.tree.answer = lambda node, asked: {"a": "2" if node is g.tree.both else "1"}  # type: ignore[method-assign]
        view = view_of()
        for _ in range(2):
            g.start(view)
            await g.settle()
        assert g.tree.best(view) is g.tree.node and g.refused == [("of-both", False)]


async def test_what_soundness_refuses_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        changed = msgspec.structs.replace(TOP.steps[0], before="os.environ")
        view = view_of()
        view.top = TopLevel((changed, TOP.steps[1]))
        g.start(view)
        assert g.verifier.agenda.pending == 0 and not isinstance(g.tree.node.refusal(view), Unverified)


async def test_a_start_costs_a_look_at_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        view = view_of()
        await g.verify(view)
        made = len(g.tree.programs)
        g.tree.node.verifier = SimpleNamespace(unverified=lambda node, view: "it was asked again")
        for _ in range(100):
            assert g.tree.node.refusal(view) == ""
            g.start(view, g.tree.node)
        assert len(g.tree.programs) == made and g.verifier.agenda.pending == 0


async def test_a_difference_is_the_reason_until_it_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        view = view_of()
        g.tree.own = {"a": "2"}
        assert await g.verify(view) == "a start of its own differs: a.x: 1 instead of 2"
        assert g.refused == [("of-a", False)] and g.counted() == {"different": 1}
        g.start(view)
        assert g.verifier.agenda.pending == 0, "it is not tried again before its time"
        (refused,) = g.verifier.refused.current()
        assert (refused.owner, refused.refusal.node, refused.refusal.by_deadline) == (A, "a", False)
        assert g.verifier.forgive("none") == []
        assert g.verifier.forgive("a") == [A]
        assert g.tree.node.refusal(view) == PENDING
        g.tree.own = {"a": "1"}
        g.verifier.trials._own.clear()
        assert await g.verify(view) == ""


async def test_a_difference_is_one_from_all_of_several_starts_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What depends on addresses may be equal in two starts by chance: they are moved, another number in each."""
    async with jail(monkeypatch) as g:
        g.tree.own = {"a": "2"}
        await g.verify(view_of())
        assert g.where() == ["root", "of-a", "of-a", *["root"] * trials.SURE]
        assert [asked["moved"] for _, asked in g.tree.asked] == [0, 0, 0, *range(trials.SURE)]
        assert [asked["names_of"] for _, asked in g.tree.asked] == [[], [], *[["a"]] * (1 + trials.SURE)]
        assert [asked["pids"] for _, asked in g.tree.asked] == [[], [], *[[7]] * (1 + trials.SURE)]


@pytest.mark.parametrize("alike_in", range(trials.SURE))
async def test_what_one_of_them_has_as_the_fork_is_no_difference(
    monkeypatch: pytest.MonkeyPatch, alike_in: int
) -> None:
    async with jail(monkeypatch) as g:
        values = iter(["2", *("1" if number == alike_in else "2" for number in range(trials.SURE))])
        g.tree.answer = lambda node, asked: {"a": "1" if node is g.tree.node else next(values)}  # type: ignore[method-assign]
        assert await g.verify(view_of()) == ""
        assert g.where().count("root") == 2 + alike_in


async def test_what_two_starts_have_otherwise_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        times = iter("234")
        g.tree.answer = lambda node, asked: {"a": "1" if node is g.tree.node else next(times)}  # type: ignore[method-assign]
        assert await g.verify(view_of()) == ""
        assert [asked["moved"] for _, asked in g.tree.asked] == [0, 0, 0, 0, 1]


async def test_starts_whose_clocks_are_compared_are_more_than_a_second_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        waited: list[str] = []

        async def until(time_s: float) -> None:
            waited.append(g.where()[-1])

        monkeypatch.setattr(trials, "until", until)
        g.tree.own = {"a": "2"}
        await g.verify(view_of())
        assert waited == ["root"], "once, behind the first of them"


async def test_more_differences_than_can_be_reported_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        g.tree.own, g.tree.complete = {"a": "2", "b": "2"}, False
        assert await g.verify(view_of()) == "a start of its own differs: 2 modules differ, a for one"


async def test_zygotes_that_are_made_again_are_verified_for_versions_without_a_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An earlier daemon was killed before it had compared them: nobody starts the versions."""
    async with jail(monkeypatch) as g:
        known, missing = view_of("known"), view_of("missing")
        g.recordings.note_verified(pair_of(g.tree.node, known))
        for view in (known, missing, view_of("new", is_recorded=False), view_of("none", zygote="none")):
            g.verifier.know(view, PROGRAM, "f@1")
        g.tree.nodes.remove(g.tree.node)
        g.add(g.tree.node)
        assert g.verifier.agenda.pending == 1 and g.verifier.agenda.has_work
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
    async with jail(monkeypatch, verifiers=1) as g:
        g.verifier._save = lambda: found.append(len(g.recordings.verified))
        for name in ("one", "two", "three"):
            g.start(view_of(name))
        await g.settle()
        assert found == saved


async def test_verdicts_are_there_for_the_next_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recordings = Recordings(tmp_path)
    async with jail(monkeypatch, recordings) as g:
        assert await g.verify(view_of()) == ""
    save_learned(tmp_path / "learned.json", recordings, Refusals())
    later = Recordings(tmp_path)
    load_learned(tmp_path / "learned.json", later)
    async with jail(monkeypatch, later) as g:
        view = view_of()
        assert g.tree.node.refusal(view) == "" and g.tree.best(view) is g.tree.node
        assert g.tree.node.refusal(view_of("q")) == PENDING
        g.start(view, g.tree.node)
        assert g.verifier.agenda.pending == 0
        other = node_of("of-a", g.tree.root, a=A)
        other.shared = Preimported(frozenset({A}), loaded=frozenset({"a", "a.late"}), order=("a",))
        assert g.verifier.unverified(other, view) == PENDING, "a Zygote with another module is another"


async def test_no_value_of_a_variable_is_in_the_name_of_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        variables = frozenset({("TOKEN", "hunter2")})
        assert "hunter2" not in pair_of(g.tree.node, view_of(environment=dict(variables), variables=variables))


async def test_a_pair_that_serves_is_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch, verify_again_after=3) as g:
        view = view_of()
        await g.verify(view)
        for _ in range(3):
            assert g.verifier.agenda.pending == 0
            g.start(view, g.tree.node)
        g.tree.fork = {"a": "2"}
        await g.settle()
        assert "a.x: 2 instead of 1" in g.tree.node.refusal(view)
        assert g.refused == [("of-a", True)], "it has served: those sandboxes are dropped"
        assert pair_of(g.tree.node, view) not in g.recordings.verified


async def test_what_is_not_verified_may_be_switched_off_and_is_recorded_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with jail(monkeypatch, verify=False, verify_again_after=1) as g:
        view = view_of(is_recorded=False)
        g.start(view)
        await g.settle()
        assert g.counted() == {"recorded": 1} and g.tree.best(view) is g.tree.node
        g.start(view, g.tree.node)
        assert g.verifier.agenda.pending == 0


async def test_without_zygotes_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch, enabled=False) as g:
        g.start(view_of(is_recorded=False))
        assert g.verifier.agenda.pending == 0


async def test_it_ends_in_the_middle_of_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        g.tree.gate = asyncio.Event()
        g.start(view_of())
        while not g.tree.asked:
            await asyncio.sleep(0)


async def test_what_is_to_be_tried_again_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        g.tree.harm = NoCapacity("full")
        await g.verify(view_of())
        assert len(g.delays()) == 1
    assert g.delays() == []
