"""The engine's process, kept alive: started when it is wanted, and anew after each end, with a growing pause between.

Owns the process with its launcher and cgroup. Knows nothing of what is said on the wires: the client gets their sockets at each
start and is called at each end.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from sockd.linux.confined.confined_process import ConfinedProcess, Jail
from sockd_initscripts.limits import MIB, EngineLimits

START_DEADLINE_S = 30.0
"""From exec to `ready`: half a second of imports on an idle machine."""
FIRST_PAUSE_S, LONGEST_PAUSE_S, STEADY_S = 0.1, 30.0, 60.0
"""Pauses before a restart; an engine that lived for so long is forgiven its earlier deaths."""
MAX_PIDS = 512
"""Threads: one for each run, and those of grpc and wasmtime."""
OPEN_FILES = 16384


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What one engine process is held to."""

    uid: int
    memory_bytes: int
    """The memory limit of the engine's cgroup, regions included."""
    runs: int
    """Most at a time."""


class EngineKeeper:
    """Calls `on_start(control, starts)`, the sockets the callee's, for each process, and `on_end()` when it is gone."""

    def __init__(
        self,
        jail: Jail,
        settings: EngineSettings,
        *,
        on_start: Callable[[socket.socket, socket.socket], None],
        on_end: Callable[[], None],
    ) -> None:
        self._jail = jail
        self._settings = settings
        self._on_start = on_start
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._limits = EngineLimits()
        self._keeping: asyncio.Task[None] | None = None
        self._process: ConfinedProcess | None = None
        self._slow: asyncio.TimerHandle | None = None
        self.why_down = "not needed yet"
        """Why there is no engine now, for people; empty when there is."""
        self.starts = 0

    @property
    def pid(self) -> int:
        """The launcher's process; 0: there is none."""
        return self._process.launcher.pid if self._process else 0

    def memory_bytes(self) -> int:
        """What its cgroup is charged for."""
        return self._process.cgroup.memory_bytes() if self._process else 0

    def keep(self, limits: EngineLimits) -> None:
        """Keep a process from now on, with these limits. A second call does nothing."""
        if self._keeping is None:
            self._limits = limits
            self._keeping = self._loop.create_task(self._keep(), name="initscript engine")

    def serves(self) -> None:
        """The process has said that it is ready: it was in time."""
        self.why_down = ""
        if self._slow is not None:
            self._slow.cancel()

    def kill(self) -> None:
        """End the process: it is too slow, or of no use. The next one follows."""
        if self._process is not None and self._process.launcher.returncode is None:
            self._process.launcher.kill()

    async def close(self) -> None:
        """End it for good."""
        if self._keeping is None:
            return
        self._keeping.cancel()
        await asyncio.wait([self._keeping])

    async def _keep(self) -> None:
        """Start it, again and again, with a growing pause between."""
        pause_s = FIRST_PAUSE_S
        while True:
            started_s = time.monotonic()
            try:
                self.why_down = await self._live()
            except OSError as error:
                self.why_down = str(error)
            if time.monotonic() - started_s > STEADY_S:
                pause_s = FIRST_PAUSE_S
            _log.warning("the initscript engine ended (%s); it is started again in %.1f s", self.why_down, pause_s)
            try:
                async with asyncio.timeout(pause_s):
                    await self._loop.create_future()  # nothing comes but the end of the pause, or ours
            except TimeoutError:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _live(self) -> str:
        """One process from its start to its end; how it ended. Raises: OSError."""
        settings, self.why_down = self._settings, "starting"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        starts, their_starts = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, their_starts:
                fds = (theirs.fileno(), their_starts.fileno())
                self._process = await ConfinedProcess.start(
                    self._jail,
                    *("-m", "sockd_initscripts", *map(str, fds), msgspec.json.encode(self._limits).decode()),
                    uid=settings.uid,
                    memory_bytes=settings.memory_bytes,
                    tmp_bytes=MIB,
                    pids=MAX_PIDS,
                    network="host",
                    keep=fds,
                    limits={"RLIMIT_NOFILE": OPEN_FILES},
                )
            self.starts += 1
            self._on_start(ours, starts)
            self._slow = self._loop.call_later(START_DEADLINE_S, self.kill)
            return await self._process.wait()
        finally:
            if self._slow is not None:
                self._slow.cancel()
            self._on_end()
            ours.close()
            starts.close()
            process, self._process = self._process, None
            if process is not None:
                await process.close()
