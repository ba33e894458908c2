"""A new Zygote's canary: one fork that is tested before the Zygote serves functions.

It is prepared like a spare, including the rehearsal of a request, becomes a program with the Zygote's packages and no code, and
runs `sockd_zygote.top_levels.checks`. No request waits for it. Its report is untrusted: a package that falsifies it affects
only the functions that requested it."""

from __future__ import annotations

import asyncio
import uuid

import msgspec

from sockd.base.errors import SandboxFailed, TimedOut
from sockd.isolation.farm.imported import ImportRequest
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.roots import base as bases
from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.exchange import Reply
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.starts.zygotes.zygote_tree import ZygoteTree
from sockd_zygote import protocol
from sockd_zygote.top_levels import checks

HANDLER = "sockd_zygote.top_levels.checks:answer"
LOG_BYTES = ANSWER_BYTES = 64 << 10
OPEN_FILES = 1024
MOST_SHOWN = 200
"""Characters of what a check says."""


async def try_out(tree: ZygoteTree, zygote: Zygote, request: ImportRequest, *, deadline_s: float) -> None:
    """Have a fork of a Zygote try everything, within this time. Args: request: what the Zygote has imported.

    Raises: SandboxFailed, which says what does not work; TimeoutError; NoCapacity; OSError."""
    async with asyncio.timeout(deadline_s):
        sandbox = await tree.children.fork_spare(zygote)
    try:
        reply = await _answer(sandbox, request, deadline_s)
    finally:
        await sandbox.aclose(
            deadline_s
        )  # a process that still runs seems to be one that the Zygote's next import leaves
    begun = checks.last_begun(reply.log) or "the first call of a handler"
    if isinstance(reply.error, TimedOut):
        raise TimeoutError(f"{begun}: a fork of it did not answer in time")
    if reply.error is not None:
        raise SandboxFailed(f"{begun}: a fork of it failed: {reply.error}")
    if found := failures(reply.body):
        raise SandboxFailed(f"in a fork of it {found}")


async def _answer(sandbox: Sandbox, request: ImportRequest, deadline_s: float) -> Reply:
    init = {
        "name": "canary",
        "version": "0",
        "handler": HANDLER,
        "entry_file": "",
        "code": request.directory or f"/{bases.CODE}",
        "sys_path": list(request.sys_path),
        "paths": list(request.paths),
        "pth": list(request.pth),
        "sitecustomize": request.sitecustomize,
        "env": dict(request.env),
        "memory_mb": sandbox.process.limits.memory_bytes >> 20,
        "open_files": OPEN_FILES,
        "max_answer_bytes": ANSWER_BYTES,
    }
    program = Program(
        None,
        protocol.encode_init(init),
        sandbox.process.limits,
        init_timeout_s=deadline_s,
        timeout_s=deadline_s,
        log_bytes=LOG_BYTES,
    )
    sandbox.become(program)
    return await sandbox.request(uuid.uuid4().bytes, b"{}")


def failures(body: bytes) -> str:
    """What does not work, in words; empty: all works. Args: body: as `sockd_zygote.top_levels.checks.answer` returns it."""
    try:
        results = msgspec.json.decode(body, type=dict[str, str])
    except (msgspec.MsgspecError, RecursionError):
        return "the answer is no list of checks"
    well = (checks.WORKS, checks.ABSENT)
    missing = [f"{name} was not tried" for name in checks.CHECKED if name not in results]
    failed = [
        f"{name} fails: {results[name][:MOST_SHOWN]}"
        for name in checks.CHECKED
        if results.get(name, well[0]) not in well
    ]
    return "; ".join([*missing, *failed])
