"""The handler cache: idle sandboxes, ready for the next request of their function (SOCK 4.3).

Owns every idle sandbox. The last one returned is leased first, because its memory is warmest. A sandbox is paused after some idle
time, so that a busy function never waits for a thaw; under memory pressure the least recently used are evicted.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

from sockd.base.config import SandboxConfig
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.lifecycle import State
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.isolation.sandbox.sandbox import Sandbox


class HandlerCache:
    """Idle sandboxes by program. Nothing here waits; a leased sandbox is the caller's."""

    def __init__(self, config: SandboxConfig, budget: MemoryBudget) -> None:
        self._config = config
        self._budget = budget
        self._by_program: dict[Program, OrderedDict[Sandbox, None]] = {}
        self._idle: OrderedDict[Sandbox, float] = OrderedDict()
        """Every idle sandbox, least recently used first, and since when (CLOCK_MONOTONIC, s)."""
        self._running: OrderedDict[Sandbox, float] = OrderedDict()
        """Running sandboxes, which are not paused yet, with the time since which each is idle."""
        self._timer: asyncio.TimerHandle | None = None
        self.hits = self.misses = 0
        self.evictions = 0

    def lease(self, program: Program) -> Sandbox | None:
        """The most recently used idle sandbox of a program, now the caller's; it may be paused. None: there is none."""
        idle = self._by_program.get(program)
        if not idle:
            self.misses += 1
            return None
        self.hits += 1
        sandbox, _ = idle.popitem()
        self._remove(sandbox)
        return sandbox

    def keep(self, sandbox: Sandbox, program: Program) -> None:
        """Take a sandbox whose request is done."""
        now_s = time.monotonic()
        idle = self._by_program.get(program)
        if idle is None:
            idle = self._by_program[program] = OrderedDict()
        idle[sandbox] = None
        self._idle[sandbox] = self._running[sandbox] = now_s
        sandbox.on_death = self._forget
        if self._timer is None:
            self._arm(self._config.pause_after_s)
        if self._budget.waiters:
            self.make_room(sandbox.reserved_bytes)
        while len(self._idle) > self._config.idle_limit:
            self._evict_oldest()

    def make_room(self, need_bytes: int) -> int:
        """Evict least recently used sandboxes that hold so many bytes together; they come free as their processes end.

        Returns: how many bytes they are short of that."""
        while self._idle and need_bytes > 0:
            need_bytes -= next(iter(self._idle)).reserved_bytes
            self._evict_oldest()
        return max(need_bytes, 0)

    def holds(self, size: int) -> bool:
        """Whether idle sandboxes hold so many bytes together."""
        for sandbox in self._idle:
            size -= sandbox.reserved_bytes
            if size <= 0:
                return True
        return size <= 0

    def drop(self, program: Program) -> None:
        """Destroy the idle sandboxes of a program that is no longer served."""
        for sandbox in list(self._by_program.get(program, ())):
            sandbox.destroy()
        self._by_program.pop(program, None)

    def drop_children(self, zygote: Zygote) -> None:
        """Destroy the idle sandboxes that were forked from a Zygote."""
        for sandbox in [sandbox for sandbox in self._idle if sandbox.process.zygote is zygote]:
            sandbox.destroy()

    def drop_oldest(self, program: Program) -> None:
        """Destroy the least recently used idle sandbox of a program, if there is one: another is to take its place."""
        idle = self._by_program.get(program)
        if idle:
            next(iter(idle)).destroy()

    def counts(self) -> dict[str, int]:
        """How many are running and paused."""
        return {"idle": len(self._running), "paused": len(self._idle) - len(self._running)}

    def held(self, program: Program) -> tuple[int, int]:
        """How many idle sandboxes a program has, and the memory that they hold, in bytes."""
        idle = self._by_program.get(program, ())
        return len(idle), sum(sandbox.reserved_bytes for sandbox in idle)

    def close(self) -> None:
        """Destroy everything idle."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for sandbox in list(self._idle):
            sandbox.destroy()

    def _evict_oldest(self) -> None:
        self.evictions += 1
        next(iter(self._idle)).destroy()

    def _forget(self, sandbox: Sandbox) -> None:
        program = sandbox.program
        idle = self._by_program.get(program) if program is not None else None
        if idle is not None and program is not None:
            idle.pop(sandbox, None)
            if not idle:
                del self._by_program[program]
        self._remove(sandbox)

    def _remove(self, sandbox: Sandbox) -> None:
        self._idle.pop(sandbox, None)
        self._running.pop(sandbox, None)
        sandbox.on_death = _unowned

    def _arm(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._pause_due)

    def _pause_due(self) -> None:
        """Pause all sandboxes that have been idle long enough, and set the timer for the next."""
        self._timer = None
        due = time.monotonic() - self._config.pause_after_s
        while self._running:
            sandbox, since_s = next(iter(self._running.items()))
            if since_s > due:
                self._arm(since_s - due)
                return
            del self._running[sandbox]
            if sandbox.lifecycle.state is State.IDLE:
                pause(sandbox)


def pause(sandbox: Sandbox) -> None:
    """Pause, or destroy what cannot be paused: an idle sandbox must use no CPU."""
    try:
        sandbox.pause()
    except OSError:
        sandbox.destroy()


def _unowned(sandbox: Sandbox) -> None:
    return None
