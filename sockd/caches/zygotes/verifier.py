"""Verification: before a Zygote serves a closure or environment that it was not made from, a fork of it is compared with the
function's own start.

Owns the background tasks (`zygote.verifiers`), their queue, and the refused pairs. A pair is a node, and a closure
with the variables that a function sets. Its first start is forked from a verified ancestor; after its answer the
pair is queued. Then two sandboxes of the function, one forked from the node, one from its root Zygote, import the same modules
and return fingerprints. No request and no learner waits for this.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from sockd.caches.packages.distribution import name_of
from sockd.caches.zygotes.refusals import Refusal, Refusals
from sockd.caches.zygotes.soundness import ImportView, Pair
from sockd.caches.zygotes.verification import (
    BadFingerprint,
    Difference,
    Fingerprint,
    differences,
    in_words,
    read_fingerprint,
)
from sockd.caches.zygotes.zygote_node import ZygoteNode
from sockd.caches.zygotes.zygote_tree import ZygoteTree
from sockd.farm.control import ZygoteGone
from sockd.images.program import Program
from sockd.plain.config import MB, ZygoteConfig
from sockd.plain.errors import FunctionFailed, NoCapacity, OutOfMemory, SandboxFailed, TimedOut
from sockd_zygote import protocol
from sockd_zygote.own_functions.checks import last_begun

MOST_WAITING = 256
"""Pairs that wait; a further one is considered again at its function's next start."""
MOST_VERIFIED = 1024
"""Pairs that are known to be alike, those that were verified last."""
OUTCOMES = ("alike", "different", "late", "postponed")
HANDLER = "sockd_zygote.own_functions.trial:answer"
LOG_BYTES = 1 * MB
LONGEST_LEARNING_S = 30.0
"""How long a verification waits for learners: the Zygote that they make may serve the function better, and needs none."""
LOOK_S = 0.1
SURE = 4
"""Starts of a function's own that a difference is compared with: what depends on addresses may be equal in two by chance."""
APART_S = 1.1
"""Between two starts of a function's own that are compared: a clock in seconds shows another time."""

Packages = frozenset[str]
Key = tuple[ZygoteNode, Pair]

_log = logging.getLogger(__name__)


class Unverified(str):
    """Why a node does not serve a function, if that is for want of a verification or by its result: it may change."""


PENDING = Unverified("it is still to be compared with a start of the function's own")


class TrialFailed(Exception):
    """A sandbox of a verification did not answer."""

    def __init__(self, message: str, *, is_late: bool) -> None:
        """Args: is_late: for want of time or memory, which a busy host may cause."""
        super().__init__(message)
        self.is_late = is_late


@dataclass(frozen=True, slots=True)
class Work:
    """One verification."""

    node: ZygoteNode
    view: ImportView
    program: Program
    function: str
    """The version's id."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A pair of packages imported ahead, and what a function has, that must not be used; `refusal` says why and until when."""

    packages: Packages
    pair: Pair
    owner: str
    """The distribution whose module differs; empty: it is not known."""
    refusal: Refusal


