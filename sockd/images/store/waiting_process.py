"""An import process that waits for its image: confined, and with everything imported.

The process has an own uid, no capability, a seccomp filter, a tree with the interpreter and our packages, and the host's network.
The control socket brings it the request, with descriptors, and messages in both directions; the process ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from sockd.base.blocking import in_thread
from sockd.base.errors import SandboxFailed
from sockd.images.store.import_wire import ImportRequest, encode
from sockd.isolation.roots.base import Base
from sockd.isolation.roots.jail import built, jail_on
from sockd.linux.cgroups.tree import Cgroup
from sockd.linux.confined.confined_process import ConfinedProcess, Jail
from sockd.linux.confined.software import software

MODULE = "sockd.images.store.import_process"
LIBRARIES = ("isal", "msgspec", "zstandard")
STOP_S = 5.0
"""For a process to stop: until then it may be writing to the disk."""
MEMORY_BYTES, TMP_BYTES, PIDS = 2 << 30, 1 << 20, 16
"""The memory includes the page cache of its temporary files, which the kernel writes back when there is no more."""


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Settings of all import processes of a worker."""

    uid: int
    most_file_bytes: int
    """The most bytes of a file that the process writes (RLIMIT_FSIZE)."""
    memory_bytes: int = MEMORY_BYTES


class WaitingProcess:
    """`start`, `begin` once, `close`. Owns the process, its tree and the daemon's end of the socket."""

    def __init__(self, process: ConfinedProcess, ours: socket.socket, stack: AsyncExitStack) -> None:
        self._process = process
        self._ours = ours
        self._stack = stack

    @classmethod
    async def start(
        cls,
        settings: ProcessSettings,
        root: Path,
        take_cgroup: Callable[[], Cgroup],
        give_back_cgroup: Callable[[Cgroup], None],
    ) -> WaitingProcess:
        """Return when it waits. Args: root: a directory that its tree is mounted in. Raises: SandboxFailed: it ended; OSError."""
        async with AsyncExitStack() as stack:
            jail = await _jail(root / f"import-{time.monotonic_ns()}", take_cgroup, give_back_cgroup, stack)
            process, ours = await ConfinedProcess.start_connected(
                jail,
                MODULE,
                uid=settings.uid,
                memory_bytes=settings.memory_bytes,
                tmp_bytes=TMP_BYTES,
                pids=PIDS,
                network="host",
                limits={"RLIMIT_FSIZE": settings.most_file_bytes},
            )
            stack.callback(ours.close)
            stack.push_async_callback(process.close)
            if not await asyncio.get_running_loop().sock_recv(ours, 1):
                raise SandboxFailed(f"the import process ended while it started: {await process.wait()}")
            return cls(process, ours, stack.pop_all())

    @property
    def pid(self) -> int:
        """The pid of the launcher, which ends with the process."""
        return self._process.launcher.pid

    @property
    def is_alive(self) -> bool:
        return self._process.launcher.returncode is None

    async def begin(
        self, request: ImportRequest, descriptors: Sequence[int]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Give it its image; the messages that follow. Args: descriptors: in the order of `ImportRequest`.

        Raises: OSError: it has ended."""
        socket.send_fds(self._ours, [b"\n"], list(descriptors))
        ours = self._ours.dup()
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        self._stack.callback(writer.close)
        writer.write(encode(request))
        return reader, writer

    @contextlib.asynccontextmanager
    async def stopped(self) -> AsyncIterator[bool]:
        """Keep it from running in the block, so that it changes none of its files; whether that is sure."""
        cgroup = self._process.cgroup
        cgroup.freeze_nowait()
        try:
            is_stopped = True
            try:
                await cgroup.wait_frozen(STOP_S)
            except TimeoutError:
                is_stopped = False
            yield is_stopped
        finally:
            cgroup.thaw_nowait()

    async def wait(self) -> str:
        """Wait until it has ended; how it did, in words."""
        return await self._process.wait()

    async def close(self) -> None:
        """End it. Once."""
        await self._stack.aclose()


async def _jail(
    root: Path,
    take_cgroup: Callable[[], Cgroup],
    give_back_cgroup: Callable[[Cgroup], None],
    stack: AsyncExitStack,
) -> Jail:
    """A tree for one process, so that a worker without imports has none."""
    places = software(("sockd",), LIBRARIES)
    stack.push_async_callback(in_thread, _close_jail, root)
    await in_thread(built, root, places)
    return jail_on(root, places, take_cgroup, give_back_cgroup)


def _close_jail(root: Path) -> None:
    """Also if it was not built, or not to its end."""
    if root.exists():
        Base(root).close()
        os.rmdir(root)
