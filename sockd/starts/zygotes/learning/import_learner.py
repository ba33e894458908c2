"""Creation of Zygotes: selected by policy, created in the background, tested before they serve.

Owns the background tasks that grow the tree (`zygote.learners`), and the record of what was learned. If a package
starts threads, crashes, exits or hangs in a Zygote, the Zygote is destroyed, importing one distribution at a time finds the
package, and it is refused for some time, during which functions import it themselves. One learner is reserved for Zygotes that
have not failed, so that a search for a harmful package does not delay them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sockd.base.config import FunctionDefaults, ZygoteConfig
from sockd.base.errors import NoCapacity, SandboxFailed, SockdError
from sockd.isolation.roots.program import Lineage
from sockd.starts.packages.distribution import name_of
from sockd.starts.packages.provided_names import Provided
from sockd.starts.zygotes import selection
from sockd.starts.zygotes.learning.culprit_search import CulpritSearch, said
from sockd.starts.zygotes.learning.import_hits import ImportHits
from sockd.starts.zygotes.learning.zygote_maker import Plan, ZygoteMaker
from sockd.starts.zygotes.learning.zygote_planner import UnderWay, ZygotePlanner
from sockd.starts.zygotes.top_levels.reasons import Reasons
from sockd.starts.zygotes.top_levels.recordings import Recordings, SavedNode, load_learned, save_learned
from sockd.starts.zygotes.top_levels.sharing import Sharing
from sockd.starts.zygotes.top_levels.soundness import ImportView
from sockd.starts.zygotes.top_levels.top_level import Module, TopLevel, key_of_import
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.starts.zygotes.zygote_tree import ZygoteTree

REBUILT_AT_ONCE = 6
"""How many Zygotes of an earlier daemon are made at a time, at least: on a busy host two get too little of the processors to be
there when the port opens. Six made 25 of 30 in 10 s at load 40 on two processors, and two made 20."""
MAX_WAITING = 1024
"""Most functions that wait for a Zygote; a further one is considered again at its next start."""
MAX_SEEN = 512
"""Most versions of which it is known what their last new sandbox imported."""
NO_ROOM = "there is no room for it: all Zygotes that there are save more (zygote.memory_mb, zygote.max_nodes)"

_log = logging.getLogger(__name__)


class Failed(NamedTuple):
    """A plan whose Zygote failed; the search for the harmful package is to come. It is under way until that has ended."""

    plan: Plan
    entry: UnderWay


class ImportLearner:
    """Grows a tree. `consider` and `observe` never wait; `aclose` ends what is under way and saves what was learned."""

    def __init__(
        self,
        config: ZygoteConfig,
        tree: ZygoteTree,
        state: Path,
        provided: Callable[[str], Provided],
        *,
        defaults: FunctionDefaults,
    ) -> None:
        """Args: state: the directory that what is learned is kept in; provided: what an installed distribution offers, by key;
        defaults: the limits of functions that set none, which imports find."""
        self._config = config
        self._tree = tree
        self._learned = state / "learned.json"
        self.recordings = Recordings(state / "recordings", max_modules=config.max_modules)
        self.refused, problem = load_learned(self._learned, self.recordings)
        if problem:
            _log.warning("%s", problem)
        self.hits = ImportHits()
        self.seen: OrderedDict[str, list[Module]] = OrderedDict()
        """What the last new sandbox of a version imported from packages, by the version's id."""
        self.on_made: list[Callable[[ZygoteNode], None]] = []
        """Called with each new node."""
        self._sharing = Sharing(provided, lambda: self.refused.keys)
        self._planner = ZygotePlanner(config, tree, self.recordings, self._sharing)
        self._maker = ZygoteMaker(config, tree, provided, self._sharing.path_of, defaults=defaults)
        self._culprits = CulpritSearch(tree, self._maker, self._planner, self.refused, self.recordings, self._make)
        self._waiting: dict[tuple[frozenset[str], Lineage], ImportView] = {}
        self._unmade = Reasons()
        self._failed: deque[Failed] = deque()
        self._searching = 0
        self._wake = asyncio.Event()
        self._rebuilding: asyncio.Task[None] | None = None
        self._coming = self.recordings.nodes
        """Zygotes of an earlier daemon that were not made again yet: they are saved for the next one, if this one ends before."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._grow(), name="learner") for _ in range(config.learners)]

    def adopt(self, view: ImportView) -> None:
        """A version is there: what is known of its top level is known to its view."""
        if view.top is None and view.zygote != "none":
            view.top = self.recordings.find(view.program)

    def record(self, view: ImportView, top: TopLevel) -> None:
        """The top level of a version was recorded: perhaps a Zygote is worth making for it."""
        view.top = top
        for node in self._tree.nodes:
            node.verdicts.pop(view, None)
        self._planner.forget_costs()
        try:
            self.recordings.keep(view.program, top)
        except OSError as error:
            _log.warning("a recording cannot be saved: %s", error.strerror)
        self.consider(view)

    def consider(self, view: ImportView) -> None:
        """A function with these imports was started: perhaps a better Zygote is worth making."""
        if view.top is None or not view.top.wanted:
            return
        wanted, lineage = self._sharing.know(view.top), view.lineage
        self._tree.demand[lineage].hit(wanted, time.monotonic())
        if not self._config.enabled or any(node.imports == wanted for node in self._tree.nodes_of(lineage)):
            return
        if (wanted, lineage) in self._waiting or len(self._waiting) < MAX_WAITING:
            self._waiting[wanted, lineage] = view
            self._wake.set()

    def functions_before(self) -> list[str]:
        """Names of functions that had Zygotes in an earlier daemon, those with the most starts first."""
        by_rate = sorted(self._coming, key=lambda node: -node.rate)
        return [*dict.fromkeys(node.function for node in by_rate if node.function)]

    async def rebuild(self, views: Iterable[ImportView], *, deadline_s: float) -> None:
        """Make the Zygotes of an earlier daemon again, in the same order of imports, so that what was verified holds for them.

        Args: views: of the versions that there are; deadline_s: how long to wait; the rest is made in the background."""
        known = {view.program: view for view in views if view.top is not None}
        wanted = [node for node in self._coming if node.program in known]
        self._coming = sorted(wanted, key=lambda node: -node.rate)
        if wanted and self._config.enabled:
            self._rebuilding = asyncio.get_running_loop().create_task(self._rebuild([*self._coming], known))
            await asyncio.wait([self._rebuilding], timeout=deadline_s)

    async def _rebuild(self, wanted: Sequence[SavedNode], known: Mapping[str, ImportView]) -> None:
        """More at a time than there are learners; a child when its parent is there."""
        made: dict[tuple[str, ...], asyncio.Event] = {node.order: asyncio.Event() for node in wanted}
        slots = asyncio.Semaphore(max(self._config.learners, REBUILT_AT_ONCE))

        async def make(node: SavedNode) -> None:
            above = [order for order in made if len(order) < len(node.order) and order == node.order[: len(order)]]
            try:
                if above:
                    await made[max(above, key=len)].wait()
                async with slots:
                    await self._make_again(node, known[node.program])
                self._coming.remove(node)
            finally:
                made[node.order].set()

        await asyncio.gather(*map(make, wanted))

    async def _make_again(self, saved: SavedNode, view: ImportView) -> None:
        imports, top, lineage = frozenset(saved.imports), view.top, view.lineage
        nodes = [node for node in self._tree.nodes_of(lineage) if node.zygote.uids.has_child]
        if top is None or not nodes or not imports <= top.wanted or any(node.imports == imports for node in nodes):
            return
        self._sharing.know(top)
        above = [node for node in nodes if node.shared.order == saved.order[: len(node.shared.order)]]
        parent = max(above, key=lambda node: len(node.shared.order))
        costs, added = self._planner.costs(), imports - parent.imports
        found = selection.new_node(parent, imports, costs, rate=saved.rate)
        if not added or not self._planner.make_room(found):
            return
        entry = self._planner.begin(parent, found)
        try:
            await self._make(parent, Plan(found, view.program, view.function, top, saved.order))
        except (SockdError, OSError, TimeoutError) as error:
            _log.warning("a Zygote of the last daemon was not made again: %s", said(error))
        finally:
            self._planner.end(entry)

    def observe(
        self,
        function: str,
        view: ImportView,
        node: ZygoteNode,
        imports: Iterable[tuple[str, str, float]],
        *,
        passed_over: bool = False,
    ) -> None:
        """What a function imported from packages, after it was forked from `node`; and whether a larger node was passed over."""
        seen = [Module(*entry) for entry in imports if entry[0] in view.closure]
        self.hits.count(view.closure, node.packages, len(seen), passed_over=passed_over)
        if seen or function not in self.seen:
            self.seen[function] = seen
            self.seen.move_to_end(function)
        if len(self.seen) > MAX_SEEN:
            self.seen.popitem(last=False)

    def forgive(self, name: str | None) -> list[str]:
        """Forget the failures of all versions of a distribution, or of all distributions; the keys that were refused."""
        forgiven = [key for key in self.refused.keys if name is None or name in (key, name_of(key))]
        for key in forgiven:
            self.refused.forgive(key)
        for import_ in list(self.recordings.failed):
            if name is None or name in (key_of_import(import_), name_of(key_of_import(import_))):
                del self.recordings.failed[import_]
        self._forget_sharing()
        self.save()
        return sorted(forgiven)

    def differs(self, node: ZygoteNode, view: ImportView) -> None:
        """A Zygote does not serve a function: perhaps one of its own is worth making. If the node was its alone, it is of no use;
        what its parent had imported first may be why."""
        wanted = view.top.wanted if view.top is not None else frozenset()
        above = node.parent.imports if node.parent is not None else frozenset()
        if node.imports == wanted and above:
            self._sharing.refuse(above, wanted)
            if node in self._tree.nodes:
                self._tree.remove(node)
        else:
            self._sharing.refuse(node.imports, wanted)

    def forget(self, key: str) -> None:
        """A distribution was removed from the install cache: forget it, and every Zygote that has it."""
        self.recordings.forget(key)
        self.refused.forgive(key)
        self._planner.forget_costs()
        for node in [node for node in self._tree.nodes if key in node.shared.packages]:
            self._tree.remove(node)
        self._forget_sharing()

    def end_unused(self, views: Sequence[ImportView]) -> None:
        """A function was removed: end the Zygotes that none of the versions that are left can be served by.

        Args: views: of these; one whose top level is not recorded yet may be served by any Zygote of its packages."""
        unused = [node for node in self._tree.nodes if node.imports and not any(may_use(node, view) for view in views)]
        for node in reversed(unused):
            _log.info("%s (%s) ends: no function imports this any more", node.id, node.words)
            self._tree.remove(node)

    def forget_reason(self, view: ImportView) -> None:
        """Forget a version that is no longer served."""
        self._unmade.forget(view.program)

    def why_unmade(self, view: ImportView) -> str:
        """Why there is no Zygote for a version whose top level is recorded, or no better one, in words."""
        if not self._config.enabled or view.top is None:
            return "none is made: zygote.enabled is false"
        wanted = self._sharing.know(view.top)
        if (wanted, view.lineage) in self._waiting or any(entry.imports & wanted for entry in self._planner.under_way):
            return "one is being made"
        imported = frozenset().union(*map(view.top.keys_of_id, wanted))
        for refusal in self.refused.list():
            if refusal.key in imported:
                return f"{name_of(refusal.key)} is refused: {refusal.reason}"
        return self._unmade.find(view.program) or "it is considered after its next cold start"

    def _forget_sharing(self) -> None:
        """Predict anew, from what the Zygotes of today have seen."""
        self._sharing.forget()
        for node in self._tree.nodes:
            if node.imports:
                self._sharing.learn(node.imports, node.shared)

    @property
    def is_learning(self) -> bool:
        """Whether a Zygote is being made, or is still to be considered."""
        is_rebuilding = self._rebuilding is not None and not self._rebuilding.done()
        # A learner without work clears the event although another is busy.
        return self._wake.is_set() or bool(self._planner.under_way) or is_rebuilding

    async def aclose(self) -> None:
        """Stop growing and save what was learned."""
        tasks = [*self._tasks, *([self._rebuilding] if self._rebuilding is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self.save()

    def save(self) -> None:
        """Publish what was learned for the next daemon."""
        now_s = time.monotonic()
        made = [
            SavedNode(node.program, tuple(sorted(node.imports)), node.shared.order, node.rate.at(now_s), node.function)
            for node in self._tree.nodes
            if node.imports and node.program
        ]
        self.recordings.nodes = [*made, *self._coming]
        try:
            save_learned(self._learned, self.recordings, self.refused)
        except OSError as error:
            _log.warning("what was learned cannot be saved: %s", error.strerror)

    # -- the learners

    async def _grow(self) -> None:
        while True:
            await self._wake.wait()
            while self._waiting or self._may_search():
                try:
                    if self._waiting:
                        await self._grow_for(self._waiting.pop(next(iter(self._waiting))))
                    else:
                        await self._search(self._failed.popleft())
                except Exception:
                    _log.exception("a Zygote could not be made")
            self._wake.clear()

    def _may_search(self) -> bool:
        """Whether a plan failed, and a learner is left for the others."""
        return bool(self._failed) and self._searching < max(self._config.learners - 1, 1)

    async def _grow_for(self, view: ImportView) -> None:
        found = self._planner.plan(view)
        if found is None or view.top is None:
            self._unmade.note(view.program, self._planner.why_none(view))
            return
        if reason := self._sharing.refusal(found.imports, view):
            self._unmade.note(view.program, f"a Zygote that has imported the same was made before: {reason}")
            return
        plan = Plan(found, view.program, view.function, view.top)
        parent = next(node for node in self._tree.nodes if node.id == found.parent_id)
        if not self._planner.make_room(found):
            self._unmade.note(view.program, NO_ROOM)
            return
        self._unmade.forget(view.program)
        entry = self._planner.begin(parent, found)
        try:
            await self._make(parent, plan)
        except NoCapacity as error:
            _log.warning("a Zygote for %s cannot be made: %s", plan.words, error)
            self._unmade.note(view.program, f"it cannot be made: {error}")
        except (SandboxFailed, OSError, TimeoutError) as error:
            _log.warning("a Zygote for %s failed: %s; looking for the package", plan.words, said(error))
            self._unmade.note(view.program, f"it failed: {said(error)}")
            entry.has_memory = False
            self._failed.append(Failed(plan, entry))
            return
        finally:
            if not self._failed or self._failed[-1].entry is not entry:
                self._planner.end(entry)
        self.save()

    async def _make(self, parent: ZygoteNode, plan: Plan) -> None:
        """A node of the tree. Raises: as `ZygoteMaker.make`."""
        node = await self._maker.make(parent, plan)
        self._sharing.learn(node.imports, node.shared)
        self._tree.add(node)
        for key in plan.keys:
            self.refused.forgive(key)  # a later failure is a first one again
        for listener in self.on_made:
            listener(node)

    async def _search(self, failed: Failed) -> None:
        """Find the distribution that failed, unless the parent is gone or a search has found one already."""
        self._searching += 1
        failed.entry.has_memory = True
        try:
            if failed.entry.parent in self._tree.nodes and not failed.plan.keys & self.refused.keys:
                await self._culprits.search(failed.entry.parent, failed.plan)
        finally:
            self._planner.end(failed.entry)
            self._searching -= 1
            self.save()


def may_use(node: ZygoteNode, view: ImportView) -> bool:
    """Whether a Zygote may have imported ahead for a version, as far as that is known."""
    if node.lineage != view.lineage or view.zygote == "none":
        return False
    return node.packages <= view.closure if view.top is None else node.imports <= view.top.wanted
