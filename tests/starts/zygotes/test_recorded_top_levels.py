"""The verifier alone: what it records of versions, when, and what it tells of that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sockd.base.errors import FunctionFailed, OutOfMemory
from sockd.isolation.sandbox.exchange import Reply
from sockd.starts.zygotes.top_levels.top_level import import_id
from sockd.starts.zygotes.verification import trials
from sockd.starts.zygotes.verification import verifier as verifiers
from sockd_zygote import protocol
from tests.starts.zygotes.verifying import PROGRAM, STEPS, A, B, jail, view_of

pytestmark = pytest.mark.anyio


async def test_the_first_start_of_a_version_is_recorded_in_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
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
        assert asked["function"] == {"handler": "f:f", "code": "", "entry_file": "f.py", "app": "", "wasm": ""}
        init = protocol.decode_init(program.init)
        assert (init["handler"], init["entry_file"], init["env"]) == (trials.HANDLER, "", {b"X": b"1"})
        g.start(view)
        assert g.verifier.agenda.pending == 0, "once is enough"


async def test_the_memory_of_a_recorded_start_is_what_the_kernel_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        g.tree.peak_bytes, g.tree.says = 23 << 20, {"peak_bytes": 1}
        g.start(view_of(is_recorded=False))
        await g.settle()
        assert g.recorded[0][1].peak_bytes == 23 << 20


@pytest.mark.parametrize(("zygote", "standard_only"), [("packages", False), ("stdlib", True)])
async def test_a_recording_knows_whether_packages_may_be_imported_ahead(
    monkeypatch: pytest.MonkeyPatch, zygote: str, standard_only: bool
) -> None:
    async with jail(monkeypatch) as g:
        g.start(view_of(is_recorded=False, zygote=zygote))
        await g.settle()
        assert g.recorded[0][1].standard_only is standard_only


async def test_nothing_is_recorded_for_a_function_that_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        g.start(view_of(is_recorded=False, zygote="none"))
        g.verifier.consider(None, view_of(is_recorded=False), PROGRAM, "f@1")  # a program of an image
        assert g.verifier.agenda.pending == 0


async def test_what_was_recorded_is_verified_at_once_with_the_start_that_was_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with jail(monkeypatch) as g:
        view = view_of(is_recorded=False)
        g.start(view)
        await g.settle()
        assert g.where() == ["root", "of-a"] and g.counted() == {"recorded": 1, "alike": 1}
        assert [asked["record"] for _, asked in g.tree.asked] == [True, False]
        assert g.tree.best(view) is g.tree.node


FULL = OutOfMemory(limit_bytes=1 << 30, peak_bytes=1 << 30)
FAILS = Reply(error=FunctionFailed("ValueError", "a secret"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"failure": "ModuleNotFoundError"}, "it raises ModuleNotFoundError"),
        (
            {"own": Reply(error=FULL)},
            "out of memory: limit 1024 MB (zygote.verify_memory_mb, or a quarter of what is free)",
        ),
        ({"own": FAILS}, "a start of its own did not come to its end: ValueError"),
        ({"steps": [{"name": "a"}]}, "the answer of a trial is no recording"),
        ({"steps": [{**STEPS[0], "key": "c-1-cccccccccccc"}]}, "distributions that the function does not have"),
        ({"own": Reply(b"[]")}, "the answer of a trial is not a fingerprint"),
    ],
)
async def test_a_top_level_that_cannot_be_recorded_is_tried_again_later_and_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, change: dict[str, Any], words: str
) -> None:
    async with jail(monkeypatch) as g:
        view, before = view_of(is_recorded=False), {name: getattr(g.tree, name) for name in change}
        vars(g.tree).update(change)
        g.start(view)
        await g.settle()
        assert g.recorded == [] and g.delays() == [10]
        assert words in caplog.text and "a secret" not in caplog.text
        why = g.verifier.why_unrecorded(view)
        assert why.startswith("its top level could not be recorded: ") and words in why
        assert why.endswith("; it is tried again in 10 s or after its next cold start") and "a secret" not in why
        assert not g.verifier.agenda.has_work, "nobody waits for what has failed"
        for delay_s in (20, 40):
            await g.again()
            assert g.delays() == [delay_s]
        vars(g.tree).update(before)
        g.start(view)
        assert g.verifier.agenda.pending == 1 and g.delays() == [], "a start of the function does not wait for that"
        await g.settle()
        assert g.recorded[0][0] is view and g.counted() == {"late": 3, "recorded": 1, "alike": 1}
        assert "could not" not in g.verifier.why_unrecorded(view)


async def test_a_top_level_that_fails_by_itself_is_not_run_again_and_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with jail(monkeypatch) as g:
        view, steps = view_of(is_recorded=False), g.tree.steps
        g.tree.steps = [{"name": "a"}]
        g.verifier.expect(view, PROGRAM, "f@1")
        await g.settle()
        for delay_s in (10, 20, 40, 80, 160):
            assert g.delays() == [delay_s] and g.verifier.agenda.records(view.program)
            await g.again()
        assert g.delays() == [] and not g.verifier.agenda.records(view.program)
        assert g.verifier.why_unrecorded(view).endswith("; it is tried again after its next cold start")
        assert [record.levelname for record in caplog.records].count("WARNING") == 1, "the first time"
        g.tree.steps = steps
        g.start(view)
        await g.settle()
        assert g.recorded[0][0] is view


async def test_why_a_version_is_not_recorded_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jail(monkeypatch) as g:
        view = view_of(is_recorded=False)
        assert g.verifier.why_unrecorded(view) == "its top level is recorded after its next cold start"
        g.verifier.leave_out(view, "it initializes in 1.0 ms")
        assert g.verifier.why_unrecorded(view) == "its top level is not recorded: it initializes in 1.0 ms"
        g.tree.gate = asyncio.Event()
        g.start(view)
        assert g.verifier.why_unrecorded(view) == "its top level waits to be recorded" and g.verifier.agenda.has_work
        while not g.tree.asked:
            await asyncio.sleep(0)
        assert g.verifier.why_unrecorded(view) == "its top level is being recorded" and g.verifier.agenda.has_work
        g.tree.gate.set()
        await g.settle()
        assert not g.verifier.agenda.has_work
    async with jail(monkeypatch, enabled=False) as g:
        assert "zygote.enabled" in g.verifier.why_unrecorded(view)


async def test_a_recording_waits_for_no_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, "LOOK_S", 0.0)
    async with jail(monkeypatch, verifiers=1) as g:
        g.tree.is_learning = True
        g.start(view_of("one"))
        g.start(view_of("two"))
        g.start(view_of("three", is_recorded=False))
        while not g.recorded:
            await asyncio.sleep(0)
        assert g.where() == ["root"] and g.tree.asked[0][1]["record"] and g.verifier.agenda.pending >= 2
        g.tree.is_learning = False
        await g.settle()
        assert g.counted() == {"recorded": 1, "alike": 3}


async def test_recordings_and_verifications_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while learners are busy, as they are with what was recorded."""
    async with jail(monkeypatch, verifiers=1) as g:
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
