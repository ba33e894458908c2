"""The templates of one worker: which versions are to have one, which have, and why others have none.

Owns the templates, and the one task that makes them, one after the other: those of versions that were used most first. A template
that ends or fails is made again, a few times. Under memory pressure those that save least for their memory end first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from enum import Enum

from sockd.base.config import ZygoteConfig
from sockd.base.errors import NoCapacity, SockdError
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.lifecycle import State as SandboxState
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.starts.templates.template import SnapshotRefused, Snapshotted, Template
from sockd.starts.templates.template_maker import TemplateMaker
from sockd.starts.templates.template_spares import TemplateSpares
from sockd.starts.templates.used_templates import UsedTemplates
from sockd.starts.zygotes.top_levels.soundness import ImportView
from sockd.starts.zygotes.zygote_tree import ZygoteTree

MOST_LOSSES = 3
"""How often a template that serves may end by itself before it is not made again."""
_log = logging.getLogger(__name__)


class State(Enum):
    """What a version has."""

    WAITING = "waiting"
    MAKING = "making"
    SERVING = "serving"
    REFUSED = "refused"
    """The version can have no template, or its template was lost too often."""
    EVICTED = "evicted"
    """Its memory was needed; it is made again when a start has missed it and there is memory."""


class Entry:
    """One version that is to have a template."""

    def __init__(self, of: Snapshotted, uses: float) -> None:
        self.of = of
        self.uses = uses
        """Starts that an earlier daemon counted: what orders the queue."""
        self.state = State.WAITING
        self.template: Template | None = None
        self.reason = ""
        """Why it has none."""
        self.starts = 0
        """How many starts have asked for its template, also where it had none."""
        self.used_s = 0.0
        """Unix time of the last of them."""
        self.losses = 0
        self.was_missed = False
        self.settled = asyncio.Event()
        """Whether it is decided if it has one."""


class Templates:
    """`expect` a version, `of` a program, `forget` a version; `aclose` last."""

    def __init__(self, config: ZygoteConfig, tree: ZygoteTree, budget: MemoryBudget, used: UsedTemplates) -> None:
        """Args: used: which were used lately, as an earlier daemon has saved it."""
        self._maker = TemplateMaker(tree)
        self.spares = TemplateSpares(config, tree.children, budget)
        self._budget = budget
        self._used = used
        self._entries: dict[Program, Entry] = {}
        self.losses = 0
        """Templates that ended by themselves, or from which a start failed."""
        self._wake = asyncio.Event()
        self._may_begin = asyncio.Event()
        self._making: Entry | None = None
        self._task = asyncio.get_running_loop().create_task(self._run(), name="templates")

    async def rebuild(self, *, deadline_s: float) -> None:
        """Make templates from now on, and wait for those that were used lately: the Zygotes of an earlier daemon are there again.

        Args: deadline_s: how long to wait; the rest is made in the background."""
        self._may_begin.set()
        lately = [entry for entry in self._entries.values() if entry.uses]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                for entry in lately:
                    await entry.settled.wait()

    def used_lately(self) -> list[tuple[str, str]]:
        """The functions and versions whose templates an earlier daemon has used in the last day, the most used first."""
        return self._used.numbers()

    def expect(self, wanted: Snapshotted) -> None:
        """A version is there that is to have a template. `forget` it."""
        self._entries[wanted.program] = Entry(wanted, self._used.starts_of(wanted.name, wanted.number))
        self._wake.set()

    def forget(self, program: Program) -> None:
        """A version is gone: end its template; its sandboxes live on."""
        entry = self._entries.pop(program, None)
        if entry is not None:
            note_uses([entry], self._used)
            self._close(entry, State.REFUSED, "the version is gone")

    def of(self, program: Program) -> Template | None:
        """The template that a start of a program is forked from, which is counted; None: it has none now."""
        entry = self._entries.get(program)
        if entry is None:
            return None
        entry.starts += 1
        entry.used_s = time.time()
        template = entry.template
        if template is None:
            entry.was_missed = True
            return None
        return template if template.may_fork else None

    def reads_of(self, program: Program) -> tuple[tuple[str, ...], ...]:
        """What the init of a program's template has read (`TemplateReport.reads`)."""
        entry = self._entries.get(program)
        return entry.template.report.reads if entry is not None and entry.template is not None else ()

    def entry(self, program: Program) -> Entry | None:
        """What is known of a version's template, for views; None: it is to have none."""
        return self._entries.get(program)

    async def settled(self, program: Program) -> Entry | None:
        """Wait until it is decided whether a version has a template."""
        entry = self._entries.get(program)
        if entry is not None:
            await entry.settled.wait()
        return entry

    def answered(self, template: Template, sandbox: Sandbox, then: Callable[[], None]) -> None:
        """A sandbox from a template has answered its first request. Args: then: takes it, at once or a little later."""
        if template.zygote.alive and sandbox.lifecycle.state is SandboxState.IDLE and self.spares.wants_pages(template):
            self.spares.learn_pages(template, sandbox, then)
            return
        then()
        if template.zygote.alive:
            self.spares.refill(template)

    def lose(self, template: Template, reason: str) -> None:
        """A template has ended, or a start from it has failed: it serves no more, and is made again."""
        entry = self._entries.get(template.of.program)
        if entry is None or entry.template is not template:
            return
        _log.warning("the template of %s is given up: %s", template.of.words, reason)
        entry.losses += 1
        self.losses += 1
        is_last = entry.losses > MOST_LOSSES
        self._close(entry, State.REFUSED if is_last else State.WAITING, reason)
        self._wake.set()

    def zygote_refused(self, zygote: Zygote, view: ImportView) -> None:
        """A Zygote must not serve a version: a template of the version below it was made from what it has."""
        for template in self.serving():
            if template.of.view is view and zygote in template.ancestors:
                self.lose(template, "a Zygote that it was forked from is not the same as a start of the function's own")

    def end_interpreter(self, interpreter: str, error: SockdError) -> None:
        """The image of an interpreter is lost: end the templates in it."""
        for template in self.serving():
            if template.of.view.lineage.interpreter == interpreter:
                self.lose(template, str(error))

    def serving(self) -> list[Template]:
        """The templates that serve."""
        return [entry.template for entry in self._entries.values() if entry.template is not None]

    def entries(self) -> list[Entry]:
        """All versions that are to have one."""
        return list(self._entries.values())

    def counts(self) -> dict[str, int]:
        """How many versions are in each state."""
        counts = {state.value: 0 for state in State}
        for entry in self._entries.values():
            counts[entry.state.value] += 1
        return counts

    def memory_bytes(self) -> int:
        """What all of them hold of the memory budget."""
        return sum(template.memory_bytes for template in self.serving())

    def make_room(self, need_bytes: int) -> None:
        """End templates that hold so many bytes together; their memory comes free at once.

        POLICY: the one first that saves the least time for its memory."""
        now_s = time.monotonic()
        for template in sorted(self.serving(), key=lambda each: each.worth(now_s)):
            if need_bytes <= 0:
                return
            need_bytes -= template.memory_bytes
            _log.info("the template of %s ends: its memory is needed", template.of.words)
            entry = self._entries[template.of.program]
            self._close(
                entry,
                State.EVICTED,
                "its memory was needed; it is made again after the next start, when there is memory",
            )

    def adjust(self) -> None:
        """Make those again that were evicted and were missed since, if there is memory (called now and then)."""
        for entry in self._entries.values():
            need_bytes = 2 * entry.of.program.limits.memory_bytes
            if entry.state is State.EVICTED and entry.was_missed and self._budget.free > need_bytes:
                entry.state = State.WAITING
                self._wake.set()
        note_uses(self._entries.values(), self._used)
        self._used.keep()
        self.spares.adjust()

    async def aclose(self) -> None:
        """End all of them, and save which were used."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self.spares.aclose()
        note_uses(self._entries.values(), self._used)
        self._used.save()
        for entry in self._entries.values():
            self._close(entry, State.REFUSED, "the worker ends")
        self._entries.clear()

    # -- the maker's task

    async def _run(self) -> None:
        await self._may_begin.wait()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while waiting := [entry for entry in self._entries.values() if entry.state is State.WAITING]:
                await self._make(max(waiting, key=lambda entry: entry.uses))

    async def _make(self, entry: Entry) -> None:
        entry.state = State.MAKING
        began_s = time.monotonic()
        try:
            template = await self._maker.make(entry.of, self._ended)
        except SnapshotRefused as error:
            self._settle(entry, State.REFUSED, str(error))
            _log.warning("%s has no snapshot: %s", entry.of.words, error)
        except NoCapacity as error:  # of memory or uids: it is made when there are
            self._settle(entry, State.EVICTED, f"it could not be made yet: {error}")
        except (SockdError, OSError, TimeoutError) as error:
            self._settle(entry, State.REFUSED, f"it could not be made: {error}")
            _log.warning("the template of %s could not be made: %s", entry.of.words, error)
        except Exception as error:
            self._settle(entry, State.REFUSED, f"it could not be made: {type(error).__name__}")
            _log.exception("the template of %s could not be made", entry.of.words)
        else:
            if self._entries.get(entry.of.program) is not entry:
                template.close()  # the version has gone meanwhile
                return
            entry.template = template
            self._settle(entry, State.SERVING, "")
            self.spares.refill(template)
            took_s, size_mb = time.monotonic() - began_s, template.memory_bytes / (1 << 20)
            _log.info("%s has a template: %.0f MB, made in %.2f s", entry.of.words, size_mb, took_s)

    def _settle(self, entry: Entry, state: State, reason: str) -> None:
        entry.state, entry.reason = state, reason
        entry.settled.set()

    def _ended(self, zygote: Zygote) -> None:
        """The Zygote of a template has ended by itself."""
        for template in self.serving():
            if template.zygote is zygote:
                self.lose(template, "its process has ended")

    def _close(self, entry: Entry, state: State, reason: str) -> None:
        template, entry.template = entry.template, None
        entry.was_missed = False
        self._settle(entry, state, reason)
        if template is not None:
            self.spares.drop(template)
            template.close()


def note_uses(entries: Iterable[Entry], used: UsedTemplates) -> None:
    """Remember how often the versions were started until now."""
    for entry in entries:
        if entry.starts:
            used.note(entry.of.name, entry.of.number, entry.starts, entry.used_s)
