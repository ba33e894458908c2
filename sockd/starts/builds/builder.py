"""Builds from source: each runs in a new sandbox, confined as a function's, which is destroyed after it.

A build runs foreign code: build backends, setup.py, compilers. Its sandbox has uv, the host's software, the package index, no
credentials, and the limits of `builds`. Its output is untrusted: the resolver validates a lock file, and `built_wheel` checks a
wheel before an installer opens it.

Owns the sandboxes, and the directory with uv, which is their /var/task.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from sockd.base.blocking import in_thread
from sockd.base.config import MB, BuildConfig
from sockd.base.errors import (
    BuildFailed,
    FunctionFailed,
    OutOfMemory,
    ResponseTooLarge,
    SockdError,
    TimedOut,
)
from sockd.base.invoke_request import Sink
from sockd.isolation.roots import base as bases
from sockd.isolation.roots.interpreter import Interpreter
from sockd.isolation.roots.program import Limits, Program
from sockd.isolation.sandbox.exchange import Reply
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.isolation.sandbox.stream import BoundedSink
from sockd.linux.network.own_addresses import own_addresses
from sockd.starts.builds.build_network import reachable
from sockd.starts.packages import built_wheel
from sockd.starts.packages.distribution import Distribution
from sockd.starts.packages.resolver import failure
from sockd.starts.packages.uv import uv_path
from sockd.starts.zygotes.zygote_tree import ZygoteTree
from sockd_zygote import protocol

HANDLER = "sockd_zygote.top_levels.building:answer"
LOG_BYTES = 64 << 10
LOCK_BYTES = 6 * MB
"""Maximum size of a lock file."""
WAIT_S = 60.0
"""How long a build waits for memory."""
ENVIRONMENT = {
    "HOME": "/tmp",
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "LANG": "C.UTF-8",
    "UV_CACHE_DIR": "/tmp/uv-cache",
    "UV_NO_CONFIG": "1",
    "UV_PYTHON_DOWNLOADS": "never",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "SOURCE_DATE_EPOCH": "315532800",  # 1980, the earliest time in a zip: builds are reproducible
}


class Builder:
    """The builds of one worker."""

    def __init__(self, config: BuildConfig, tree: ZygoteTree, tools: Path, *, max_package_mb: int) -> None:
        """Args: tools: the directory for uv; max_package_mb: maximum size of a wheel's files."""
        self._config = config
        self._tree = tree
        self._tools = tools
        self._max_bytes = max_package_mb << 20
        self._slots = asyncio.Semaphore(config.parallel)
        self._putting = asyncio.Lock()

    async def lock(self, requirements: str, variables: Mapping[str, str], python: Interpreter) -> str:
        """The text of uv's lock file for requirements; uv may build packages without a wheel to read their metadata.

        Args: variables: uv's environment, without secrets; python: the interpreter that is to import them.
        Raises: ResolveFailed with uv's message; BuildFailed at a limit; PackagesFailed; NoCapacity; SandboxFailed."""
        event = {"requirements": requirements}
        try:
            body = await self._run(event, variables, "the requirements", None, python)
        except BuildFailed as error:
            if isinstance(error.__cause__, FunctionFailed):
                raise failure(error.__cause__.message) from None
            raise
        try:
            return msgspec.json.decode(body, type=str)
        except msgspec.MsgspecError:
            raise BuildFailed("the sandbox that resolved the requirements did not answer with a lock file") from None

    async def wheel(
        self, distribution: Distribution, directory: Path, variables: Mapping[str, str], python: Interpreter
    ) -> Path:
        """Build a distribution. Returns: the checked wheel, a file in `directory`.

        Raises: BuildFailed with the build's last lines; NoCapacity; SandboxFailed; OSError."""
        what = f"{distribution.name} {distribution.version}"
        built = directory / "built"
        with await in_thread(open, built, "xb") as file:
            sink = _WheelFile(file)
            assert distribution.source is not None
            source = msgspec.structs.asdict(distribution.source)
            answer = BoundedSink(sink, self._config.wheel_mb * MB)
            await self._run({"source": source}, variables, what, answer, python)
        try:
            await in_thread(
                built_wheel.check,
                *(built, sink.name, distribution.name, distribution.version),
                max_bytes=self._max_bytes,
                max_files=self._config.wheel_files,
                python=python,
            )
        except built_wheel.BadWheel as error:
            raise BuildFailed(f"{what}: {error}") from None
        wheel = directory / sink.name
        await in_thread(os.rename, built, wheel)
        return wheel

    async def _run(
        self,
        event: Mapping[str, object],
        variables: Mapping[str, str],
        what: str,
        answer: BoundedSink | None,
        python: Interpreter,
    ) -> bytes:
        """The answer of one build sandbox. Raises: BuildFailed, whose cause is the sandbox's or the platform's error."""
        if not self._config.enabled:
            raise BuildFailed(f"{what}: this worker does not build from source (builds.enabled)")
        body = msgspec.json.encode({**event, "env": ENVIRONMENT | dict(variables), "python": python.executable})
        async with self._slots:
            async with self._putting:
                await in_thread(self._put_uv)
            program = self._program(python)
            try:
                sandbox = await self._tree.children.start_for_build(program, deadline_s=WAIT_S)
                try:
                    reply = await self._answer(sandbox, body, variables, answer)
                    # A build whose compiler was killed fails; the cgroup of a dead sandbox is somebody else's already.
                    may_tell = isinstance(reply.error, FunctionFailed) and not sandbox.dead
                    is_killed = may_tell and sandbox.process.cgroup.oom_kills() > 0
                finally:
                    sandbox.destroy()
            finally:
                program.close()
        if reply.error is not None:
            words = self._memory_words(self._config.memory_mb) if is_killed else self._words(reply.error)
            raise BuildFailed(f"{what}: {words}") from (None if is_killed else reply.error)
        return reply.body

    async def _answer(
        self, sandbox: Sandbox, body: bytes, variables: Mapping[str, str], answer: BoundedSink | None
    ) -> Reply:
        """Raises: BuildFailed, if the sandbox cannot be confined."""
        reply = await sandbox.initialize()
        if reply.error is not None:
            return reply
        await self._guard(sandbox, variables)
        reply = await sandbox.request(uuid.uuid4().bytes, body, (lambda: answer) if answer else None)
        if reply.stream is not None and answer is not None:
            await reply.stream.passed_on(failed=reply.error is not None)
        return reply

    def _words(self, error: SockdError) -> str:
        config = self._config
        if isinstance(error, TimedOut):
            return f"the build took longer than {config.deadline_s:g} s (builds.deadline_s)"
        if isinstance(error, OutOfMemory):
            return self._memory_words(error.limit_bytes >> 20)
        if isinstance(error, ResponseTooLarge):
            return f"the wheel that was built is over {config.wheel_mb} MB (builds.wheel_mb)"
        if isinstance(error, FunctionFailed):
            return f"the build failed:\n{error.message}"
        return f"the build's sandbox ended: {error.message}"

    def _memory_words(self, limit_mb: int) -> str:
        return f"the build took more than {limit_mb} MB of memory (builds.memory_mb), /tmp included"

    async def _guard(self, sandbox: Sandbox, variables: Mapping[str, str]) -> None:
        """Refuse connections to the host's own addresses, before foreign code runs. Raises: BuildFailed."""
        if self._config.network == "none" or self._config.reach_host:
            return
        try:
            exceptions = await in_thread(reachable, variables)
            await in_thread(sandbox.process.cgroup.deny_networks, own_addresses(), exceptions)
        except OSError as error:
            words = "this kernel cannot refuse a build's connections to the host's own addresses"
            raise BuildFailed(f"{words} (builds.reach_host = true allows them): {error.strerror}") from error

    def _program(self, python: Interpreter) -> Program:
        config = self._config
        limits = Limits(
            memory_bytes=config.memory_mb * MB,
            pids=config.pids,
            cpus=config.cpus,
            tmp_bytes=config.tmp_mb * MB,
            tmp_inodes=config.tmp_inodes,
            network=config.network,
        )
        init = {
            "name": "build",
            "version": "0",
            "handler": HANDLER,
            "entry_file": "",
            "code": f"/{bases.CODE}",
            "paths": [],
            "pth": [],
            "env": {},
            "memory_mb": config.memory_mb,
            "open_files": config.open_files,
            "max_answer_bytes": LOCK_BYTES,
        }
        return Program(
            self._tools,
            protocol.encode_init(init),
            limits,
            init_timeout_s=config.deadline_s,
            timeout_s=config.deadline_s,
            log_bytes=LOG_BYTES,
            interpreter=python.id,
        )

    def _put_uv(self) -> None:
        """Copy this daemon's uv to `tools`, unless it is there. Blocks. Raises: PackagesFailed; OSError."""
        source, target = Path(uv_path()), self._tools / "uv"
        if target.is_file() and (target.stat().st_size, target.stat().st_mtime_ns) == (
            source.stat().st_size,
            source.stat().st_mtime_ns,
        ):
            return
        self._tools.parent.mkdir(mode=0o700, exist_ok=True)
        self._tools.mkdir(exist_ok=True)
        self._tools.chmod(0o755)  # sandboxes see this directory, and not its parent
        copy = self._tools / "uv.new"
        shutil.copy2(source, copy)
        copy.chmod(0o755)
        os.replace(copy, target)


class _WheelFile(Sink):
    """Writes a streamed wheel to a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.name = ""
        """The file name that the sandbox reports."""

    async def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.name = dict(headers).get(b"x-wheel", b"").decode("latin-1")

    async def chunk(self, data: bytes) -> None:
        await in_thread(self._file.write, data)
