"""Guest threads' alarms: each in its time, whichever other alarms are set, and one timer for all."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable

import pytest

from sockd.linux import timerfd
from sockd_initscripts.engine.alarm import AlarmTimer
from sockd_initscripts.engine.watched import Watched

pytestmark = pytest.mark.anyio


@pytest.fixture
async def timer() -> AsyncIterator[AlarmTimer]:
    watched = Watched(asyncio.get_running_loop())
    timer = AlarmTimer(watched)
    yield timer
    timer.close()
    watched.close()


def once(function: Callable[..., None], *args: object) -> Callable[[], float]:
    """For an alarm that is called once."""

    def call() -> float:
        function(*args)
        return math.inf

    return call


async def test_each_alarm_goes_off_in_its_time(timer: AlarmTimer) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    alarms = {name: timer.alarm() for name in ("late", "early", "cleared", "latest")}
    for name, seconds in (("late", 0.6), ("early", 0.2), ("cleared", 0.3), ("latest", 0.9)):
        await asyncio.to_thread(alarms[name].set, seconds, once(heard.put_nowait, name))
    alarms["cleared"].clear()
    for name in ("early", "late", "latest"):
        assert await heard.get() == name
        alarms[name].clear()
    alarms["early"].set(0.01, once(heard.put_nowait, "again"))
    assert await heard.get() == "again"


async def test_an_alarm_that_is_due_already_goes_off(timer: AlarmTimer) -> None:
    heard = asyncio.Event()
    timer.alarm().set(0.0, once(heard.set))
    await heard.wait()


async def test_an_alarm_goes_off_until_it_is_cleared(timer: AlarmTimer) -> None:
    heard: asyncio.Queue[int] = asyncio.Queue()
    alarm = timer.alarm()

    def call() -> float:
        heard.put_nowait(1)
        return 0.001

    alarm.set(0.001, call)
    for _ in range(3):
        await heard.get()
    alarm.clear()
    assert alarm.look(math.inf) == math.inf


async def test_who_is_due_after_another_asks_the_kernel_for_nothing(
    timer: AlarmTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    ask = timerfd.set_once

    def counted(fd: int, seconds: float) -> None:
        asked.append(seconds)
        ask(fd, seconds)

    monkeypatch.setattr(timerfd, "set_once", counted)
    first, second = timer.alarm(), timer.alarm()
    heard = asyncio.Event()
    for _ in range(5):
        first.set(30, once(heard.set))
        first.clear()
        second.set(40, once(heard.set))
    assert len(asked) == 1
    second.set(0.01, once(heard.set))
    await heard.wait()
    assert len(asked) == 2
