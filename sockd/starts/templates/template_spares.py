"""Spares of templates: children that a template has forked ahead of a request. They have copied the pages that an earlier first
request wrote to.

Owns the spares, and the tasks that make them and look at those pages. As many are kept as the recent rate of starts asks for
(`sockd.starts.zygotes.spare_policy`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from sockd.base.config import ZygoteConfig
from sockd.base.errors import SockdError
from sockd.isolation.farm.templated import copy_ahead
from sockd.isolation.sandbox.memory_budget import MemoryBudget, Reservation
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.linux.processes import pidfds
from sockd.starts.templates.template import Template
from sockd.starts.templates.written_pages import written_pages
from sockd.starts.zygotes.children import SPARE_MEMORY_BYTES, Children
from sockd.starts.zygotes.node_spares import PRESSURE, REFILL_S
from sockd.starts.zygotes.rate import DecayingRate
from sockd.starts.zygotes.spare_policy import wanted_spares
from sockd.starts.zygotes.zygote_node import SPARES_TAU_S

PAGES_DEADLINE_S = 5.0
_log = logging.getLogger(__name__)


class Ahead:
    """The spares of one template, and what it takes to keep them."""

    def __init__(self) -> None:
        self.spares: deque[Sandbox] = deque()
        self.coming = 0
        self.lately = DecayingRate(SPARES_TAU_S, now_s=time.monotonic())
        self.used_s = time.monotonic()
        self.knows_pages = False
        """Whether the template's spares copy pages, or somebody is about to find out which."""


class TemplateSpares:
    """Spares of all templates: `take`, `refill`, `learn_pages`; `drop` those of a template that ends."""

    def __init__(self, config: ZygoteConfig, children: Children, budget: MemoryBudget) -> None:
        self._config = config
        self._children = children
        self._budget = budget
        self._ahead: dict[Template, Ahead] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def count(self, template: Template) -> int:
        """How many of a template wait."""
        return len(self._of(template).spares) if template in self._ahead else 0

    def take(self, template: Template, reservation: Reservation) -> Sandbox | None:
        """A spare, which owns the reservation; None: there is none, and the reservation still is the caller's."""
        ahead = self._of(template)
        if not ahead.spares:
            return None
        spare = ahead.spares.popleft()
        spare.on_death = lambda sandbox: None
        spare.process.adopt(reservation)
        return spare

    def hit(self, template: Template) -> None:
        """Count a start from a template."""
        ahead = self._of(template)
        ahead.used_s = time.monotonic()
        ahead.lately.hit(ahead.used_s)

    def refill(self, template: Template) -> None:
        """Make as many spares as the recent rate asks for, in the background."""
        ahead = self._of(template)
        missing = self._wanted(ahead) - len(ahead.spares)
        if missing > 0 and not ahead.coming and template.may_fork:
            ahead.coming = missing
            self._begin(self._fill(template, ahead, missing))

    def adjust(self) -> None:
        """Drop the spares that no recent use asks for, and make those that are missing (called now and then)."""
        for template, ahead in [*self._ahead.items()]:
            drop(ahead, keep=self._wanted(ahead))
            self.refill(template)

    def wants_pages(self, template: Template) -> bool:
        """Whether it is not known yet which pages a first request writes to."""
        return self._config.spares > 0 and not self._of(template).knows_pages

    def learn_pages(self, template: Template, sandbox: Sandbox, then: Callable[[], None]) -> None:
        """Look at the pages of a sandbox that has answered its first request. Args: then: called when it is needed no more."""
        self._of(template).knows_pages = True
        self._begin(self._learn(template, sandbox, then))

    def memory_bytes(self) -> int:
        """What all spares hold of the memory budget."""
        return sum(len(ahead.spares) for ahead in self._ahead.values()) * SPARE_MEMORY_BYTES

    def make_room(self, need_bytes: int) -> None:
        """Give up spares that hold so many bytes together."""
        for ahead in self._ahead.values():
            while ahead.spares and need_bytes > 0:
                drop(ahead, keep=len(ahead.spares) - 1)
                need_bytes -= SPARE_MEMORY_BYTES

    def drop(self, template: Template) -> None:
        """A template ends: so do its spares."""
        ahead = self._ahead.pop(template, None)
        if ahead is not None:
            drop(ahead, keep=0)

    async def aclose(self) -> None:
        """End all spares and tasks."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for template in [*self._ahead]:
            self.drop(template)

    def _of(self, template: Template) -> Ahead:
        """What is kept for a template; for one that has ended under a start from it, nothing is."""
        if template.zygote.alive:
            return self._ahead.setdefault(template, Ahead())
        return self._ahead.get(template) or Ahead()

    def _wanted(self, ahead: Ahead) -> int:
        now_s, budget = time.monotonic(), self._budget
        return wanted_spares(
            ahead.lately.at(now_s),
            REFILL_S,
            self._config.spares,
            least=self._config.least_spares,
            idle_s=now_s - ahead.used_s,
            memory_pressure=budget.contended or budget.free < budget.total * PRESSURE,
        )

    async def _fill(self, template: Template, ahead: Ahead, count: int) -> None:
        try:
            for _ in range(count):
                spare = await self._children.fork_spare(template.zygote)
                if self._ahead.get(template) is not ahead:
                    spare.destroy()
                    return
                ahead.spares.append(spare)
                spare.on_death = lambda gone: ahead.spares.remove(gone) if gone in ahead.spares else None
        except (SockdError, OSError, TimeoutError) as error:
            _log.warning("no spare from the template of %s: %s", template.of.words, error)
        finally:
            ahead.coming = 0

    async def _learn(self, template: Template, sandbox: Sandbox, then: Callable[[], None]) -> None:
        """Spares from before do not copy what is found: they end."""
        try:
            pages = await asyncio.to_thread(written_pages, pidfds.pid(sandbox.process.pidfd))
        except OSError:
            pages = []
        finally:
            then()
        try:
            await copy_ahead(template.zygote, pages, deadline_s=PAGES_DEADLINE_S)
        except (SockdError, OSError, TimeoutError) as error:
            _log.warning("spares of the template of %s copy no pages: %s", template.of.words, error)
            return
        _log.info("spares of the template of %s copy %d rows of pages", template.of.words, len(pages))
        if template in self._ahead:
            drop(self._ahead[template], keep=0)
            self.refill(template)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def drop(ahead: Ahead, *, keep: int) -> None:
    """Destroy spares beyond `keep`."""
    while len(ahead.spares) > keep:
        ahead.spares[-1].destroy()
