"""The agent's process ends, stops or is killed: readers get the right bytes, later, or EIO."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks.s3.client import Client
from sockd.base.errors import ImageUnavailable
from sockd.images.agent import agent_wire as wire
from sockd.images.agent_keeper import agent_keeper, device_holder
from sockd.images.agent_keeper.agent_keeper import MOST_ENDS, Ends
from sockd.images.agent_keeper.agent_link import AgentLink
from sockd.images.agent_keeper.fuse_mount import FuseMount
from sockd.images.agent_keeper.image_agent import GIVEN_UP_S, ImageAgent, given_up_s
from sockd.images.chunks.directory_store import DirectoryStore
from sockd.images.chunks.store import ChunkStore
from sockd.images.chunks.store_settings import StoreSettings
from tests.images.agent_keeper.conftest import Start, Troubles
from tests.images.agent_keeper.read_image import (
    DIGEST,
    IMAGE,
    NOTHING_AHEAD,
    SMALL_CACHE,
    kill,
    part,
    right_part,
)
from tests.support.cases import case
from tests.support.emulated import keeps_requests_of_killed_servers
from tests.support.images.chunked_images import digest_of, random_image, stored
from tests.support.images.startup_profiles import opened

pytestmark = [pytest.mark.root, pytest.mark.anyio]
needs_resend = pytest.mark.usefixtures("resends")


def children(module: str) -> set[int]:
    """Children of this process that run a module."""
    found = set()
    for pid in Path("/proc/self/task").glob("*/children"):
        for child in pid.read_text().split():
            with contextlib.suppress(OSError):
                if module.encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.add(int(child))
    return found


@keeps_requests_of_killed_servers
@case("I1", "SIGKILL the agent of images five times while six readers read", expect="every reader has the right bytes")
@needs_resend
async def test_readers_finish_with_the_right_bytes_however_often_the_agent_is_killed(
    start: Start, s3_settings: StoreSettings, s3_store: ChunkStore, s3_client: Client
) -> None:
    manifest = await asyncio.to_thread(stored, IMAGE, s3_store)
    await asyncio.to_thread(s3_client.inject, delay_s=0.03, method="GET")  # so that reads are always under way
    agent = await start(s3_settings, l1_bytes=SMALL_CACHE)
    path = await agent.open(manifest)
    readers = [asyncio.ensure_future(asyncio.to_thread(digest_of, path)) for _ in range(6)]
    for _ in range(MOST_ENDS - 1):
        await kill(agent)
    assert await asyncio.gather(*readers) == [DIGEST] * 6
    assert agent.starts == MOST_ENDS


@case("I2", "SIGKILL the agent while a read waits for the store", expect="the next agent answers it")
@needs_resend
async def test_a_request_that_the_killed_agent_had_read_is_answered_by_the_next(
    s3_client: Client, one_chunk_read: tuple[ImageAgent, str]
) -> None:
    agent, path = one_chunk_read
    await asyncio.to_thread(s3_client.inject, delay_s=600, method="GET", times=1)
    reader = asyncio.ensure_future(part(path, 5))
    await asyncio.to_thread(s3_client.requests, at_least=1)  # the agent has read it, and waits for the store
    begun_s = time.monotonic()
    await kill(agent)
    assert await reader == right_part(5)
    assert time.monotonic() - begun_s < 10, "on a busy machine; less than 1 s otherwise"


@case("I3", "SIGKILL the agent while another one stands by", expect="that one takes over")
@needs_resend
async def test_the_process_that_stands_by_takes_over(start: Start, store: DirectoryStore) -> None:
    agent = await start()
    path = await agent.open(stored(IMAGE, store))
    while len(standing := children("sockd.linux.confined.launcher")) < 2:
        await asyncio.sleep(0)
    await kill(agent)
    assert agent.pid in standing
    assert await part(path, 5) == right_part(5)


@case("I55", "SIGSTOP the agent and the one that stands by, while reads wait", expect="the next agent answers them")
@needs_resend
async def test_an_agent_that_is_stopped_is_replaced_and_its_readers_go_on(
    start: Start, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_keeper, "START_S", 10.0)
    agent = await start(answer_s=1.0)
    path = await agent.open(stored(IMAGE, store))
    assert await part(path, 1) == right_part(1)
    while len(agents := children_of(children("sockd.linux.confined.launcher"))) < 2:
        await asyncio.sleep(0)
    for pid in agents:
        os.kill(pid, signal.SIGSTOP)
    readers = [asyncio.ensure_future(part(path, number)) for number in (20, 30)]
    agent.look()
    assert await asyncio.gather(*readers) == [right_part(20), right_part(30)]
    assert agent.starts > 1


@needs_resend
async def test_a_stopped_agent_that_is_asked_for_an_image_is_replaced(start: Start, store: DirectoryStore) -> None:
    agent = await start(answer_s=1.0, standby=False)
    await agent.ready()
    [pid] = children_of({agent.pid})
    os.kill(pid, signal.SIGSTOP)
    assert await part(await agent.open(stored(IMAGE, store)), 1) == right_part(1)


def children_of(launchers: set[int]) -> set[int]:
    """The agents of launchers that have started theirs."""
    found = set()
    for launcher in launchers:
        found |= {int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()}
    return found


@needs_resend
async def test_an_image_that_is_closed_while_the_next_agent_starts_is_not_given_to_it(
    start: Start, store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await start(standby=False)
    path = await agent.open(stored(IMAGE, store))
    await agent.open(stored(random_image(2), store, "another"))
    moved = stored(random_image(2), store, "another", root="r2")
    tasks: list[asyncio.Task[None]] = []
    other_files: list[int] = []

    async def ask(
        link: AgentLink,
        question: Callable[[int], wire.ToAgent],
        descriptors: Sequence[int] = (),
        *,
        within_s: float | None = None,
    ) -> wire.Answer:
        """Move the second image to another root, and close it, when the first is given to the next process."""
        answer = await ask_at_once(link, question, descriptors, within_s=within_s)
        if not tasks:
            for work in (agent.switch(moved), agent.close("another")):
                tasks.append(asyncio.ensure_future(work))
                await asyncio.sleep(0)
            other_files.append(os.open(tmp_path, os.O_PATH | os.O_CLOEXEC))  # with the number of its chunk table
        return answer

    ask_at_once = AgentLink.ask
    monkeypatch.setattr(AgentLink, "ask", ask)
    await kill(agent)
    with pytest.raises(ImageUnavailable, match="closed meanwhile"):
        await tasks[0]
    await tasks[1]
    os.close(other_files[0])
    assert await part(path, 5) == right_part(5)
    assert (agent.starts, (await agent.counters())["images"]) == (2, 1)


@case("I4", "SIGKILL every agent until the keeper gives up", expect="EIO, a typed error, and another connection later")
@needs_resend
async def test_an_agent_that_ends_too_often_fails_reads_and_the_image_can_be_opened_anew(
    start: Start, store: DirectoryStore, troubles: Troubles, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await start()
    manifest = stored(IMAGE, store)
    path = await agent.open(manifest)
    for _ in range(MOST_ENDS - 1):
        await kill(agent)
    os.kill(agent.pid, signal.SIGKILL)
    while not troubles:
        await asyncio.sleep(0)
    assert [(image, type(error)) for image, error in troubles] == [("image", ImageUnavailable)]
    with pytest.raises(OSError):
        await part(path, 1)
    with pytest.raises(ImageUnavailable, match="the agent of images is given up") as reported:
        await agent.open(manifest)
    assert 1 <= reported.value.retry_after_s <= GIVEN_UP_S
    agent._again_s = 0.0
    assert await part(await agent.open(manifest), 1) == right_part(1)


@case(
    "I61",
    "SIGKILL the agent where the kernel sends no reads again",
    expect="EIO at once, a typed error, and another connection at once",
)
async def test_without_resends_an_agent_s_end_fails_reads_and_the_image_can_be_opened_anew(
    start: Start, s3_settings: StoreSettings, s3_store: ChunkStore, s3_client: Client, troubles: Troubles
) -> None:
    manifest = await asyncio.to_thread(stored, IMAGE, s3_store)
    agent = await start(s3_settings, stall_s=600.0, may_resend=False)
    path = await agent.open(manifest, opened(manifest, NOTHING_AHEAD))
    assert await part(path, 1) == right_part(1)
    await asyncio.to_thread(s3_client.forget_requests)
    await asyncio.to_thread(s3_client.inject, delay_s=600, method="GET", times=1)
    reader = asyncio.ensure_future(part(path, 5))
    await asyncio.to_thread(s3_client.requests, at_least=1)  # the agent has read it, and waits for the store
    [pid] = children_of({agent.pid})
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(OSError):
        await reader
    await agent.settled()
    assert [(image, type(error)) for image, error in troubles] == [("image", ImageUnavailable)]
    assert await part(await agent.open(manifest), 5) == right_part(5)
    assert agent.starts == 1, "of another connection"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["gone", "silent"])
async def test_without_its_holder_a_connection_ends_with_the_agent_and_is_opened_anew(
    start: Start, store: DirectoryStore, troubles: Troubles, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    agent = await start()
    manifest = stored(IMAGE, store)
    path = await agent.open(manifest)
    [holder] = children(device_holder.MODULE)
    os.kill(holder, number)
    monkeypatch.setattr(device_holder, "ANSWER_S", 0.1)
    assert await part(path, 1) == right_part(1)
    os.kill(agent.pid, signal.SIGKILL)
    while not troubles:
        await asyncio.sleep(0)
    assert [(image, type(error)) for image, error in troubles] == [("image", ImageUnavailable)]
    assert "holder" in troubles[0][1].message
    with pytest.raises(OSError):
        await part(path, 5)
    monkeypatch.setattr(device_holder, "ANSWER_S", 20.0)
    assert await part(await agent.open(manifest), 5) == right_part(5), "another is started at once"


@needs_resend
async def test_what_failed_is_explained_once_an_agent_serves_or_is_given_up(
    start: Start, store: DirectoryStore, troubles: Troubles
) -> None:
    agent = await start(standby=False)
    await agent.open(stored(IMAGE, store))
    await agent.settled()
    assert agent.starts == 1 and not troubles
    [pid] = map(int, Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split())
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(wait_gone, pid)
    await agent.settled()
    assert agent.starts == 2 and not troubles, "the next one serves"
    [holder] = children(device_holder.MODULE)
    [pid] = map(int, Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split())
    os.kill(holder, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(wait_gone, pid)
    await agent.settled()
    assert [(image, type(error)) for image, error in troubles] == [("image", ImageUnavailable)]


def wait_gone(pid: int) -> None:
    """Until its launcher has reaped a process, whose last thread has closed its descriptors by then; not in the loop, which is to
    learn of it by `settled` alone."""
    while os.path.exists(f"/proc/{pid}"):
        os.sched_yield()


def test_an_agent_given_up_is_restarted_at_once_only_after_a_first_lost_connection() -> None:
    assert given_up_s(math.inf, too_often=True) == GIVEN_UP_S
    assert given_up_s(math.inf, too_often=False) == 0
    assert given_up_s(GIVEN_UP_S - 1, too_often=False) == GIVEN_UP_S


def test_pauses_between_starts_grow_and_old_ends_are_forgotten() -> None:
    ends = Ends()
    assert [ends.pause_s(now_s) for now_s in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)] == [0.0, 0.1, 0.2, 0.4, 0.8, None]
    assert ends.pause_s(100.0) == 0.0


@needs_resend
async def test_without_a_resend_a_request_of_the_killed_agent_would_wait(
    s3_client: Client, one_chunk_read: tuple[ImageAgent, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The case of the request that the killed agent had read can fail."""
    monkeypatch.setattr(FuseMount, "resend", lambda self: asyncio.sleep(0))
    agent, path = one_chunk_read
    await asyncio.to_thread(s3_client.inject, delay_s=600, method="GET", times=1)
    reader = asyncio.ensure_future(part(path, 5))
    await asyncio.to_thread(s3_client.requests, at_least=1)
    await kill(agent)
    assert await part(path, 6) == right_part(6)
    assert not reader.done()
    await agent.aclose()
    with pytest.raises(OSError):
        await reader