class Verifier:
    """`consider` each cold start when it is over; `unverified` is asked once for each node and version."""

    def __init__(
        self,
        config: ZygoteConfig,
        tree: ZygoteTree,
        order_of: Callable[[str, Sequence[str]], list[str]],
        *,
        is_learning: Callable[[], bool] = lambda: False,
        on_refused: Callable[[ZygoteNode, ImportView, bool], None] = lambda node, view, has_served: None,
    ) -> None:
        """Args:
        order_of: (a version's id, a node's modules in their order) -> the modules in the order of a start of its own;
        on_refused: told each pair that is refused, and whether it may have served until then."""
        self._config = config
        self._tree = tree
        self._order_of = order_of
        self._is_learning = is_learning
        self._on_refused = on_refused
        self._verified: OrderedDict[Key, None] = OrderedDict()
        self._refusals = Refusals()
        self._refused: dict[str, Refused] = {}
        self._waiting: OrderedDict[Key, Work] = OrderedDict()
        self._under_way: set[Key] = set()
        self._wake = asyncio.Event()
        self._starts = 0
        self.outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.cpu_s = 0.0
        """What the sandboxes say to have used."""
        count = config.verifiers if config.verify else 0
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._work(), name="verifier") for _ in range(count)]

    @property
    def pending(self) -> int:
        """Verifications that wait or are under way."""
        return len(self._waiting) + len(self._under_way)

    def unverified(self, node: ZygoteNode, view: ImportView) -> str:
        """Why a node does not serve a function whose imports see nothing else than its own have seen; empty: it does."""
        if not self._config.verify or not node.shared.packages:
            return ""
        refused = self._refused_now(node, view)
        if refused is not None:
            return Unverified(f"a start of its own differs: {refused.refusal.reason}")
        if node.shared.was_made_from(view) or (node, view.pair) in self._verified:
            return ""
        return PENDING

    def consider(self, node: ZygoteNode | None, view: ImportView, program: Program, function: str) -> None:
        """A sandbox of a version was started from `node`: verify what is to be known of its next start. Never waits."""
        if not self._tasks or not view.closure or node is None:
            return
        for larger, reason in self._tree.passed_over(view):
            if isinstance(reason, Unverified) and self._refused_now(larger, view) is None:
                larger.verdicts[view] = PENDING  # a refusal has expired
                self._add(Work(larger, view, program, function))
                return
        if node.shared.packages:
            self._starts += 1
            if self._config.verify_again_after and self._starts % self._config.verify_again_after == 0:
                self._add(Work(node, view, program, function))

    def refused(self) -> list[Refused]:
        """The pairs that are refused now, the oldest first."""
        return [self._refused[entry.key] for entry in self._refusals.list() if entry.key in self._refused]

    def forgive(self, name: str | None) -> list[str]:
        """Forget the refusals of Zygotes that hold a distribution, or of all; the distributions that differed."""
        forgiven = []
        for key, refused in list(self._refused.items()):
            if name is None or any(name in (each, name_of(each)) for each in refused.packages):
                self._refusals.forgive(key)
                del self._refused[key]
                forgiven.append(refused.owner or min(refused.packages))
        for node in self._tree.nodes:
            for view, verdict in list(node.verdicts.items()):
                if isinstance(verdict, Unverified):
                    del node.verdicts[view]
        return forgiven

    async def aclose(self) -> None:
        """End what is under way."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- the tasks

    def _add(self, work: Work) -> None:
        key = work.node, work.view.pair
        if key not in self._waiting and key not in self._under_way and len(self._waiting) < MOST_WAITING:
            self._waiting[key] = work
            self._wake.set()

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            while self._waiting:
                await self._let_learners_go_first()
                if not self._waiting:
                    break  # another task has it
                key, work = self._waiting.popitem(last=False)
                self._under_way.add(key)
                try:
                    await self._verify(work)
                except Exception:
                    _log.exception("a verification failed")
                finally:
                    self._under_way.discard(key)
            self._wake.clear()

    async def _let_learners_go_first(self) -> None:
        ends_s = time.monotonic() + LONGEST_LEARNING_S
        while self._is_learning() and time.monotonic() < ends_s:
            await self._until(time.monotonic() + LOOK_S)

    async def _verify(self, work: Work) -> None:
        """Compare, and note what came of it."""
        if work.node not in self._tree.nodes or self._is_served_better(work):
            return
        began_s, cpu_before_s = time.monotonic(), self.cpu_s
        found: list[Difference] = []
        try:
            found = await self._compare(work)
        except NoCapacity:
            self.outcomes["postponed"] += 1
            return
        except TrialFailed as error:
            self._refuse(work, str(error), by_deadline=error.is_late)
            return
        except (SandboxFailed, OSError, TimeoutError) as error:
            self.outcomes["postponed"] += 1
            if work.node in self._tree.nodes:
                _log.warning("%s could not be verified for %s: %s", work.node.id, work.function, error)
            return
        if found:
            self._refuse(work, in_words(found), owner=found[0].owner)
            return
        self.outcomes["alike"] += 1
        self._note(work)
        _log.info(
            "%s is verified for %s: %.2f s, of which %.2f s CPU",
            *(work.node.id, work.function, time.monotonic() - began_s, self.cpu_s - cpu_before_s),
        )

    def _is_served_better(self, work: Work) -> bool:
        """Whether a node with as many packages serves it by now."""
        try:
            best = self._tree.best(work.view)
        except ZygoteGone:
            return False
        return best is not work.node and work.node.packages <= best.packages

    async def _compare(self, work: Work) -> list[Difference]:
        """The differences that starts of the function's own do not have. Raises: as `_try`."""
        program = self._program_of(work)
        try:
            trial: dict[str, object] = {
                "modules": self._order_of(work.function, work.node.order),
                "expected": None,
                "names_of": [],
                "pids": [],
                "moved": 0,
                "variables": sorted(name for name, _ in work.view.variables),
            }
            fork = await self._try(work.node, program, trial)
            began_s = time.monotonic()
            trial["pids"] = fork.pids
            own = await self._try(self._tree.root_of(work.view.lineage), program, {**trial, "expected": fork.digests})
            suspects = await asyncio.to_thread(fork.differing, own)
            if not suspects:
                return []
            fork = await self._try(work.node, program, {**trial, "names_of": suspects})
            await self._until(began_s + APART_S)
            starts = [own]
            for number in range(1, SURE):
                again = {**trial, "names_of": suspects, "moved": number}
                starts.append(await self._try(self._tree.root_of(work.view.lineage), program, again))
                if not all(each.complete for each in (fork, *starts)):
                    raise TrialFailed(f"{len(suspects)} modules differ, {suspects[0]} for one", is_late=False)
                found = await asyncio.to_thread(differences, fork, starts)
                if not found:
                    break
            return found
        finally:
            program.close()

    async def _until(self, time_s: float) -> None:
        """Args: time_s: of CLOCK_MONOTONIC."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(time_s - time.monotonic(), 0)):
                await asyncio.get_running_loop().create_future()

    def _program_of(self, work: Work) -> Program:
        """A program with a function's closure and environment, that runs a trial."""
        own, deadline_s = work.program, self._config.verify_deadline_s
        name = f"verification of {own.name}"
        handler = {"handler": HANDLER, "entry_file": "", "app": "", "provided": False, "rehearsal": True}
        init = protocol.change_init(own.init, name=name, **handler, max_answer_bytes=6 * MB)
        limits = replace(own.limits, memory_bytes=self._config.verify_memory_mb * MB)
        program = Program(own.code, init, limits, init_timeout_s=deadline_s, timeout_s=deadline_s, log_bytes=LOG_BYTES)
        program.policy = own.policy
        return program

    async def _try(self, node: ZygoteNode, program: Program, trial: dict[str, object]) -> Fingerprint:
        """What one new sandbox tells. Raises: TrialFailed, SandboxFailed, NoCapacity, OSError."""
        whose = "a fork" if node.packages else "a start of its own"
        sandbox = await self._tree.fork_apart(node, program)
        try:
            reply = await sandbox.request(uuid.uuid4().bytes, msgspec.json.encode(trial))
        finally:
            sandbox.destroy()
        if reply.error is not None:
            if (lost := await sandbox.why_lost()) is not None:
                raise SandboxFailed(lost.message) from reply.error
            # What a package says in its errors may be a secret; what the daemon says is none.
            error = reply.error.error_type if isinstance(reply.error, FunctionFailed) else reply.error
            words = f"{whose} did not come to its end: {error}"
            if begun := last_begun(reply.log):
                words = f"{begun}: {words}"
            raise TrialFailed(words, is_late=isinstance(reply.error, TimedOut | OutOfMemory))
        try:
            told = await asyncio.to_thread(read_fingerprint, reply.body)
        except BadFingerprint as error:
            raise TrialFailed(f"{whose}: {error}", is_late=False) from None
        self.cpu_s += told.cpu_s
        return told

    # -- what is known

    def _note(self, work: Work) -> None:
        """This pair is alike."""
        key = work.node, work.view.pair
        self._verified = OrderedDict((known, None) for known in self._verified if known[0] in self._tree.nodes)
        self._verified[key] = None
        self._verified.move_to_end(key)
        if len(self._verified) > MOST_VERIFIED:
            self._forget_pair(*self._verified.popitem(last=False)[0])
        self._forget_pair(*key)

    def _refuse(self, work: Work, reason: str, *, owner: str = "", by_deadline: bool = False) -> None:
        self.outcomes["late" if by_deadline else "different"] += 1
        pair = work.node, work.view.pair
        has_served = pair in self._verified or work.node.shared.was_made_from(work.view)
        self._verified.pop(pair, None)
        key = key_of(work.node, work.view)
        packages = ", ".join(sorted(map(name_of, work.node.packages)))
        refusal = self._refusals.refuse(key, reason, node=packages, by_deadline=by_deadline)
        self._refused = {known: each for known, each in self._refused.items() if self._refusals.is_refused(known)}
        self._refused[key] = Refused(work.node.packages, work.view.pair, owner, refusal)
        self._forget_pair(*pair)
        seconds = refusal.retry_s - refusal.time_s
        _log.warning("%s (%s) does not serve %s for %.0f s: %s", work.node.id, packages, work.function, seconds, reason)
        self._on_refused(work.node, work.view, has_served)

    def _forget_pair(self, node: ZygoteNode, pair: Pair) -> None:
        """Have the node asked again for each version that has this pair."""
        for view in list(node.verdicts):
            if view.pair == pair:
                del node.verdicts[view]

    def _refused_now(self, node: ZygoteNode, view: ImportView) -> Refused | None:
        refused = self._refused.get(key_of(node, view)) if self._refused else None
        return refused if refused is not None and self._refusals.is_refused(refused.refusal.key) else None


def key_of(node: ZygoteNode, view: ImportView) -> str:
    """A pair's name in the record of refusals: no value of a variable can be read from it."""
    packages, before = sorted(node.packages), sorted(node.shared.before)
    parts = packages, before, sorted(view.closure), sorted(view.variables), view.network
    return hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace")).hexdigest()
