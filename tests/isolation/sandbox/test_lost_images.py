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
from tests.support.house import House, Running

pytestmark = pytest.mark.root
LOST = ImageUnavailable("the agent is gone", retry_after_s=7)
ECHO = "def handler(event): return event\n"


@pytest.fixture
def image() -> ImageBase:
    """What a farm of a test is said to stand on."""
    return ImageBase(-1, -1)


async def fork(house: House, image: ImageBase, program: Program, *, spare: bool = False) -> Sandbox:
    reservation = await house.reserve(program.limits)
    parts = replace(house.parts, image=image)
    return await Sandbox.fork(parts, house.root, program.limits, reservation, None if spare else program)


def started(house: House, image: ImageBase, source: str = ECHO, *, spare: bool = False) -> Running:
    program = house.program(source)
    return Running(house, house.run(fork(house, image, program, spare=spare)), program)


def lose(house: House, image: ImageBase) -> None:
    house.call(lambda: image.lose(LOST))


def test_idle_paused_and_spare_sandboxes_end_when_their_image_is_lost(house: House, image: ImageBase) -> None:
    idle, paused = (started(house, image) for _ in range(2))
    spare = started(house, image, spare=True)
    for each in (idle, paused):
        assert each.answer(1) == 1
    house.call(paused.sandbox.pause)
    ended: list[Sandbox] = []
    for each in (idle, paused, spare):
        each.sandbox.on_death = ended.append
    lose(house, image)
    assert sorted(each.id for each in ended) == sorted(each.sandbox.id for each in (idle, paused, spare))
    assert not image.watchers
    house.settle()
    assert image.holders == 0, "its mounts are closed behind the last of them"


def test_a_request_under_way_is_answered_and_its_sandbox_ends_then(house: House, image: ImageBase) -> None:
    running = started(house, image)
    assert running.answer("before") == "before"

    async def answered() -> bytes:
        asking = asyncio.ensure_future(running.send("during"))
        await asyncio.sleep(0)
        image.lose(LOST)
        assert not running.dead
        reply = await asking
        assert reply.error is None
        return bytes(reply.body)

    assert house.run(answered()) == b'"during"'
    assert running.dead and running.sandbox.has_lost_image


def test_no_sandbox_is_made_in_a_lost_image(house: House, image: ImageBase) -> None:
    lose(house, image)
    with pytest.raises(ImageUnavailable, match="the agent is gone") as told:
        started(house, image)
    assert told.value is not LOST and told.value.retry_after_s == 7
    house.settle()


@pytest.mark.parametrize("when", ["forked", "failed", "explained"])
def test_an_image_that_is_lost_during_a_fork_is_the_cause(
    house: House, image: ImageBase, monkeypatch: pytest.MonkeyPatch, when: str
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
        started(house, image)
    assert not image.watchers
    house.settle()
    assert image.holders == 0


def test_one_that_is_initialized_while_its_image_is_lost_is_no_provisioned_one(house: House, image: ImageBase) -> None:
    running = started(house, image)

    async def initialize() -> Reply:
        running.sandbox.become(running._program)
        return await running.sandbox.initialize()

    async def initialized() -> object:
        initializing = asyncio.ensure_future(initialize())
        await asyncio.sleep(0)
        image.lose(LOST)
        return (await initializing).error

    assert isinstance(house.run(initialized()), ImageUnavailable) and running.dead


def test_one_that_fails_in_its_image_asks_why_once_the_agent_is_settled(house: House, image: ImageBase) -> None:
    running = started(house, image, "raise OSError(5, 'I/O error')\n")

    async def settled() -> None:
        image.lose(LOST)

    image.settled = settled
    assert isinstance(running.request().error, InitFailed)
    lost = house.run(running.sandbox.why_lost())
    assert isinstance(lost, ImageUnavailable) and lost.retry_after_s == 7
