"""The check of a deploy or a change: the new version is started once, without a request, before requests go to it.

    start (memory, Zygote, sandbox) ── import of the handler ──► READY: the deploy goes on, the sandbox ends
                                                             └─► VersionFailed: the version before serves on

A check is one start more: it reserves the memory of one sandbox, and may evict idle ones. It waits for that as long as an import
may take, and the same deadline ends it (`init_timeout_s`). It takes no turn of the function's requests, runs no initscript, and
has rules of its own on a private network. A check that cannot be made refuses the deploy, too: nothing has changed then.

Owns the sandbox, and the allowance that it runs with.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec

from sockd.base.errors import (
    BadFunctionConfig,
    FunctionFailed,
    InitFailed,
    NoCapacity,
    SandboxDied,
    SandboxFailed,
    SockdError,
    TimedOut,
    VersionFailed,
)
from sockd.functions.serving import refused_writes
from sockd.functions.serving.allowance import Allowance
from sockd.functions.serving.function import Caches
from sockd.functions.serving.start_conditions import StartConditions
from sockd.functions.serving.version import Version
from sockd.isolation.sandbox.exchange import Reply
from sockd.linux.processes import pidfds
from sockd.starts.sources import Started, Wanted

CHECK = "check"
"""A parameter of a deploy: false: its new version is not started before requests go to it; FIRST."""
FIRST = "first"
"""As true, but the first deploy of a function is recorded although its check has failed: AWS's API has such functions."""
GONE_S = 5.0
"""How long the check's sandbox may take to end."""
PRINTED_BYTES = 4096
"""How much of what a failed start printed last is in the error."""
OF_THE_VERSION = (InitFailed, SandboxDied, TimedOut)
"""Failures of a start that are the version's own."""


@dataclass(frozen=True, slots=True)
class FailedDeploy:
    """The last deploy of a function, which failed its check."""

    reason: str
    is_live: bool
    """Whether it was recorded nevertheless: it was the first."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of a check."""

    failed: FailedDeploy | None = None
    """How it failed, if the version is recorded all the same."""
    advice: str = ""
    """What the start could not write, and the remedy."""
    is_app: bool | None = None
    """Whether the handler is a web app, if that is known."""
    init_ns: int = 0
    """How long its import of the handler took, if it was forked from a Zygote and has succeeded."""


NOT_CHECKED = Checked()


def wanted(overrides: dict[str, Any]) -> bool:
    """Whether a deploy is checked. Raises: BadFunctionConfig."""
    value = overrides.get(CHECK, True)
    if value not in (True, False, FIRST):
        raise BadFunctionConfig(f"{CHECK}: must be true or false")
    return bool(value)


@contextlib.asynccontextmanager
async def started_once(version: Version, caches: Caches, *, is_known: bool) -> AsyncIterator[Checked]:
    """Start a version, and end it again; its interpreter stays in use until the end of the block.

    Args: is_known: the function is there already, and has a log, which gets what a failed start printed.
    Raises: VersionFailed; NoCapacity, and what else a start raises, if none could be made."""
    lineage = version.view.lineage
    caches.tree.lineages.expect(lineage, at_once=False)
    try:
        allowance = _allowance(version, caches)
        try:
            checked = await _start(version, caches, allowance, is_known=is_known)
        finally:
            allowance.close()
            allowance.egress.close()
        yield checked
    finally:
        caches.tree.lineages.release(lineage)
        version.close()


def _allowance(version: Version, caches: Caches) -> Allowance:
    """The limits of the check alone: the function's own may be another deploy's, or not be there yet."""
    config = msgspec.structs.replace(version.config, reserved_memory_mb=0)
    return Allowance(version.record.name, config, caches.budget, caches.open_account, caches.networks)


async def _start(version: Version, caches: Caches, allowance: Allowance, *, is_known: bool) -> Checked:
    program = version.program
    program.socket_account = allowance.socket_account
    conditions = StartConditions(allowance, program.init_timeout_s)
    try:
        started = await caches.starts.new(Wanted(version.view, program, conditions))
    except NoCapacity as error:
        words = "the new version could not be started once to check it, and nothing was changed"
        raise NoCapacity(f"{words}: {error.message}; try again later, or with --no-check") from None
    reply, printed = await _initialized(started, version)
    if started.node is not None:
        caches.tree.spares.refill(started.node)
    if reply.error is not None:
        if is_known:
            caches.failed_inits.note(version, reply)
        raise await _failure(version, started, reply.error, printed)
    init_ns = started.sandbox.init.took_ns if started.node is not None else 0
    return Checked(None, _advice(version, printed), program.is_app, init_ns)


async def _initialized(started: Started, version: Version) -> tuple[Reply, bytes]:
    """What came of the import, and what it printed; the sandbox has ended. Raises: SandboxFailed."""
    sandbox = started.sandbox
    try:
        with pidfds.duplicate(sandbox.process.pidfd) as pidfd:
            try:
                sandbox.become(version.program)
            except OSError as error:
                raise SandboxFailed(f"the sandbox could not be prepared: {error.strerror}") from error
            reply = await sandbox.initialize()
            printed = reply.log if reply.error is not None else sandbox.process.output.take()[0]
            sandbox.destroy()
            await pidfds.wait_exited(pidfd, GONE_S)
            return reply, printed
    finally:
        sandbox.destroy()


async def _failure(version: Version, started: Started, error: SockdError, log: bytes) -> SockdError:
    """The error of the deploy: a start that failed by itself is the version's, another one the worker's.

    Args: log: what the start printed, which is in no log yet if this is the first deploy of the function."""
    image = started.sandbox.process.image
    if image is not None and isinstance(error, OF_THE_VERSION) and (lost := await image.why_lost()) is not None:
        return lost
    if not isinstance(error, OF_THE_VERSION):
        return error
    stack = list(error.stack_trace) if isinstance(error, FunctionFailed) else []
    if printed := log[-PRINTED_BYTES:].decode(errors="replace").strip():
        stack.append(f"The start printed:\n{printed}\n")
    advice = _advice(version, log, error.message)
    message = f"{error.message}; {advice}" if advice else error.message
    return VersionFailed(version.record.name, error.error_type, message, stack)


def _advice(version: Version, log: bytes, message: str = "") -> str:
    config, has_image = version.config, bool(version.record.image)
    text = f"{log.decode(errors='replace')}\n{message}"
    return refused_writes.advice(text, has_image=has_image, writable_root=config.writable_root)
