"""Guest threads: a bounded number, some of them ready before they are needed, and none fewer before the engine ends.

Each waits for a start by itself, in the kernel or in a queue, so that it is what a start wakes first. One that has lost its
priority (`guest_cpu`) is replaced.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable

from sockd_initscripts.engine.alarm import Alarm, AlarmTimer
from sockd_initscripts.engine.signals import LoopCalls

STACK_BYTES = 4 * 1024 * 1024
"""wasm's part is modules.WASM_STACK_BYTES. With less than 2 MiB a guest's recursion ended in a SIGSEGV instead of a trap
(hazard 3); what is not touched costs nothing."""

Turn = Callable[[Alarm], bool]
"""Waits for a start, and lives it: once. False: there will be no more. Must not raise."""


class GuestThreads:
    """The threads. All methods run on the loop."""

    def __init__(self, limit: int, ready: int, turn: Turn, calls: LoopCalls) -> None:
        self._limit = limit
        self._turn = turn
        self._calls = calls
        self._threads: list[threading.Thread] = []
        self._timer = AlarmTimer(calls.watched)
        self._replaced: list[threading.Thread] = []
        """Threads that end, or have ended."""
        self._working = 0
        self._all_ended: asyncio.Future[None] = calls.loop.create_future()
        self.have(ready)

    @property
    def count(self) -> int:
        return len(self._threads)

    def have(self, count: int) -> None:
        """Have so many threads, as far as that is allowed: making one takes longer than waking one."""
        while len(self._threads) < min(count, self._limit):
            self._add(self._timer.alarm())

    async def aclose(self) -> None:
        """Wait for their ends: there will be no more starts, and what they live ends. The loop goes on meanwhile, since they
        may have asked it for something."""
        if self._working:
            await self._all_ended
        for thread in (*self._threads, *self._replaced):
            thread.join()
        self._timer.close()
        self._threads.clear()

    def _add(self, alarm: Alarm) -> None:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=self._work, args=(alarm,), name=f"guest-{len(self._threads)}", daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
        self._threads.append(thread)
        self._working += 1

    def _work(self, alarm: Alarm) -> None:
        while self._turn(alarm):
            if os.sched_getscheduler(0) == os.SCHED_IDLE:
                self._calls.post(self._replace, threading.current_thread(), alarm)
                return
        self._calls.post(self._ended)

    def _replace(self, thread: threading.Thread, alarm: Alarm) -> None:
        self._working -= 1
        self._threads.remove(thread)
        self._replaced = [each for each in (*self._replaced, thread) if each.is_alive()]
        self._add(alarm)

    def _ended(self) -> None:
        self._working -= 1
        if not self._working:
            self._all_ended.set_result(None)
