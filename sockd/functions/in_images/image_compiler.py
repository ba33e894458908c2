"""Compiles sources of an image that have no bytecode, while it is imported: the image's own Python does it, in a sandbox.

The sandbox has no network. The answers are foreign. They are written to a file, bounded and not looked into; the import process
takes them apart.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sockd.base.blocking import in_thread
from sockd.base.config import MB
from sockd.base.errors import SandboxFailed, SockdError
from sockd.base.notes import Progress
from sockd.functions.in_images import image_programs
from sockd.functions.in_images.image_probe import Ask, probing
from sockd.images.store.full_disk import passing
from sockd.images.store.import_wire import Compiled, Uncompiled
from sockd.images.store.missing_bytecode import MOST_BYTECODE_BYTES, CompiledBatch, CompileJob
from sockd.isolation.roots import base as bases
from sockd.isolation.roots import compile_probe
from sockd.isolation.roots.image_base import ImageBase
from sockd.isolation.roots.image_mounting import ImageMounting
from sockd.isolation.roots.program import Limits
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.starts.sources import Starts

LIMITS = Limits(512 * MB, 64, 1.0, 16 * MB, 1024, network="none")
ANSWER_BYTES = 6 * MB
OPTIONS = ("-s", "-S", "-B")
"""Neither packages nor .pth files are imported: the program needs the standard library alone."""
REPORT_SOURCES = 200
"""Between two lines of progress."""


class _OnePath:
    """The file of an image that is not in the store yet (`sockd.isolation.roots.program.ImageInUse`)."""

    def __init__(self, path: Path, host: bases.Base, mounting: ImageMounting) -> None:
        self._path = path
        self._host = host
        self._mounting = mounting
        self._base: ImageBase | None = None

    async def mounted(self, within_s: float) -> ImageBase:
        if self._base is None:
            await in_thread(self._mount)
        assert self._base is not None
        return self._base

    def _mount(self) -> None:
        # Kept by the thread: the result of a cancelled `mounted` goes nowhere, and `close` must find it.
        self._base = self._mounting.mount(str(self._path), self._host)
        self._base.hold()

    def used(self) -> None:
        return None

    def failure_since(self, begun_ns: int) -> SockdError | None:
        return None

    def close(self) -> None:
        base, self._base = self._base, None
        if base is not None:
            base.let_go()


@dataclass(frozen=True, slots=True)
class ImageCompiler:
    """`compile` is a step of imports (`sockd.images.store.import_runs.Compile`)."""

    starts: Starts
    budget: MemoryBudget
    host: bases.Base
    """Has what is the host's of an image's root."""
    timeout_s: float
    mounting: ImageMounting

    async def compile(self, file: Path, uncompiled: Uncompiled, answers: int, progress: Progress) -> Compiled:
        """Write the answers to a file. What is missing has a reason, that of the image or of a limit.

        Raises: NoCapacity, HostFailed: the worker's own trouble, which must not become a part of the image."""
        done: list[CompiledBatch] = []
        progress(f"compiling bytecode: {uncompiled.sources} sources have none")
        reason = ""
        try:
            async with asyncio.timeout(self.timeout_s):
                for number, job in enumerate(uncompiled.jobs):
                    await self._run(file, uncompiled.env, number, job, answers, done, progress)
        except TimeoutError:
            reason = f"it took more than {self.timeout_s:g} s (images.compile_timeout_s)"
        except (SockdError, OSError) as error:
            if (trouble := passing(error)) is not None:
                raise trouble from error
            text = getattr(error, "message", "") or str(error)
            reason = "".join(char for char in text if char.isprintable())[:300]
        return Compiled(tuple(done), reason)

    async def _run(
        self,
        file: Path,
        env: tuple[str, ...],
        number: int,
        job: CompileJob,
        answers: int,
        done: list[CompiledBatch],
        progress: Progress,
    ) -> None:
        """One interpreter. Raises: SockdError, OSError, TimeoutError."""
        source = await in_thread(Path(str(compile_probe.__file__)).read_text)
        command = [job.python, *OPTIONS, "-c", source]
        async with probing(
            *(self.starts, self.budget, _OnePath(file, self.host, self.mounting), command, "/", variables(env), LIMITS),
            timeout_s=self.timeout_s,
            answer_bytes=ANSWER_BYTES,
        ) as ask:
            await self._ask_all(ask, number, job, answers, done, progress)

    async def _ask_all(
        self, ask: Ask, number: int, job: CompileJob, answers: int, done: list[CompiledBatch], progress: Progress
    ) -> None:
        sources = reported = 0
        for index, paths in enumerate(job.batches):
            answer = await ask(msgspec.json.encode({"cache_tag": job.cache_tag, "paths": paths}))
            if not answer:
                raise SandboxFailed(f"{job.python} is another Python than its files say")
            offset = done[-1].offset + done[-1].size if done else 0
            if offset + len(answer) > MOST_BYTECODE_BYTES:
                raise SandboxFailed(f"there is more than {MOST_BYTECODE_BYTES // MB} MB of it")
            await in_thread(_write, answers, answer, offset)
            done.append(CompiledBatch(number, index, offset, len(answer)))
            sources += len(paths)
            if sources - reported >= REPORT_SOURCES:
                reported = sources
                progress(f"compiling bytecode: {sources} of {job.sources} sources")


def variables(env: tuple[str, ...]) -> dict[str, str]:
    """Return the environment of the program: the image's, without the variables that make its Python another one, or its
    bytecode."""
    own = dict(each.split("=", 1) for each in env if "=" in each)
    kept = {name: value for name, value in own.items() if not name.startswith("PYTHON") or name == "PYTHONHOME"}
    return {**image_programs.DEFAULTS, **kept, "PYTHONHASHSEED": "0"}


def _write(fd: int, data: bytes, offset: int) -> None:
    while data:
        size = os.pwrite(fd, data, offset)
        data, offset = data[size:], offset + size
