"""The verifier alone: trials that fail, end or cannot be made, and when they are tried again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sockd.base.errors import ImageUnavailable, NoCapacity, SandboxFailed, TimedOut
from sockd.isolation.farm.control import ZygoteGone
from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.exchange import Reply
from sockd.starts.zygotes.verification import agenda
from sockd.starts.zygotes.verification import verifier as verifiers
from sockd.starts.zygotes.verification.verifier import PENDING, pair_of
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd_zygote.top_levels.checks import BEGUN
from tests.starts.zygotes.verifying import jail, view_of

pytestmark = pytest.mark.anyio

LATE = Reply(error=TimedOut("Task timed out", "timeout_s"), log=f"\n{BEGUN}import a\n".encode())


async def test_a_trial_that_does_not_end_is_tried_again_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        view, g.tree.fork = view_of(), LATE
        assert "import a: a fork did not come to its end: Task timed out" in await g.verify(view)
        (refused,) = g.verifier.refused.current()
        assert refused.refusal.by_deadline and g.counted() == {"late": 1}
        assert g.delays() == [refused.refusal.retry_s - refused.refusal.time_s]
        g.let_refusals_expire()
        g.tree.fork = {"a": "1"}
        await g.again()
        assert g.tree.node.refusal(view) == "" and g.tree.best(view) is g.tree.node


async def test_a_refusal_whose_time_is_over_is_verified_at_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        view, g.tree.fork = view_of(), {"a": "2"}
        await g.verify(view)
        g.start(view)
        assert g.verifier.agenda.pending == 0
        g.let_refusals_expire()
        g.tree.fork = {"a": "1"}
        g.start(view)
        assert g.verifier.agenda.pending == 1 and g.tree.node.refusal(view) == PENDING
        await g.settle()
        assert g.tree.node.refusal(view) == ""


async def test_a_trial_that_ends_with_its_image_says_nothing_of_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        g.tree.own, g.tree.lost = LATE, ImageUnavailable("the agent is gone")
        assert await g.verify(view_of()) == PENDING
        assert g.verifier.refused.current() == [] and g.counted() == {"postponed": 1}


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]"])
async def test_nonsense_is_a_failure(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    async with jail(monkeypatch) as g:
        g.tree.fork = Reply(body)
        assert "a fork: the answer of a trial is not a fingerprint" in await g.verify(view_of())


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_work_of_a_withdrawn_version_is_dropped_where_it_runs_waits_or_is_put_off(
    monkeypatch: pytest.MonkeyPatch, is_recorded: bool
) -> None:
    async with jail(monkeypatch, verifiers=1) as g:
        put_off, running, waiting = views = [view_of(each, is_recorded=is_recorded) for each in "abc"]
        g.tree.harm = NoCapacity("full")
        await g.verify(put_off)
        g.tree.harm, g.tree.gate = None, asyncio.Event()
        g.start(running)
        while not g.tree.asked:
            await asyncio.sleep(0)
        g.start(waiting)
        for view in views:
            g.verifier.forget(view)
        g.tree.own, g.tree.lost = LATE, ImageUnavailable("it is unmounted")
        g.tree.gate.set()
        await g.settle()
        assert g.where() == ["root"] and g.delays() == [] and g.counted() == {"postponed": 1}
        assert not g.verifier.agenda.has_work


@pytest.mark.parametrize(
    ("failure", "is_recorded"),
    [("FileNotFoundError", False), ("", False), ("", True)],
    ids=["raises", "ends", "differs"],
)
async def test_what_became_of_a_withdrawn_versions_trial_makes_no_zygote_and_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: str, is_recorded: bool
) -> None:
    """Its code may have gone under the trial."""
    async with jail(monkeypatch) as g:
        g.tree.gate, g.tree.failure, g.tree.fork = asyncio.Event(), failure, {"a": "2"}
        view = view_of(is_recorded=is_recorded)
        g.start(view)
        while not g.tree.asked:
            await asyncio.sleep(0)
        g.verifier.forget(view)
        g.tree.gate.set()
        await g.settle()
        assert g.recorded == [] and g.counted() == {} and g.delays() == []
        assert not caplog.records


async def test_work_of_a_withdrawn_version_is_done_for_another_that_is_the_same_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with jail(monkeypatch) as g:
        one, other = view_of(), view_of()
        g.tree.harm = NoCapacity("full")
        for view in (one, other):
            await g.verify(view)
        g.verifier.forget(one)
        assert g.delays() == [2]
        g.verifier.forget(other)
        assert g.delays() == []


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize(
    "harm", [NoCapacity("full"), SandboxFailed("gone"), ZygoteGone("gone"), OSError(5, "a bad disk"), TimeoutError()]
)
async def test_what_cannot_be_tried_is_never_dropped(
    monkeypatch: pytest.MonkeyPatch, harm: Exception, is_recorded: bool
) -> None:
    async with jail(monkeypatch) as g:
        view = view_of(is_recorded=is_recorded)
        g.tree.harm = harm
        g.start(view)
        await g.settle()
        assert g.tree.best(view) is g.tree.root and g.verifier.refused.current() == []
        assert g.counted() == {"postponed": 1} and g.delays() == [2]
        assert g.verifier.agenda.has_work and g.verifier.agenda.pending == 0, "it waits for memory"
        why = f"waits to be recorded: {getattr(harm, 'strerror', None) or str(harm) or 'its sandbox was not there in time'};"
        assert is_recorded or why in g.verifier.why_unrecorded(view)
        for delay_s in (4, 8, 16, 32, 64, 128, 256, 300, 300):
            await g.again()
            assert g.delays() == [delay_s]
        g.tree.harm = None
        await g.again()
        assert g.tree.best(view) is g.tree.node and g.delays() == [] and not g.verifier.agenda.has_work


async def test_what_is_to_be_tried_again_is_tried_at_once_when_the_function_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with jail(monkeypatch) as g:
        view, g.tree.harm = view_of(), NoCapacity("full")
        await g.verify(view)
        g.tree.harm = None
        assert g.verifier.agenda.pending == 0 and g.delays() == [2]
        assert await g.verify(view) == "" and g.delays() == []


async def test_each_pair_waits_once_and_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agenda, "MOST_WAITING", 3)
    async with jail(monkeypatch) as g:
        g.tree.gate = asyncio.Event()
        views = [view_of(str(number)) for number in range(5)]
        for view in views:
            for _ in range(2):
                g.start(view)
        assert g.verifier.agenda.pending == 3
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
    async with jail(monkeypatch, verifiers=1) as g:
        g.tree.harm = AssertionError("a bug")
        await g.verify(view_of())
        g.tree.harm = None
        assert await g.verify(view_of()) == ""


async def test_a_node_that_is_gone_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        g.start(view_of())
        g.tree.nodes.remove(g.tree.node)
        await g.settle()
        assert g.tree.asked == [] and g.counted() == {} and g.delays() == []


async def test_a_node_that_goes_while_its_sandbox_is_made_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:

        async def fork_for_verification(node: ZygoteNode, program: Program) -> Any:
            g.tree.nodes.remove(g.tree.node)
            raise ZygoteGone("the Zygote is gone")

        monkeypatch.setattr(g.tree, "fork_for_verification", fork_for_verification)
        g.start(view_of())
        await g.settle()
        assert g.delays() == [] and g.verifier.agenda.pending == 0


async def test_learners_go_first_and_what_they_made_is_verified_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, "LOOK_S", 0.0)
    async with jail(monkeypatch, verifiers=1) as g:
        view, g.tree.is_learning = view_of(), True
        g.start(view)
        for _ in range(20):
            await asyncio.sleep(0)
        assert g.verifier.agenda.pending == 1 and g.tree.asked == []
        g.recordings.note_verified(pair_of(g.tree.both, view))
        g.tree.nodes.append(g.tree.both)
        g.tree.is_learning = False
        await g.settle()
        assert g.tree.asked == [] and g.tree.best(view) is g.tree.both


async def test_a_learner_that_does_not_end_holds_nothing_up_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, "LOOK_S", 0.0)
    monkeypatch.setattr(verifiers, "LONGEST_LEARNING_S", 0.0)
    async with jail(monkeypatch) as g:
        g.tree.is_learning = True
        assert await g.verify(view_of()) == ""
