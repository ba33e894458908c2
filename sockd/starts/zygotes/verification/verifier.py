"""Recording and verification of versions: what their top levels do, and whether a fork of a Zygote becomes what a start of their
own becomes.

Owns the background tasks (`zygote.verifiers`), their agenda, and the refused pairs. A pair is a node and a version. The first
start of a version is forked from the root Zygote; after its answer, its top level is run once more, in a sandbox without a
request, and recorded (`top_level`). Each node that may serve it then is verified first: a fork of the node runs the top level as
well, and both return fingerprints. No request and no learner waits for this, and no work is dropped: what fails for want of time
or memory is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from weakref import WeakKeyDictionary

from sockd.base.config import ZygoteConfig
from sockd.base.errors import NoCapacity, SandboxFailed
from sockd.isolation.farm.control import ZygoteGone
from sockd.isolation.roots.program import Program
from sockd.starts.zygotes.top_levels.reasons import Reasons
from sockd.starts.zygotes.top_levels.recordings import Recordings
from sockd.starts.zygotes.top_levels.soundness import ImportView
from sockd.starts.zygotes.top_levels.top_level import BadRecording, TopLevel, read_steps
from sockd.starts.zygotes.verification.agenda import Agenda
from sockd.starts.zygotes.verification.refused_pairs import RefusedPairs
from sockd.starts.zygotes.verification.result import in_words
from sockd.starts.zygotes.verification.trials import TrialFailed, Trials, Work, until
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.starts.zygotes.zygote_tree import ZygoteTree

OUTCOMES = ("recorded", "alike", "different", "late", "postponed")
LONGEST_LEARNING_S = 30.0
"""How long a verification waits for learners: the Zygote that they make may serve the function better, and needs none."""
LOOK_S = 0.1
AGAIN_S = 2.0
"""How long work waits that found no memory; doubled each time, up to LONGEST_AGAIN_S."""
LONGEST_AGAIN_S = 300.0
MOST_TRIES = 5
"""Times that a top level is run again that fails by itself, before the version's next cold start."""
SAVE_S = 10.0
"""What was found to be alike for so long is lost with a daemon that is killed, and compared again by the next one."""

_log = logging.getLogger(__name__)


class Unverified(str):
    """Why a node does not serve a function, if that is for want of a verification or by its result: it may change."""


PENDING = Unverified("it is still to be compared with a start of the function's own")


