"""The compiler of WebAssembly: initscripts and the modules of functions, each in a confined process of its own.

Owns the process while it runs. What it reads is anybody's and what it makes is machine code, so it has no network, no file of the
host and bounds of time and memory; its callers keep what comes out of it where only root writes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sockd.base.config import MB
from sockd.base.errors import SandboxFailed
from sockd.linux.confined.confined_process import ConfinedProcess, Jail
from sockd_initscripts.client.engine_software import missing
from sockd_initscripts.errors import BadModule

INITSCRIPT = "sockd_initscripts.engine.compile"
FUNCTION, HTTP = f"{INITSCRIPT}_function", f"{INITSCRIPT}_http"
"""The programs: what a module is checked for differs."""
BAD_MODULE = 3
"""Their exit status for a module that can never run."""
MAX_WORDS_BYTES = 4096
PIDS = 64


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a module may be, and what compiling it may take."""

    module_bytes: int
    compiled_bytes: int
    memory_bytes: int
    deadline_s: float


class ModuleCompiler:
    """Compiles on one tree, as one user."""

    def __init__(self, jail: Jail, uid: int) -> None:
        self._jail = jail
        self._uid = uid

    def missing(self) -> list[str]:
        """Return which of the packages that it needs are not installed."""
        return missing()

    async def compile(self, program: str, wasm: bytes, bounds: Bounds) -> bytes:
        """Compile a module. Args: program: INITSCRIPT or FUNCTION.

        Raises: BadModule, whose reason is said of the module; SandboxFailed, when it cannot be compiled here."""
        if len(wasm) > bounds.module_bytes:
            raise BadModule(f"has {len(wasm)} bytes; the limit is {bounds.module_bytes}")
        process = await ConfinedProcess.start(
            self._jail,
            *("-m", program, str(bounds.module_bytes)),
            uid=self._uid,
            memory_bytes=bounds.memory_bytes,
            tmp_bytes=MB,
            pids=PIDS,
            network="none",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limits={"RLIMIT_FSIZE": 0, "RLIMIT_NOFILE": 64, "RLIMIT_CPU": int(bounds.deadline_s) + 1},
        )
        try:
            async with asyncio.timeout(bounds.deadline_s):
                compiled, words = await _converse(process.launcher, wasm, bounds.compiled_bytes)
                ended = await process.wait()
        except TimeoutError:
            raise BadModule(f"takes more than {bounds.deadline_s:g} s to compile") from None
        finally:
            await process.close()
        status = process.launcher.returncode
        text = words.decode(errors="replace").strip()
        if status == BAD_MODULE:
            raise BadModule(f"cannot run: {text[:500]}")
        if ended == "out of memory":
            raise BadModule(f"takes more than {bounds.memory_bytes // MB} MB to compile")
        if status != 0 or not compiled:
            raise SandboxFailed(f"a WebAssembly module could not be compiled: {ended}; {text[-500:]}")
        if len(compiled) > bounds.compiled_bytes:
            raise BadModule(f"compiles to more than {bounds.compiled_bytes // MB} MB")
        return compiled


async def _converse(process: asyncio.subprocess.Process, wasm: bytes, limit_bytes: int) -> tuple[bytes, bytes]:
    """All three streams at once, each to its end or to its limit."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    stdin = process.stdin

    async def feed() -> None:
        try:
            stdin.write(wasm)
            await stdin.drain()
        except ConnectionError:
            pass  # it has seen enough, and says so
        finally:
            stdin.close()

    _, compiled, words = await asyncio.gather(
        feed(), _head(process.stdout, limit_bytes + 1), _head(process.stderr, MAX_WORDS_BYTES)
    )
    return compiled, words


async def _head(stream: asyncio.StreamReader, limit_bytes: int) -> bytes:
    """The stream's first bytes; it is read to its end, so that the writer never blocks."""
    head = bytearray()
    while chunk := await stream.read(65536):
        head += chunk[: limit_bytes - len(head)]
    return bytes(head)
