"""When the agent is asked whether it answers."""

from __future__ import annotations

import asyncio

import pytest

from sockd.images.agent_keeper import agent_watch
from sockd.images.agent_keeper.agent_watch import AgentWatch

pytestmark = pytest.mark.anyio


async def test_one_question_is_asked_soon_after_uses_and_none_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_watch, "PERIOD_S", 0.0)
    asked, answer = asyncio.Event(), asyncio.Event()
    questions = 0

    async def ask() -> None:
        nonlocal questions
        questions += 1
        asked.set()
        await answer.wait()

    watch = AgentWatch(ask)
    for _ in range(3):
        watch.look()
    await asked.wait()
    watch.look()
    answer.set()
    while watch._asking is not None:
        await asyncio.sleep(0)
    assert questions == 1 and watch._timer is None, "nothing wakes an idle worker"
    asked.clear()
    watch.look()
    await asked.wait()
    assert questions == 2
    await watch.aclose()


async def test_a_question_without_an_answer_ends_with_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_watch, "PERIOD_S", 0.0)
    asked = asyncio.Event()

    async def ask() -> None:
        asked.set()
        await asyncio.Event().wait()

    watch = AgentWatch(ask)
    watch.look()
    await asked.wait()
    await watch.aclose()
    assert watch._asking is None
