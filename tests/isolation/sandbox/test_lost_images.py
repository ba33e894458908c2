"""Sandboxes whose image is lost: those that wait end, those that work finish, and no further one is made in it."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest

from sockd.base.errors import ImageUnavailable, InitFailed
from sockd.isolation.farm.zygote import Child, Zygote
from sockd.isolation.roots.image_base import ImageBase
from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.exchange import Reply
from sockd.isolation.sandbox.sandbox import Sandbox
from tests.support.harness import Harness, Running

pytestmark = pytest.mark.root
LOST = ImageUnavailable("the agent is gone", retry_after_s=7)
ECHO = "def handler(event): return event\n"


@pytest.fixture
def image() -> ImageBase:
    """What a farm of a test is said to stand on."""
    return ImageBase(-1, -1)


async def fork(harness: Harness, image: ImageBase, program: Program, *, spare: bool = False) -> Sandbox:
    reservation = await harness.reserve(program.limits)
    parts = replace(harness.parts, image=image)
    return await Sandbox.fork(parts, harness.root, program.limits, reservation, None if spare else program)


def started(harness: Harness, image: ImageBase, source: str = ECHO, *, spare: bool = False) -> Running:
    program = harness.program(source)
    return Running(harness, harness.run(fork(harness, image, program, spare=spare)), program)


def lose(harness: Harness, image: ImageBase) -> None:
    harness.call(lambda: image.lose(LOST))


def test_idle_paused_and_spare_sandboxes_end_when_their_image_is_lost(harness: Harness, image: ImageBase) -> None:
    idle, paused = (started(harness, image) for _ in range(2))
    spare = started(harness, image, spare=True)
    for each in (idle, paused):
        assert each.answer(1) == 1
    harness.call(paused.sandbox.pause)
    ended: list[Sandbox] = []
    for each in (idle, paused, spare):
        each.sandbox.on_death = ended.append
    lose(harness, image)
    assert sorted(each.id for each in ended) == sorted(each.sandbox.id for each in (idle, paused, spare))
    assert not image.watchers
    harness.settle()
    assert image.holders == 0, "its mounts are closed behind the last of them"


def test_a_request_under_way_is_answered_and_its_sandbox_ends_then(harness: Harness, image: ImageBase) -> None:
    running = started(harness, image)
    assert running.answer("before") == "before"

    async def answered() -> bytes:
        asking = asyncio.ensure_future(running.send("during"))
        await asyncio.sleep(0)
        image.lose(LOST)
        assert not running.dead
        reply = await asking
        assert reply.error is None
        return bytes(reply.body)

    assert harness.run(answered()) == b'"during"'
    assert running.dead and running.sandbox.has_lost_image


def test_no_sandbox_is_made_in_a_lost_image(harness: Harness, image: ImageBase) -> None:
    lose(harness, image)
    with pytest.raises(ImageUnavailable, match="the agent is gone") as reported:
        started(harness, image)
    assert reported.value is not LOST and reported.value.retry_after_s == 7
    harness.settle()


@pytest.mark.parametrize("when", ["forked", "failed", "explained"])
def test_an_image_that_is_lost_during_a_fork_is_the_cause(
    harness: Harness, image: ImageBase, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    fork_of_zygote = Zygote.fork

    async def fork_then_lose(self: Zygote, *args: object, **options: object) -> Child:
        child = await fork_of_zygote(self, *args, **options)  # type: ignore[arg-type]
        if when != "explained":
            image.lose(LOST)
        if when != "forked":
            os.close(child.pidfd)
            raise OSError(5, "the process's root cannot be read")
        return child

    async def settled() -> None:
        if image.lost is None:
            image.lose(LOST)

    image.settled = settled
    monkeypatch.setattr(Zygote, "fork", fork_then_lose)
    with pytest.raises(ImageUnavailable, match="the agent is gone"):
        started(harness, image)
    assert not image.watchers
    harness.settle()
    assert image.holders == 0


def test_one_that_is_initialized_while_its_image_is_lost_is_no_provisioned_one(
    harness: Harness, image: ImageBase
) -> None:
    running = started(harness, image)

    async def initialize() -> Reply:
        running.sandbox.become(running._program)
        return await running.sandbox.initialize()

    async def initialized() -> object:
        initializing = asyncio.ensure_future(initialize())
        await asyncio.sleep(0)
        image.lose(LOST)
        return (await initializing).error

    assert isinstance(harness.run(initialized()), ImageUnavailable) and running.dead


def test_one_that_fails_in_its_image_asks_why_once_the_agent_is_settled(harness: Harness, image: ImageBase) -> None:
    running = started(harness, image, "raise OSError(5, 'I/O error')\n")

    async def settled() -> None:
        image.lose(LOST)

    image.settled = settled
    assert isinstance(running.request().error, InitFailed)
    lost = harness.run(running.sandbox.why_lost())
    assert isinstance(lost, ImageUnavailable) and lost.retry_after_s == 7
