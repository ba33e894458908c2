"""Events that were running when the daemon died: run again late, one at a time, and in the end no more."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from sockd.base import errors
from sockd.base.config import EventsConfig
from sockd.events.event_configs import EventInvokeConfig
from tests.events.harness import Harness, all_over, fails, raised, settled
from tests.support.fake_clock import until

pytestmark = pytest.mark.anyio


def answer(payload: bytes) -> bytes:
    return payload


async def die(harness: Harness, directory: Path, functions: str = "", *, after_s: float = 0) -> Harness:
    """A daemon that accepts one event for each function, lets some time pass, and dies with all that runs.

    Returns: the harness of the next daemon."""
    successor = Harness(directory)
    successor.config = harness.config
    successor.clock = successor.functions.clock = harness.clock
    successor.functions.do = harness.functions.do
    harness.functions.holding = asyncio.Event()
    async with harness.open() as events:
        for name in functions:
            await events.accept(name, "", b"1", source="aws")
        harness.clock.pass_by(after_s)
        await until(lambda: harness.functions.at_once >= max(len(functions), 1))
        # What a SIGKILL leaves: the files as they are now. The daemon that they are taken from then ends in order.
        shutil.copytree(harness.path, directory)
    return successor


async def test_they_run_late_and_alone_while_others_go_on(harness: Harness, tmp_path: Path) -> None:
    harness.functions.do = dict.fromkeys("fgh", answer)
    successor = await die(harness, tmp_path / "next", "fffg")
    async with successor.open() as events:
        assert events.status()["suspects"] == 4
        await events.accept("h", "", b"1", source="aws")
        await events.accept("f", "", b"2", source="aws")  # its function is held back, too
        await settled(events)
        successor.clock.pass_by(9.9)
        await settled(events)
        assert [name for name, _, _ in successor.functions.ran] == ["h"]
        await all_over(events, successor.clock)
        assert sorted(name for name, _, _ in successor.functions.ran) == ["f", "f", "f", "f", "g", "h"]
        assert successor.functions.most_at_once == 1
        assert events.status()["endings"] == {"succeeded": 6}
        assert events.status()["suspects"] == 0


async def test_a_function_whose_suspects_are_over_has_all_its_places_again(harness: Harness, tmp_path: Path) -> None:
    harness.functions.do = {"f": answer}
    successor = await die(harness, tmp_path / "next", "f")
    async with successor.open() as events:
        await all_over(events, successor.clock)
        successor.functions.holding = asyncio.Event()
        for _ in range(5):
            await events.accept("f", "", b"2", source="aws")
        await until(lambda: successor.functions.at_once == 5)


async def test_the_next_suspect_does_not_wait_for_ever_behind_one_that_goes(harness: Harness, tmp_path: Path) -> None:
    harness.functions.do = dict.fromkeys("fg", answer)
    successor = await die(harness, tmp_path / "next", "fg")
    async with successor.open() as events:
        successor.clock.pass_by(10)
        await until(lambda: successor.functions.ran)
        first = successor.functions.ran[0][0]
        await events.forget("g" if first == "f" else "f")
        await all_over(events, successor.clock)


async def test_after_some_deaths_it_is_a_dead_letter(harness: Harness, tmp_path: Path) -> None:
    harness.functions.do = dict.fromkeys("fh", answer)
    harness = await die(harness, tmp_path / "1", "f")
    harness = await die(harness, tmp_path / "2", after_s=10)
    harness = await die(harness, tmp_path / "3", after_s=20)
    async with harness.open() as events:
        await until(lambda: events.dead() == 1)
        assert harness.functions.ran == []
        (letter,) = await events.dead_letters.last(None, 10)
        assert (letter["reason"], letter["attempts"]) == ("WorkerDied", 3)
        assert events.depth() == {"waiting": 0, "running": 0}
        # It is as new when somebody asks for it again.
        assert await events.dead_letters.retry(None, None) == 1
        await all_over(events, harness.clock)
        assert events.status()["endings"]["succeeded"] == 1


async def test_each_death_doubles_the_wait(harness: Harness, tmp_path: Path) -> None:
    harness.functions.do = {"f": answer}
    harness = await die(harness, tmp_path / "1", "f")
    harness = await die(harness, tmp_path / "2", after_s=10)
    async with harness.open() as events:
        harness.clock.pass_by(19.9)
        await settled(events)
        assert harness.functions.ran == []
        harness.clock.pass_by(0.1)
        await until(lambda: harness.functions.ran)


async def test_a_destination_for_failures_is_reported(harness: Harness, tmp_path: Path) -> None:
    harness.functions.do = {"f": answer}
    harness.config = EventsConfig(max_deaths=1)
    async with harness.open() as events:
        await events.invoke_configs.put(EventInvokeConfig(function="f", on_failure="directory:failed"))
    harness = await die(harness, tmp_path / "1", "f")
    async with harness.open() as events:
        await until(lambda: events.endings())
        assert events.endings() == {"delivered": 1}
    (record,) = (harness.path / "directories" / "failed").glob("*.json")
    assert json.loads(record.read_text())["requestContext"]["condition"] == "WorkerDied"


async def test_an_orderly_end_is_no_death(harness: Harness) -> None:
    harness.functions.do["f"] = fails(lambda: errors.Draining("ending"), 1)
    harness.functions.holding = asyncio.Event()
    async with harness.open() as events:
        await events.accept("f", "", b"{}", source="aws")
        await until(lambda: harness.functions.ran)
        events.stop()
    async with harness.open() as events:
        assert events.status()["suspects"] == 0


async def test_what_waits_for_its_retry_is_not_to_blame(harness: Harness, tmp_path: Path) -> None:
    harness.functions.do["f"] = fails(raised, 1)
    async with harness.open() as events:
        await events.accept("f", "", b"{}", source="aws")
        await settled(events)
        shutil.copytree(harness.path, tmp_path / "next")
    successor = Harness(tmp_path / "next")
    async with successor.open() as events:
        assert events.depth() == {"waiting": 1, "running": 0}
        assert events.status()["suspects"] == 0


async def test_a_file_without_these_tables_goes_on(harness: Harness) -> None:
    harness.functions.do = {"f": answer}
    async with harness.open() as events:
        pass
    database = sqlite3.connect(harness.path / "events.sqlite")
    database.executescript("DROP TRIGGER event_went; DROP TABLE attempts; DROP TABLE suspicions;")
    database.close()
    async with harness.open() as events:
        await events.accept("f", "", b"1", source="aws")
        await all_over(events, harness.clock)
        assert events.status()["endings"] == {"succeeded": 1}
