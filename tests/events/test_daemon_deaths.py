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
from tests.events.house import House, all_over, fails, raised, settled
from tests.support.fake_clock import until

pytestmark = pytest.mark.anyio


def answer(payload: bytes) -> bytes:
    return payload


async def die(house: House, directory: Path, functions: str = "", *, after_s: float = 0) -> House:
    """A daemon that accepts one event for each function, lets some time pass, and dies with all that runs.

    Returns: the house of the next daemon."""
    successor = House(directory)
    successor.config = house.config
    successor.clock = successor.functions.clock = house.clock
    successor.functions.do = house.functions.do
    house.functions.holding = asyncio.Event()
    async with house.open() as events:
        for name in functions:
            await events.accept(name, "", b"1", source="aws")
        house.clock.pass_by(after_s)
        await until(lambda: house.functions.at_once >= max(len(functions), 1))
        # What a SIGKILL leaves: the files as they are now. The daemon that they are taken from then ends in order.
        shutil.copytree(house.path, directory)
    return successor


async def test_they_run_late_and_alone_while_others_go_on(house: House, tmp_path: Path) -> None:
    house.functions.do = dict.fromkeys("fgh", answer)
    successor = await die(house, tmp_path / "next", "fffg")
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


async def test_a_function_whose_suspects_are_over_has_all_its_places_again(house: House, tmp_path: Path) -> None:
    house.functions.do = {"f": answer}
    successor = await die(house, tmp_path / "next", "f")
    async with successor.open() as events:
        await all_over(events, successor.clock)
        successor.functions.holding = asyncio.Event()
        for _ in range(5):
            await events.accept("f", "", b"2", source="aws")
        await until(lambda: successor.functions.at_once == 5)


async def test_the_next_suspect_does_not_wait_for_ever_behind_one_that_goes(house: House, tmp_path: Path) -> None:
    house.functions.do = dict.fromkeys("fg", answer)
    successor = await die(house, tmp_path / "next", "fg")
    async with successor.open() as events:
        successor.clock.pass_by(10)
        await until(lambda: successor.functions.ran)
        first = successor.functions.ran[0][0]
        await events.forget("g" if first == "f" else "f")
        await all_over(events, successor.clock)


async def test_after_some_deaths_it_is_a_dead_letter(house: House, tmp_path: Path) -> None:
    house.functions.do = dict.fromkeys("fh", answer)
    house = await die(house, tmp_path / "1", "f")
    house = await die(house, tmp_path / "2", after_s=10)
    house = await die(house, tmp_path / "3", after_s=20)
    async with house.open() as events:
        await until(lambda: events.dead() == 1)
        assert house.functions.ran == []
        (letter,) = await events.dead_letters.last(None, 10)
        assert (letter["reason"], letter["attempts"]) == ("WorkerDied", 3)
        assert events.depth() == {"waiting": 0, "running": 0}
        # It is as new when somebody asks for it again.
        assert await events.dead_letters.retry(None, None) == 1
        await all_over(events, house.clock)
        assert events.status()["endings"]["succeeded"] == 1


async def test_each_death_doubles_the_wait(house: House, tmp_path: Path) -> None:
    house.functions.do = {"f": answer}
    house = await die(house, tmp_path / "1", "f")
    house = await die(house, tmp_path / "2", after_s=10)
    async with house.open() as events:
        house.clock.pass_by(19.9)
        await settled(events)
        assert house.functions.ran == []
        house.clock.pass_by(0.1)
        await until(lambda: house.functions.ran)


async def test_a_destination_for_failures_is_told(house: House, tmp_path: Path) -> None:
    house.functions.do = {"f": answer}
    house.config = EventsConfig(max_deaths=1)
    async with house.open() as events:
        await events.invoke_configs.put(EventInvokeConfig(function="f", on_failure="directory:failed"))
    house = await die(house, tmp_path / "1", "f")
    async with house.open() as events:
        await until(lambda: events.endings())
        assert events.endings() == {"delivered": 1}
    (record,) = (house.path / "directories" / "failed").glob("*.json")
    assert json.loads(record.read_text())["requestContext"]["condition"] == "WorkerDied"


async def test_an_orderly_end_is_no_death(house: House) -> None:
    house.functions.do["f"] = fails(lambda: errors.Draining("ending"), 1)
    house.functions.holding = asyncio.Event()
    async with house.open() as events:
        await events.accept("f", "", b"{}", source="aws")
        await until(lambda: house.functions.ran)
        events.stop()
    async with house.open() as events:
        assert events.status()["suspects"] == 0


async def test_what_waits_for_its_retry_is_not_to_blame(house: House, tmp_path: Path) -> None:
    house.functions.do["f"] = fails(raised, 1)
    async with house.open() as events:
        await events.accept("f", "", b"{}", source="aws")
        await settled(events)
        shutil.copytree(house.path, tmp_path / "next")
    successor = House(tmp_path / "next")
    async with successor.open() as events:
        assert events.depth() == {"waiting": 1, "running": 0}
        assert events.status()["suspects"] == 0


async def test_a_file_without_these_tables_goes_on(house: House) -> None:
    house.functions.do = {"f": answer}
    async with house.open() as events:
        pass
    database = sqlite3.connect(house.path / "events.sqlite")
    database.executescript("DROP TRIGGER event_went; DROP TABLE attempts; DROP TABLE suspicions;")
    database.close()
    async with house.open() as events:
        await events.accept("f", "", b"1", source="aws")
        await all_over(events, house.clock)
        assert events.status()["endings"] == {"succeeded": 1}
