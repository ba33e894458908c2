"""Live parts: sent when they differ, to as many as may look, for as long as they do."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType

import pytest

from sockd.http.page import live
from sockd.http.page.boards import Board, Part, digest_of
from sockd.http.page.live import Live, TooManyViewers, event
from sockd.http.page.page import Page
from sockd.http.page.parts import index_parts
from sockd.http.page.rendering import Rendering
from tests.http.page.fake_page_worker import FakePageSources, FakePageWorker
from tests.http.raw import Raw, get, raw

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "TICK_S", 0.01)


@pytest.fixture(autouse=True)
def token(page: Page) -> None:
    page._access.token = "t"


async def opened(client: Raw, path: str) -> int:
    client.send(get(path))
    line = await client._reader.readline()
    await client._reader.readuntil(b"\r\n\r\n")
    return int(line.split()[1])


async def events(client: Raw) -> str:
    """The next chunk."""
    async with asyncio.timeout(10):
        size = int(await client._reader.readline(), 16)
        text = (await client._reader.readexactly(size)).decode()
        await client._reader.readline()
        return text


def names(text: str) -> list[str]:
    return [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]


async def test_what_has_been_seen_is_not_sent_and_what_changes_is(port: int, worker: FakePageWorker) -> None:
    async with raw(port) as client:
        page = (await client.ask(get("/"))).body.decode()
        address = page.partition('data-events="')[2].partition('"')[0].replace("&amp;", "&")
        assert address.startswith("/events?token=t&seen=")
        assert await opened(client, address) == 200
        assert "retry:" in await events(client)
        worker.rate = 7.0
        assert names(await events(client)) == ["glance"]


async def test_who_comes_back_gets_everything(port: int) -> None:
    async with raw(port) as client:
        await opened(client, "/events?token=t&seen=")
        await events(client)
        assert names(await events(client)) == [
            "glance",
            "functions",
            "history",
            "tree",
            "caches",
            "events",
            "invocations",
            "failures",
            "cold_starts",
        ]


async def test_a_functions_page_has_its_own_parts_and_ends_with_the_function(port: int, worker: FakePageWorker) -> None:
    async with raw(port) as client:
        await opened(client, "/events?token=t&function=echo")
        await events(client)
        assert names(await events(client)) == ["lately", "history", "invocations", "failures", "cold_starts"]
        worker.names.discard("echo")
        assert "gone" in await events(client)
        assert await client._reader.readline() == b"0\r\n"
        await client._reader.readline()
        assert (await client.ask(get("/events?token=t&function=echo"))).status == 404


async def test_more_viewers_than_may_be_learn_that_and_places_come_back(port: int, page: Page) -> None:
    async with raw(port) as first, raw(port) as second, raw(port) as third:
        for client in (first, second):
            await opened(client, "/events?token=t")
            await events(client)
            await events(client)
        assert (await third.ask(get("/events?token=t"))).status == 503
        assert page._live.viewers == page._index.viewers == 2
    async with asyncio.timeout(10):
        while page._live.viewers:
            await asyncio.sleep(0)


async def test_streams_end_when_the_worker_drains(port: int, worker: FakePageWorker) -> None:
    async with raw(port) as client:
        await opened(client, "/events?token=t")
        await events(client)
        worker.calls.draining = True
        while await events(client):
            pass


async def test_a_silent_stream_shows_that_it_lives(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "HEARTBEAT_TICKS", 2)
    async with raw(port) as client:
        await opened(client, "/events?token=t")
        for _ in range(2):
            await events(client)
        assert await events(client) == ":\n\n"


async def test_a_head_of_a_stream_ends(port: int) -> None:
    async with raw(port) as client:
        client.send(get("/events?token=t", "Connection: close", method="HEAD"))
        assert (await client.rest()).endswith(b"\r\n\r\n")


async def test_parts_are_rendered_once_for_all_and_only_when_their_values_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rendered: list[str] = []

    class Counting(Rendering):
        async def render(self, template: str, values: object) -> str:
            rendered.append(template)
            await asyncio.sleep(0)
            return str(values)

    values = {"n": 1}
    board = Board(Counting(), [Part("a", lambda: dict(values)), Part("b", dict)])
    first, again = await asyncio.gather(board.refresh(), board.refresh())
    assert first == again and rendered == ["parts/a.html", "parts/b.html"]
    values["n"] = 2
    changed = await board.refresh()
    assert rendered[2:] == ["parts/a.html"]
    assert changed["a"].digest == digest_of(changed["a"].html) != first["a"].digest


async def test_no_one_is_watched_for_while_no_one_looks() -> None:
    worker = FakePageWorker("echo")
    watching = Live(1, lambda: worker.calls.draining)
    board = Board(Rendering(), [Part("glance", dict)])
    stream = watching.watch(board, [])
    await anext(stream)
    with pytest.raises(TooManyViewers):
        watching.watch(board, [])
    await stream.aclose()
    assert watching.viewers == board.viewers == 0 and watching._tick is None


def test_an_event_is_one_whatever_its_lines_are() -> None:
    assert event("a", "x\n\ry") == b"event: a\ndata: x\ndata: \ndata: y\n\n"


MOST_CALLS = 15_000
MOST_BYTES = 53_000
"""The most bytes of the live parts of `/` with 20 functions: 13 682 and 48 240 on Python 3.11, and a tenth more."""


async def test_the_parts_of_the_page_cost_a_counted_number_of_calls_and_bytes() -> None:
    worker, calls = FakePageWorker(*(f"echo{number}" for number in range(20))), 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    rendering = Rendering()
    await Board(rendering, index_parts(worker, FakePageSources())).refresh()  # loads and compiles the templates
    board = Board(rendering, index_parts(worker, FakePageSources()))
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        fragments = await board.refresh()
    finally:
        sys.setprofile(before)
    size = sum(len(fragment.html) for fragment in fragments.values())
    assert calls <= MOST_CALLS and size <= MOST_BYTES, (calls, size)
