"""Trials of versions: sandboxes that run the top level of a function, without a request, and tell what came of it.

Owns the sandboxes while they run, and the fingerprints of versions' own starts. Each trial has the closure, environment and
network of its function.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from sockd.base.config import MB, ZygoteConfig
from sockd.base.errors import FunctionFailed, OutOfMemory, SandboxFailed, SockdError, TimedOut
from sockd.isolation.roots.program import Program
from sockd.starts.zygotes.top_levels.soundness import ImportView
from sockd.starts.zygotes.verification.result import (
    BadFingerprint,
    Difference,
    Fingerprint,
    differences,
    read_fingerprint,
)
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.starts.zygotes.zygote_tree import ZygoteTree
from sockd_zygote import protocol
from sockd_zygote.top_levels.checks import last_begun

HANDLER = "sockd_zygote.top_levels.trial:answer"
LOG_BYTES = 1 * MB
ANSWER_BYTES = 6 * MB
SURE = 4
"""Starts of a function's own that a difference is compared with: what depends on addresses may be equal in two by chance."""
CLOCK_STEP_S = 1.1
"""Between two starts of a function's own that are compared: a clock in seconds shows another time."""
MEMORY_DEADLINE_S = 30.0
"""How long a trial waits for memory, in the queue in which requests wait, when it has found none PATIENT_TRIES times."""
PATIENT_TRIES = 5
"""Idle sandboxes are worth more than a verification that can wait: before, none is evicted for one."""
MOST_OWN = 128
"""Versions of which the fingerprint of a start of their own is kept, for the next Zygote that may serve them."""

Key = tuple[str, str]
"""Names of a node ("" for a recording) and of a version."""


class TrialFailed(Exception):
    """A sandbox of a verification did not answer."""

    def __init__(self, message: str, *, is_late: bool) -> None:
        """Args: is_late: for want of time or memory, which a busy host may cause."""
        super().__init__(message)
        self.is_late = is_late


@dataclass(frozen=True, slots=True)
class Work:
    """One recording, or one verification."""

    node: ZygoteNode | None
    """None: the version's top level is to be recorded."""
    view: ImportView
    program: Program
    function: str
    """The version's id."""
    tries: int = 0

    @property
    def key(self) -> Key:
        return (self.node.identity if self.node is not None else "", self.view.program)


