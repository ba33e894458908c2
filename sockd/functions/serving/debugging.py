"""Debugging: an invocation that waits for a debugger, in its own sandbox.

Owns the current sessions. The install cache provides the debugger's package for this sandbox only: no Zygote and no other
sandbox of the function imports it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from sockd.base.config import MB, DebugConfig
from sockd.base.errors import BadRequest, Draining, PackagesFailed, SockdError, TimedOut
from sockd.functions.code.entrypoint import WASM, provided
from sockd.functions.serving.debug_port import HOST, DebugPort
from sockd.functions.serving.version import Version
from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.lifecycle import State
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.linux.bpf.port_guard import PortGuard
from sockd.starts.packages.distribution import Closure
from sockd.starts.packages.install_cache import InstallCache
from sockd_zygote import protocol

MORE_PIDS = 32
"""Threads of the debugger."""
MORE_SOCKETS = 32
"""The sockets of the debugger."""


class CannotDebug(BadRequest):
    """A debugged invocation did not run, or did not end; the message has the reason."""

    error_type = "Debug.Refused"


class ReportProgress(Protocol):
    """Receives progress messages."""

    def progress(self, text: str) -> None:
        """A line for a person."""

    def listening(self, port: int) -> None:
        """The function waits for a debugger at this port of 127.0.0.1."""


class Debugged:
    """One invocation. `program` before its sandbox is made, `begin` with it, `close` afterwards."""

    def __init__(self, config: DebugConfig, port: DebugPort, package: Closure, paths: list[str]) -> None:
        self._config = config
        self._port = port
        self._paths = paths
        self._program: Program | None = None
        self._sandbox: Sandbox | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.package = package

    def program(self, version: Version) -> Program:
        """What the sandbox becomes: the version, with a debugger before it. Raises: CannotDebug."""
        check(version)
        program, limits = version.program, version.program.limits
        own = {distribution.name for distribution in version.closure.distributions}
        more = [
            path
            for path, each in zip(self._paths, self.package.distributions, strict=True)
            if each.name not in own  # two of one package do not go together: the function's wins
        ]
        paths = [*protocol.decode_init(program.init)["paths"], *more]
        self._program = Program(
            program.code,
            protocol.change_init(program.init, paths=paths, debug=self._port.number),
            dataclasses.replace(
                limits,
                memory_bytes=limits.memory_bytes + self._config.memory_mb * MB,
                pids=limits.pids + MORE_PIDS,
                sockets=limits.sockets + MORE_SOCKETS,
            ),
            init_timeout_s=self._config.max_s,
            timeout_s=self._config.max_s,
            log_bytes=program.log_bytes,
            is_app=program.is_app,
        )
        self._program.socket_account, self._program.tasks = program.socket_account, program.tasks
        if version.config.network != "host":
            self._program.link_fd = self._port.link()
        return self._program

    def begin(self, sandbox: Sandbox) -> None:
        """This is the sandbox; its request follows at once."""
        self._sandbox = sandbox
        self._port.expect(sandbox.process.host_uid)
        self._port.close_link()  # the sandbox has its own now, whose end is the function's
        self._port.on_left = self._on_left
        max_s = self._config.max_s
        late = TimedOut(f"debugging took longer than {max_s:g} seconds: debug.max_s of the worker's configuration")
        self._timer = asyncio.get_running_loop().call_later(max_s, sandbox.conversation.end, late)

    def end(self, error: SockdError) -> None:
        """Answer with an error, if it runs."""
        if self._sandbox is not None:
            self._sandbox.conversation.end(error)

    def close(self) -> None:
        """End the debugging of this invocation."""
        if self._timer is not None:
            self._timer.cancel()
        if self._program is not None:
            self._program.close()

    def _on_left(self) -> None:
        # Later the function runs on by itself; before, debugpy would wait for its debugger for ever.
        if self._sandbox is not None and self._sandbox.lifecycle.state is State.STARTING:
            self._sandbox.conversation.end(CannotDebug("the debugger left before the handler had been imported"))


class Debugging:
    """All sessions of one worker. `confined`: the uids that may not attach to one."""

    def __init__(
        self, config: DebugConfig, packages: InstallCache, ports: PortGuard, confined: Sequence[range]
    ) -> None:
        self._config = config
        self._ports = ports
        self._packages = packages
        self._confined = confined
        self._resolved: dict[str, Closure] = {}
        self._sessions: dict[Debugged, str] = {}

    @asynccontextmanager
    async def session(self, version: Version, number: int, tell: ReportProgress) -> AsyncIterator[Debugged]:
        """For one invocation of the function: its port, and its debugger installed.

        Args: number: of the port; 0: any that is free. Raises: CannotDebug, PackagesFailed."""
        check(version)
        package = await self._resolve(version.config.python, tell)
        try:
            port = await DebugPort.open(
                number, lambda uid: not any(uid in block for block in self._confined), self._ports
            )
        except OSError as error:
            words = os.strerror(error.errno) if error.errno else str(error)
            where = " ".join(getattr(error, "__notes__", [])) or f"{HOST}:{number}"
            raise CannotDebug(f"port {number} cannot be had: {where}: {words}; name another one") from None
        debugged = Debugged(self._config, port, package, self._packages.paths(package))
        self._sessions[debugged] = version.record.name
        try:
            await self._packages.ensure(package, progress=tell.progress)
            port.on_function = lambda: tell.listening(port.number)
            yield debugged
        finally:
            del self._sessions[debugged]
            debugged.close()
            await port.aclose()

    def users(self, key: str) -> list[str]:
        """The functions that are being debugged with a distribution."""
        return [name for debugged, name in self._sessions.items() if key in debugged.package.keys]

    def close(self) -> None:
        """End all sessions: the worker is to stop."""
        for debugged in self._sessions:
            debugged.end(Draining("the worker is shutting down"))

    async def _resolve(self, version: str | None, tell: ReportProgress) -> Closure:
        """The debugger's package, pinned once for each interpreter. Raises: PackagesFailed, NoPython."""
        python = await self._packages.interpreter(version)
        if python.tag not in self._resolved:
            requirement = self._config.requirement
            tell.progress(f"resolving {requirement}")
            try:
                self._resolved[python.tag] = await self._packages.resolve(requirement, python=python)
            except PackagesFailed as error:
                error.message = f"the debugger, {requirement} (debug.requirement), cannot be had: {error.message}"
                raise
        return self._resolved[python.tag]


def check(version: Version) -> None:
    """Whether a version can be debugged. Raises: CannotDebug."""
    if version.image is not None:
        raise CannotDebug("this function runs in a container image, whose Python has no debugger of the worker's")
    code = version.program.code
    if code is not None and (version.config.runtime == WASM or provided(code, version.config.runtime)):
        raise CannotDebug("this function is a program (runtime = provided or wasm), not a Python handler")
