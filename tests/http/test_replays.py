"""Replays: once per key, for any number of requests; bounded by number, bytes and time."""

from __future__ import annotations

import asyncio

import pytest

from sockd.base.config import HttpConfig
from sockd.http.replays import KeyReused, Replays
from sockd.http.server.messages.answers import Answer

pytestmark = pytest.mark.anyio
RAN = "x-sockd-sandbox: s\r\n"


class Counted:
    """Something to run; counts how often it was."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer = answer or Answer(200, RAN, b"1")
        self.runs = 0
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self) -> Answer:
        self.runs += 1
        await self.go.wait()
        return self.answer


async def test_who_comes_meanwhile_waits_and_who_comes_later_gets_the_same() -> None:
    replays, run = Replays(HttpConfig()), Counted()
    run.go.clear()
    asked = [asyncio.ensure_future(replays.once(("k",), b"x", run, strict=True)) for _ in range(5)]
    await asyncio.sleep(0)
    run.go.set()
    assert {answer.body for answer in await asyncio.gather(*asked)} == {b"1"}
    assert (await replays.once(("k",), b"x", run, strict=True)).fields == f"{RAN}x-sockd-replayed: 1\r\n"
    assert run.runs == 1


async def test_another_body_is_an_error_or_another_request() -> None:
    replays, run = Replays(HttpConfig()), Counted()
    large = bytes(100_000)
    await replays.once(("k",), large, run, strict=True)
    with pytest.raises(KeyReused):
        await replays.once(("k",), bytes(100_001), run, strict=True)
    await replays.once(("k",), b"y", run, strict=False)
    await replays.once(("k",), large, run, strict=True)
    assert run.runs == 2


async def test_what_was_not_run_or_failed_is_run_again() -> None:
    replays, refused = Replays(HttpConfig()), Counted(Answer(429, "retry-after: 1\r\n", b""))
    for _ in range(2):
        await replays.once(("k",), b"x", refused, strict=True)
    assert refused.runs == 2

    async def breaks() -> Answer:
        raise ValueError

    with pytest.raises(ValueError):
        await replays.once(("k",), b"x", breaks, strict=True)
    assert (await replays.once(("k",), b"x", Counted(), strict=True)).status == 200


async def test_answers_are_kept_within_bounds() -> None:
    now = [0.0]
    replays = Replays(HttpConfig(replay_s=10, replay_answers=3, replay_bytes=5000), now=lambda: now[0])
    run = Counted()
    for number in range(5):
        await replays.once((str(number),), b"x", run, strict=True)
    assert replays.stored == 3
    await replays.once(("large",), b"x", Counted(Answer(200, RAN, bytes(6000))), strict=True)
    assert (replays.stored, replays.size_bytes) == (0, 0)
    await replays.once(("k",), b"x", run, strict=True)
    now[0] = 11
    await replays.once(("k",), b"x", run, strict=True)
    assert run.runs == 7
    assert replays.stored == 1


async def test_who_waits_runs_the_request_when_the_first_hangs_up_before_it_is_run() -> None:
    replays, first, others = Replays(HttpConfig()), Counted(Answer(503, "retry-after: 1\r\n", b"")), Counted()
    first.go.clear()
    left = asyncio.ensure_future(replays.once(("k",), b"x", first, strict=True, gone=lambda: True))
    await asyncio.sleep(0)
    waiting = [asyncio.ensure_future(replays.once(("k",), b"x", others, strict=True)) for _ in range(3)]
    await asyncio.sleep(0)
    first.go.set()
    assert (await left).status == 503
    assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}
    assert (first.runs, others.runs) == (1, 1)


async def test_who_waits_gets_what_was_run_though_the_first_has_hung_up() -> None:
    replays, run = Replays(HttpConfig()), Counted()
    run.go.clear()
    asked = [asyncio.ensure_future(replays.once(("k",), b"x", run, strict=True, gone=lambda: True)) for _ in range(2)]
    await asyncio.sleep(0)
    run.go.set()
    assert [answer.status for answer in await asyncio.gather(*asked)] == [200, 200]
    assert run.runs == 1