async def until(time_s: float) -> None:
    """Wait. Args: time_s: of CLOCK_MONOTONIC."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(time_s - time.monotonic(), 0)):
            await asyncio.get_running_loop().create_future()


class Trials:
    """The trials of one worker's versions, in forks of the nodes of its tree."""

    def __init__(self, config: ZygoteConfig, tree: ZygoteTree) -> None:
        self._config = config
        self._tree = tree
        self._own: OrderedDict[str, Fingerprint] = OrderedDict()
        """Fingerprints of versions' own starts, by `ImportView.program`."""
        self.cpu_s = 0.0
        """What the sandboxes say to have used."""

    async def recorded(self, work: Work) -> Fingerprint:
        """Return the fingerprint of a start of the version's own, with the steps of its top level.

        Raises: TrialFailed, SandboxFailed, NoCapacity, OSError."""
        program = self._program_of(work)
        try:
            own = await self._try(work, self._tree.root_of(work.view.lineage), program, _asked(work, record=True))
        finally:
            program.close()
        if own.failure:
            raise TrialFailed(f"it raises {own.failure}", is_late=True)
        self._keep_own(work.view, own)
        return own

    async def compared(self, work: Work, node: ZygoteNode) -> list[Difference]:
        """Return the differences of a fork of `node` that starts of the function's own do not have. Raises: as `recorded`."""
        program = self._program_of(work)
        try:
            trial = _asked(work)
            root = self._tree.root_of(work.view.lineage)
            own = self._own.get(work.view.program)
            if own is None:
                own = await self._try(work, root, program, trial)
                self._keep_own(work.view, own)
            began_s = time.monotonic()
            fork = await self._try(work, node, program, trial)
            suspects = await asyncio.to_thread(fork.differing, own)
            if not suspects:
                return []
            trial = {**trial, "names_of": suspects, "pids": sorted({*own.pids, *fork.pids})}
            fork = await self._try(work, node, program, trial)
            starts: list[Fingerprint] = []
            for number in range(SURE):
                if number == 1:
                    await until(began_s + CLOCK_STEP_S)
                starts.append(await self._try(work, root, program, {**trial, "moved": number}))
                if not all(each.complete for each in (fork, *starts)):
                    raise TrialFailed(f"{len(suspects)} modules differ, {suspects[0]} for one", is_late=False)
                found = await asyncio.to_thread(differences, fork, starts)
                if not found:
                    break
            return found
        finally:
            program.close()

    def _keep_own(self, view: ImportView, own: Fingerprint) -> None:
        self._own[view.program] = msgspec.structs.replace(own, steps=[])
        self._own.move_to_end(view.program)
        if len(self._own) > MOST_OWN:
            self._own.popitem(last=False)

    def _program_of(self, work: Work) -> Program:
        """A program with a function's closure and environment, that runs a trial."""
        own, deadline_s = work.program, self._config.verify_deadline_s
        name = f"verification of {own.name}"
        handler = {"handler": HANDLER, "entry_file": "", "app": "", "provided": False, "wasm": "", "rehearsal": True}
        init = protocol.change_init(own.init, name=name, **handler, max_answer_bytes=ANSWER_BYTES)
        limits = replace(own.limits, memory_bytes=self._config.verify_memory_mb * MB)
        program = Program(own.code, init, limits, init_timeout_s=deadline_s, timeout_s=deadline_s, log_bytes=LOG_BYTES)
        program.policy = own.policy
        program.lineage = own.lineage
        program.is_trial = True
        return program

    async def _try(self, work: Work, node: ZygoteNode, program: Program, trial: dict[str, Any]) -> Fingerprint:
        """What one new sandbox tells. Raises: TrialFailed, SandboxFailed, NoCapacity, OSError."""
        whose = "a fork" if node.imports else "a start of its own"
        deadline_s = MEMORY_DEADLINE_S if work.tries >= PATIENT_TRIES else 0.0
        sandbox = await self._tree.children.fork_for_verification(node, program, deadline_s=deadline_s)
        try:
            reply = await sandbox.request(uuid.uuid4().bytes, msgspec.json.encode(trial))
            peak_bytes = sandbox.process.peak_bytes()
        finally:
            sandbox.destroy()
        if reply.error is not None:
            if (lost := await sandbox.why_lost()) is not None:
                raise SandboxFailed(lost.message) from reply.error
            words = f"{whose} did not come to its end: {_in_words(reply.error)}"
            if begun := last_begun(reply.log):
                words = f"{begun}: {words}"
            raise TrialFailed(words, is_late=isinstance(reply.error, TimedOut | OutOfMemory))
        try:
            fingerprint = await asyncio.to_thread(read_fingerprint, reply.body, peak_bytes)
        except BadFingerprint as error:
            raise TrialFailed(f"{whose}: {error}", is_late=False) from None
        self.cpu_s += fingerprint.cpu_s
        return fingerprint


def _in_words(error: SockdError) -> str:
    """Say how a trial failed: what a package says in its errors may be a secret, what the daemon says is none."""
    if isinstance(error, FunctionFailed):
        return error.error_type
    if isinstance(error, OutOfMemory):
        return f"out of memory: limit {error.limit_bytes / MB:.0f} MB (zygote.verify_memory_mb, or a quarter of what is free)"
    return str(error)


def _asked(work: Work, *, record: bool = False) -> dict[str, Any]:
    """What a trial is asked (`sockd_zygote.top_levels.trial.answer`)."""
    init = protocol.decode_init(work.program.init)
    key = init.get("image_key", "")
    return {
        "function": {name: init.get(name, "") for name in ("handler", "code", "entry_file", "app", "wasm")},
        "roots": [(f"{root}/", key) for root in init["paths"]] if key else [],
        "record": record,
        "names_of": [],
        "pids": [],
        "moved": 0,
        "variables": sorted(name for name, _ in work.view.variables),
    }
