"""Programs of ours that an image's own Python runs, in a sandbox without network: what it says is foreign.

Owns the sandbox while the block lasts.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sockd.functions.in_images import image_programs
from sockd.isolation.roots.program import ImageInUse, Limits, Program
from sockd.isolation.sandbox.memory_budget import MemoryBudget, Reservation
from sockd.starts.sources import Starts, Wanted
from sockd.starts.zygotes.top_levels.soundness import ImportView
from sockd_zygote import protocol

WAIT_S = 30.0
"""How long a probe waits for memory."""
OPEN_FILES = 1024
LOG_BYTES = 64 << 10
SAID = 200
"""Most of a program's own words in a message."""
Ask = Callable[[bytes], Awaitable[bytes]]
"""One event and its answer. Raises: SockdError."""


@dataclass(frozen=True, slots=True)
class ProbeMemory:
    """Conditions of a probe: its memory."""

    budget: MemoryBudget

    def reserve_nowait(self, program: Program) -> Reservation | None:
        return self.budget.reserve_nowait(program.limits.memory_bytes)

    async def reserve(self, program: Program) -> Reservation:
        return await self.budget.reserve(program.limits.memory_bytes, deadline_s=WAIT_S)


@asynccontextmanager
async def probing(
    starts: Starts,
    budget: MemoryBudget,
    image: ImageInUse,
    command: Sequence[str],
    directory: str,
    variables: dict[str, str],
    limits: Limits,
    *,
    timeout_s: float,
    answer_bytes: int,
) -> AsyncIterator[Ask]:
    """A sandbox in an image, which is let go of in the end, that runs a command. Raises: SockdError, OSError."""
    init = {
        "name": "probe",
        "version": "0",
        "handler": "probe",
        "code": "/",
        "entry_file": "",
        "provided": image_programs.IMAGE,
        "paths": [],
        "pth": [],
        "env": variables,
        "image": {"command": [*command], "directory": directory},
        "memory_mb": limits.memory_bytes >> 20,
        "open_files": OPEN_FILES,
        "max_answer_bytes": answer_bytes,
    }
    program = Program(
        None,
        protocol.encode_init(init),
        limits,
        init_timeout_s=timeout_s,
        timeout_s=timeout_s,
        log_bytes=LOG_BYTES,
        image=image,
    )
    try:
        view = ImportView(frozenset(), network=limits.network)
        started = await starts.new(Wanted(view, program, ProbeMemory(budget)))
        sandbox = started.sandbox

        async def ask(event: bytes) -> bytes:
            reply = await sandbox.request(uuid.uuid4().bytes, event)
            if reply.error is not None:
                if program.base is not None and (lost := await program.base.why_lost()) is not None:
                    raise lost from reply.error
                if said := last_line(reply.log):
                    reply.error.message += f" ({said})"
                raise reply.error
            return bytes(reply.body)

        try:
            sandbox.become(program)
            yield ask
        finally:
            sandbox.destroy()
    finally:
        program.close()


def last_line(log: bytes) -> str:
    """What a program said last, for people: why its loader or its interpreter gave up."""
    lines = log.decode(errors="replace").strip().splitlines()
    return "".join(character for character in (lines or [""])[-1] if character.isprintable())[:SAID]
