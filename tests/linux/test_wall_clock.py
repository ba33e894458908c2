"""The timer on the wall clock: goes off when it is time, and at once for what has passed."""

from __future__ import annotations

import asyncio
import errno
import time

import pytest

from sockd.linux.wall_clock import WallTimer

pytestmark = pytest.mark.anyio


async def test_it_goes_off_once_at_its_moment() -> None:
    calls: asyncio.Queue[bool] = asyncio.Queue()
    timer = WallTimer(calls.put_nowait)
    try:
        wanted = time.time() + 0.05
        timer.set(wanted)
        assert await asyncio.wait_for(calls.get(), 5) is False
        assert time.time() >= wanted - 0.001
        timer.set(time.time() - 3600)
        assert await asyncio.wait_for(calls.get(), 5) is False
        timer.set(time.time() + 0.05)
        timer.set(None)
        timer.set(time.time() + 0.1)
        assert await asyncio.wait_for(calls.get(), 5) is False
        assert calls.empty()
    finally:
        timer.close()
        timer.close()


async def test_it_tells_when_the_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: asyncio.Queue[bool] = asyncio.Queue()
    timer = WallTimer(calls.put_nowait)

    def cancelled(fd: int, size: int) -> bytes:
        raise OSError(errno.ECANCELED, "as read(2) does then")

    try:
        with monkeypatch.context() as patch:
            patch.setattr("sockd.linux.wall_clock.os.read", cancelled)
            timer.set(time.time())
            assert await asyncio.wait_for(calls.get(), 5) is True
    finally:
        timer.close()