class Verifier:
    """`know` what is recorded; `consider` each cold start when it is over; `unverified` is asked once per node and version."""

    def __init__(
        self,
        config: ZygoteConfig,
        tree: ZygoteTree,
        recordings: Recordings,
        *,
        on_recorded: Callable[[ImportView, TopLevel], None] = lambda view, top: None,
        is_learning: Callable[[], bool] = lambda: False,
        on_refused: Callable[[ZygoteNode, ImportView, bool], None] = lambda node, view, has_served: None,
        save: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        save: publishes the recordings, after the last verification that waits, and now and then before;
        recordings: has the pairs that were verified, also by an earlier daemon;
        on_recorded: called with each recording;
        on_refused: called with each pair that is refused, and whether it may have served until then."""
        self._config = config
        self._tree = tree
        self.trials = Trials(config, tree)
        self._recordings = recordings
        self._on_recorded = on_recorded
        self._is_learning = is_learning
        self._on_refused = on_refused
        self._save = save
        self.refused = RefusedPairs()
        self.agenda = Agenda()
        self._unrecorded = Reasons()
        self._versions: WeakKeyDictionary[ImportView, tuple[Program, str]] = WeakKeyDictionary()
        """Versions that had a cold start, or whose top levels an earlier daemon has recorded."""
        self._saved_s = time.monotonic()
        self._starts = 0
        self.outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        count = config.verifiers if config.enabled else 0
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._work(), name="verifier") for _ in range(count)]

    def why_unrecorded(self, view: ImportView) -> str:
        """Why the top level of a version is not recorded, in words."""
        key = ("", view.program)
        if not self._tasks:
            return "its top level is not recorded: zygote.enabled or zygote.verifiers says so"
        if key in self.agenda.under_way:
            return "its top level is being recorded"
        if key in self.agenda.waiting:
            return "its top level waits to be recorded"
        return self._unrecorded.find(view.program) or "its top level is recorded after its next cold start"

    def forget(self, view: ImportView) -> None:
        """A version is no longer served: drop its work and reasons, unless another version is the same program."""
        self._versions.pop(view, None)
        if self._is_served(view):
            return
        self._unrecorded.forget(view.program)
        self.agenda.drop(view.program)

    def leave_out(self, view: ImportView, why: str) -> None:
        """A sandbox of a version was started, and recording its top level is not worth it."""
        self._unrecorded.note(view.program, f"its top level is not recorded: {why}")

    def unverified(self, node: ZygoteNode, view: ImportView) -> str:
        """Why a node does not serve a function whose imports see nothing else than its own have seen; empty: it does."""
        if not self._config.verify or not node.imports:
            return ""
        refused = self.refused.find(node, view)
        if refused is not None:
            return Unverified(f"a start of its own differs: {refused.refusal.reason}")
        return "" if pair_of(node, view) in self._recordings.verified else PENDING

    def consider(self, node: ZygoteNode | None, view: ImportView, program: Program, function: str) -> None:
        """A sandbox of a version was started from `node`: learn what is to be known of its next start. Never waits."""
        if node is None or not self.expect(view, program, function) or not node.imports:
            return
        self._starts += 1
        if (
            self._config.verify
            and self._config.verify_again_after
            and self._starts % self._config.verify_again_after == 0
        ):
            self.agenda.add(Work(node, view, program, function))

    def expect(self, view: ImportView, program: Program, function: str) -> bool:
        """A version will be started: record its top level, or compare it with a Zygote that would serve it. Never waits.

        Returns: whether neither is left to do."""
        if not self._tasks or view.zygote == "none":
            return False
        self._versions[view] = program, function
        if view.top is None:
            self.agenda.add(Work(None, view, program, function))
            return False
        return not self._consider_larger(view, program, function)

    def know(self, view: ImportView, program: Program, function: str) -> None:
        """A version is there whose top level may be recorded: a Zygote that is made for it, or made again, is verified without a
        cold start of it, as an earlier daemon may have ended before that was done."""
        if self._tasks and view.zygote != "none" and view.top is not None:
            self._versions[view] = program, function

    def _consider_larger(self, view: ImportView, program: Program, function: str) -> bool:
        for larger, reason in self._tree.passed_over(view):
            if isinstance(reason, Unverified) and self.refused.find(larger, view) is None:
                larger.verdicts[view] = PENDING  # a refusal has expired
                self.agenda.add(Work(larger, view, program, function))
                return True
        return False

    def consider_node(self, node: ZygoteNode) -> None:
        """A Zygote was made: verify it for the versions that it would serve better, before their next start."""
        for view, (program, function) in list(self._versions.items()):
            if view.top is not None and view.lineage == node.lineage and node.imports <= view.top.wanted:
                self._consider_larger(view, program, function)

    def forgive(self, name: str | None) -> list[str]:
        """Forget the refusals of Zygotes that hold a distribution, or of all; the distributions that differed."""
        forgiven = self.refused.forgive_all(name)
        for node in self._tree.nodes:
            for view, verdict in list(node.verdicts.items()):
                if isinstance(verdict, Unverified):
                    del node.verdicts[view]
        return forgiven

    async def aclose(self) -> None:
        """End what is under way."""
        self.agenda.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- the tasks

    def _is_served(self, view: ImportView) -> bool:
        """Whether a version with the same program has had a cold start, or is known, and was not forgotten since."""
        return any(served.program == view.program for served in self._versions)

    def _postpone(self, work: Work, why: str) -> None:
        """There is no memory for it now, or its sandbox could not be started."""
        self.outcomes["postponed"] += 1
        seconds = min(AGAIN_S * 2.0**work.tries, LONGEST_AGAIN_S)
        self._add_later(work, seconds, is_postponed=True)
        if work.node is None:
            self._unrecorded.note(work.view.program, f"its top level waits to be recorded: {why}", again_in_s=seconds)

    def _add_later(self, work: Work, seconds: float, *, is_postponed: bool = False) -> None:
        """Try again: a busy host delays a verification, and never drops it. Only what is no longer served needs none."""
        if self._is_served(work.view):
            self.agenda.add_later(work, seconds, is_postponed=is_postponed)

    async def _work(self) -> None:
        agenda = self.agenda
        while True:
            await agenda.wake.wait()
            while agenda.waiting:
                await self._let_learners_go_first()
                if not agenda.waiting:
                    break  # another task has it
                with agenda.taken() as work:
                    try:
                        await self._do(work)
                    except Exception:
                        _log.exception("a verification failed")
            agenda.wake.clear()

    async def _let_learners_go_first(self) -> None:
        """Recordings do not wait: learners need them. While one waits, verifications take turns with recordings instead."""
        ends_s = time.monotonic() + LONGEST_LEARNING_S
        while self._is_learning() and time.monotonic() < ends_s:
            if self.agenda.waiting.has_recording:
                return
            await until(time.monotonic() + LOOK_S)

    async def _do(self, work: Work) -> None:
        """Record or compare, and note what came of it."""
        try:
            if work.node is None:
                await self._record(work)
            else:
                await self._verify(work, work.node)
        except (TrialFailed, BadRecording, NoCapacity, SandboxFailed, OSError, TimeoutError) as error:
            if self._is_served(work.view):  # else its code, or the Zygotes of its image, went with it
                self._note_failure(work, error)

    def _note_failure(self, work: Work, error: Exception) -> None:
        if not isinstance(error, TrialFailed | BadRecording):
            self._put_off(work, error)
        elif work.node is None:
            self._note_unrecorded(work, error)
        else:
            self._refuse(work, work.node, str(error), by_deadline=isinstance(error, TrialFailed) and error.is_late)

    def _put_off(self, work: Work, error: Exception) -> None:
        """Try again what has found no memory, or had no sandbox."""
        if isinstance(error, NoCapacity):
            self._postpone(work, str(error))
        elif work.node is None or work.node in self._tree.nodes:
            _log.warning("%s could not be verified: %s", work.function, error)
            said = (isinstance(error, OSError) and error.strerror) or str(error)  # without a path of the host
            self._postpone(work, said or "its sandbox was not there in time")
        else:
            self.outcomes["postponed"] += 1

    def _note_unrecorded(self, work: Work, error: Exception) -> None:
        """Try it again, but a few times only if it fails by itself: its effects are real, and the version may not be called."""
        self.outcomes["late"] += 1
        level = logging.INFO if work.tries else logging.WARNING
        _log.log(level, "the top level of %s was not recorded: %s", work.function, error)
        why, seconds = f"its top level could not be recorded: {error}", min(10.0 * 2.0**work.tries, 3600.0)
        if work.tries < MOST_TRIES or (isinstance(error, TrialFailed) and error.is_late):
            self._add_later(work, seconds)
            self._unrecorded.note(work.view.program, why, again_in_s=seconds)
        else:
            self._unrecorded.note(work.view.program, f"{why}; it is tried again after its next cold start")

    async def _record(self, work: Work) -> None:
        """Raises: as `Trials.recorded`; BadRecording."""
        view, began_s = work.view, time.monotonic()
        if view.top is not None:
            return
        own = await self.trials.recorded(work)
        steps = await asyncio.to_thread(read_steps, own.steps, view.closure, most=self._config.max_modules)
        if not self._is_served(view):
            return  # it was withdrawn meanwhile: no Zygote is made for it
        self._unrecorded.forget(view.program)
        self.outcomes["recorded"] += 1
        top = TopLevel(steps, view.closure, view.zygote == "stdlib", own.peak_bytes)
        _log.info(
            "the top level of %s is recorded: %d imports in %.2f s, of which %.2f s CPU; %s",
            *(work.function, len(steps), time.monotonic() - began_s, own.cpu_s, top.change or "all may be shared"),
        )
        self._on_recorded(view, top)
        self._consider_larger(view, work.program, work.function)

    async def _verify(self, work: Work, node: ZygoteNode) -> None:
        """Raises: as `Trials.recorded`."""
        if node not in self._tree.nodes or self._is_served_better(node, work.view):
            return
        began_s, cpu_before_s = time.monotonic(), self.trials.cpu_s
        found = await self.trials.compared(work, node)
        if found:
            if self._is_served(work.view):
                self._refuse(work, node, in_words(found), owner=found[0].owner)
            return
        self.outcomes["alike"] += 1
        self._recordings.note_verified(pair_of(node, work.view))
        self.refused.forgive(work.key)
        forget_verdict(node, work.view)
        if not self.agenda.waiting or time.monotonic() - self._saved_s >= SAVE_S:
            self._saved_s = time.monotonic()
            self._save()
        _log.info(
            "%s is verified for %s: %.2f s, of which %.2f s CPU",
            *(node.id, work.function, time.monotonic() - began_s, self.trials.cpu_s - cpu_before_s),
        )

    def _is_served_better(self, node: ZygoteNode, view: ImportView) -> bool:
        """Whether a node with as many imports serves it by now."""
        try:
            best = self._tree.best(view)
        except ZygoteGone:
            return False
        return best is not node and node.imports <= best.imports

    # -- what is known

    def _refuse(self, work: Work, node: ZygoteNode, reason: str, *, owner: str = "", by_deadline: bool = False) -> None:
        self.outcomes["late" if by_deadline else "different"] += 1
        pair = pair_of(node, work.view)
        has_served = pair in self._recordings.verified
        self._recordings.verified.pop(pair, None)
        refusal = self.refused.refuse(work.key, node, reason, owner=owner, by_deadline=by_deadline)
        forget_verdict(node, work.view)
        seconds = refusal.retry_s - refusal.time_s
        if by_deadline:
            self._add_later(work, seconds)
        _log.warning("%s (%s) does not serve %s for %.0f s: %s", node.id, refusal.node, work.function, seconds, reason)
        self._on_refused(node, work.view, has_served)


def forget_verdict(node: ZygoteNode, view: ImportView) -> None:
    """Have the node asked again for each version that is the same program."""
    for known in list(node.verdicts):
        if known.program == view.program:
            del node.verdicts[known]


def pair_of(node: ZygoteNode, view: ImportView) -> str:
    """The name of a pair, the same after a restart: no value of a variable can be read from it."""
    return f"{node.identity}/{view.program}"
